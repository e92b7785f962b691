"""Language models on source code, folders of text files, and pre-tokenised shards."""
