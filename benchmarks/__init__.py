"""Measurements whose results stand in docs/reports."""
