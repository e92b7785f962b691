"""The wheel and the source archive, as somebody gets them who has no checkout."""
