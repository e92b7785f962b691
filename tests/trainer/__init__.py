"""Tests of the strategies through the Trainer."""
