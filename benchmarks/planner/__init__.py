"""Predictions of the planner compared with the papers and with our measurements."""
