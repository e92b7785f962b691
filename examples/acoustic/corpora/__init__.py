"""Sources of speech: synthesis and AN4."""
