"""Runs that are stopped and go on: exactly, elsewhere, and from what files."""
