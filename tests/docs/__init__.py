"""The documentation: what it shows is run, what it links to is there."""
