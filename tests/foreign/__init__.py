"""Trains models of other packages, each in an environment of its own: `make test-foreign`."""
