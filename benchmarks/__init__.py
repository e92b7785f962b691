"""Benchmarks, whose results are in docs/reports."""
