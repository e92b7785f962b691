"""Gradient synchronisation inside a group, at every step."""
