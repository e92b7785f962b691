"""Benchmark of modules that FSDP2 shards inside hosts: step times, bytes and memory."""
