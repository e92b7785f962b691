"""Text line recognition with CTC: data, model, decoding, command line."""
