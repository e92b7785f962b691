"""Equations on tensors and numbers: no process groups, no Lightning."""
