"""Callbacks: what the strategies count, in the Trainer's loggers."""
