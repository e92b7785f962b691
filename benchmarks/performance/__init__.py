"""Benchmark of all synchronous strategies and comparable libraries over rate-limited links."""
