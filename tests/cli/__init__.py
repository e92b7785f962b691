"""Tests of the command `lightning-hier`."""
