"""Every synchronous strategy and its peers on the same work, over shaped links between hosts."""
