"""Tests of the documentation: its code runs, and its links and lists are complete."""
