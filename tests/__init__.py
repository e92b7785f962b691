"""Tests of lightning_hier and of its examples."""
