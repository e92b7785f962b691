"""Callbacks that log the metrics of strategies and show progress."""
