"""Equations on tensors and numbers, without process groups and without Lightning."""
