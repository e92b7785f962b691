"""Modules that FSDP2 and tensor parallelism divide inside groups."""
