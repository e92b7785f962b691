"""Many small workers trained as one batch of models: the papers' equations without the package."""
