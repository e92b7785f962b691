"""Tests of the plain loop."""
