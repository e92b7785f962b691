"""Tests of the door of Fabric."""
