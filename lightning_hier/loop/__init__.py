"""The plain loop: groups, attached optimizers and blocks, for every PyTorch loop."""
