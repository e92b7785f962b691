"""What a group does with gradients at every step."""
