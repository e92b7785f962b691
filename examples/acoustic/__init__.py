"""Hybrid acoustic models for speech recognition: data, models, decoding to words."""
