"""Random runs that must keep the promises of the package: `python -m tests.fuzz`."""
