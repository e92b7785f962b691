"""Where lines of text come from."""
