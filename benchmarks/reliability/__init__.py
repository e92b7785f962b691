"""Faults on purpose: jobs that are stopped, killed and delayed, and what becomes of them."""
