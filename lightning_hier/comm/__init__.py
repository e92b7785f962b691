"""Process groups, collectives and their traffic, without Lightning."""
