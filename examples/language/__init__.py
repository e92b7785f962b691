"""Language models on source code, folders of text, and pre-tokenised shards."""
