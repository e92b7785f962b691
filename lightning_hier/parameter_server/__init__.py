"""Parameter servers inside the ranks: their transport, their rules, and what they serve."""
