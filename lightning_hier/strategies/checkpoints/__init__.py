"""Checkpoints: files that are whole or absent, the state of every rank, and exact resume."""
