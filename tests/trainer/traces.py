"""Reads traces by the rules of Chrome's trace event format."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def read_open_array(text: str) -> list[dict[str, Any]]:
    """A JSON array whose closing bracket may be missing, as the format allows."""
    closed = text if text.rstrip().endswith("]") else text + "\n]"
    events: list[dict[str, Any]] = json.loads(closed) if text else []
    return events


def check_form(events: list[dict[str, Any]]) -> None:
    """Check what the format demands of the events that we write."""
    threads = set()
    for event in events:
        assert {"name", "ph", "pid", "tid", "ts"} <= set(event)
        assert event["ph"] in ("X", "i", "M")
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
        if event["ph"] == "M":
            threads.add((event["pid"], event["tid"]))
        else:
            assert (event["pid"], event["tid"]) in threads  # named before it is used
            assert isinstance(event["cat"], str)


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Check that slices of each thread follow or contain each other, as Perfetto wants them."""
    lanes: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begun = round(event["ts"] * 1000)
            lanes[event["pid"], event["tid"]].append((begun, begun + round(event["dur"] * 1000)))
    for lane, slices in lanes.items():
        open_ends: list[int] = []
        for begun, ended in sorted(slices, key=lambda both: (both[0], -both[1])):
            while open_ends and open_ends[-1] <= begun:
                open_ends.pop()
            assert not open_ends or ended <= open_ends[-1], f"slices of {lane} overlap at {begun}"
            open_ends.append(ended)
