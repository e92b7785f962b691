"""Strategies as a user meets them: through the Trainer."""
