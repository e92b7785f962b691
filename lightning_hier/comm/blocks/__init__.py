"""Block synchronisation: models of the groups, averaged at the ends of blocks."""
