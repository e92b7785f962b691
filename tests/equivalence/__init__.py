"""Trained models equal the reference in float64, and each other where theory says so."""
