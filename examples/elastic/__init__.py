"""Elastic training, in which groups leave and join during the run."""
