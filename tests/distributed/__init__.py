"""Communication on real gloo ranks, without Lightning."""
