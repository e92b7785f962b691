"""The strategies do what their equations say, and equal each other where they should."""
