"""Virtual workers: several workers on one rank."""
