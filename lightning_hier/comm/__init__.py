"""Process groups, collectives and their traffic. No Lightning."""
