"""Lightning glue: presets, life cycle, checks. No maths."""
