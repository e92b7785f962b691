"""Pieces by themselves, in one process."""
