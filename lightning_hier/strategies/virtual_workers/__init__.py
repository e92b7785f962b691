"""Several workers on one rank, in turns."""
