"""Training of many small workers as one batch of models, written from the papers' equations."""
