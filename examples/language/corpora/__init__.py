"""Sources of text: the standard library, folders and shards."""
