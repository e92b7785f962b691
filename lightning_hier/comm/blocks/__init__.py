"""What groups do with their models at the end of a block."""
