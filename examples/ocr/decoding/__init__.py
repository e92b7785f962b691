"""Decoding of CTC outputs by best path, or by beam search with a language model."""

from __future__ import annotations

from examples.ocr.decoding.best_path import best_paths, collapse

__all__ = ["best_paths", "collapse"]
