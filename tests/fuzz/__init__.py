"""Properties of the package in runs with random settings: `python -m tests.fuzz`."""
