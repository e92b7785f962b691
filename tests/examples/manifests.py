"""Writes manifests of data for tests of the examples."""

from __future__ import annotations

import json
from pathlib import Path

SPLITS = ("train", "valid", "test")


def write_manifest(folder: Path, entries: list[dict]) -> Path:
    """Write entries as JSON lines, and return the path of the file."""
    path = folder / "manifest.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path
