"""Unit tests: single components, mostly in one process."""
