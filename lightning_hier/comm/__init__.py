"""Process groups, collectives, gradient hooks and block synchronisation. No Lightning."""
