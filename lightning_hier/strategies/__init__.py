"""Lightning strategies: presets, life cycle and checks, without equations."""
