"""The commands of `lightning-hier`."""
