"""Sources of text lines."""
