"""Tests of checkpoints and of resumed runs."""
