"""Soak test: jobs into which faults are injected, and their recovery."""
