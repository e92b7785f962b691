"""Scripts of other packages, trained with a strategy by its name."""
