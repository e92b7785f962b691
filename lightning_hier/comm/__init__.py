"""Process groups, collectives, and what is sent through them. No Lightning."""
