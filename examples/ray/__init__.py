"""Training inside Ray Train."""
