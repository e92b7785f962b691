"""Tests of groups that come and go: each process is a group, a job of its own."""
