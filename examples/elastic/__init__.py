"""Training in groups that come and go."""
