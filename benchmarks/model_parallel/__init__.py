"""Modules that are divided inside hosts, trained over shaped links: step times, bytes, memory."""
