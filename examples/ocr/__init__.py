"""Recognition of text lines with CTC: data, model, decoding and configurations."""
