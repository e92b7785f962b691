"""Image classification by residual networks, where some machines are slow."""
