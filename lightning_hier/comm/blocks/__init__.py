"""Block synchronisation: averages the models of the groups at the ends of blocks."""
