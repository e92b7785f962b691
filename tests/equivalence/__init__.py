"""Trained models equal float64 twins of the equations, and each other where theory says so."""
