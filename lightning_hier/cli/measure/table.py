"""What was measured, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_hier.algorithms.planning.network import Link
from lightning_hier.algorithms.planning.workload import Workload
from lightning_hier.comm.probe import LinkReading

_NAMES = {"all_reduce": "all-reduce", "send": "send"}


def readings_table(readings: Sequence[LinkReading]) -> list[tuple[str, ...]]:
    """A row for each kind of operation and size: the slowest of its places."""
    rows: list[tuple[str, ...]] = [
        ("where", "operation", "ranks", "size", "median ms", "fastest ms", "slowest ms", "Mbit/s")
    ]
    slowest: dict[tuple[str, str, int], LinkReading] = {}
    for reading in readings:
        kind = reading.where, reading.operation, reading.payload_bytes
        slowest[kind] = max(slowest.get(kind, reading), reading, key=lambda r: r.seconds)
    for (where, operation, size), slow in sorted(slowest.items()):
        seconds = (slow.seconds, slow.fastest, slow.slowest)
        rows.append(
            (
                "between hosts" if where == "between" else "within a host",
                _NAMES[operation],
                ", ".join(map(str, slow.ranks)),
                _size(size),
                *(f"{1e3 * each:.3f}" for each in seconds),
                f"{_passed(slow) * 8 / slow.seconds / 1e6:.0f}",
            )
        )
    return rows


def link_lines(name: str, link: Link | None, pairs: Mapping[tuple[int, ...], Link]) -> list[str]:
    """What the link is when all use it, and which pairs are far slower than most."""
    if link is None:
        return []
    lines = [f"{name}: {_described(link)} while all send"]
    speeds = sorted(pair.bytes_per_second for pair in pairs.values())
    for (one, other), pair in pairs.items():
        if pair.bytes_per_second < speeds[len(speeds) // 2] / 2:
            lines.append(
                f"  ranks {one} and {other}: {_described(pair)}, less than half of what most pairs "
                "have by themselves: every synchronisation waits for it"
            )
    return lines


def workload_line(workload: Workload) -> str:
    """The module's step."""
    return (
        f"{workload.name}: {workload.parameters:,} parameters, {1e3 * workload.step_s:.1f} ms a "
        f"step ({workload.backward_share:.0%} of it backward), optimizer {workload.optimizer}"
    )


def _passed(reading: LinkReading) -> float:
    """Bytes that a link carried in one direction."""
    if reading.operation == "send":
        return reading.payload_bytes
    ranks = len(reading.ranks)
    return 2 * (ranks - 1) / ranks * reading.payload_bytes


def _described(link: Link) -> str:
    return f"{link.bytes_per_second * 8 / 1e6:,.0f} Mbit/s, latency {1e6 * link.latency_s:.0f} µs"


def _size(nbytes: int) -> str:
    for unit, bound in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= bound:
            return f"{nbytes / bound:g} {unit}"
    return f"{nbytes} B"
