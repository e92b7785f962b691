"""Where the text comes from."""
