"""Language models on source code and folders of text files."""
