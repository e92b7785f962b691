"""Target values of performance, compared with the results.

Every measured value is a ratio within one run. The median of the runs counts, to two digits after
the point, or to three for limits below 0.1. Times of a synchronisation are relative to the wire
time of float32: the smallest number of bytes that a host must send, divided by the goodput of its
link in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.performance.figures import spread
from benchmarks.performance.job import Network, key_of
from benchmarks.performance.results import Results
from benchmarks.performance.synchronisation import Variant
from benchmarks.performance.systems import named
from benchmarks.performance.work import Work
from examples.tables import markdown

FAST = key_of(Network.read("2x2", "1gbit"), Work())
SLOW = key_of(Network.read("2x2", "100mbit"), Work())
GROUP_SIZE = 2


@dataclass(frozen=True, kw_only=True)
class Target:
    """One target.

    Attributes:
        name: description of the ratio.
        limit: largest allowed ratio.
        measured: function that returns the ratio of each run, without runs that did not measure it.
        least: function that returns the smallest ratio that the link allows, for each run. None if
            the link does not limit it.

    """

    name: str
    limit: float
    measured: Callable[[Results], Sequence[float]]
    least: Callable[[Results], Sequence[float]] | None = None

    def met(self, values: Sequence[float]) -> bool:
        """Whether the median of the runs is within the limit."""
        return round(statistics.median(values), self.digits) <= self.limit

    @property
    def digits(self) -> int:
        """Number of digits after the point."""
        return 3 if self.limit < 0.1 else 2


def synchronisation_name(network: Network) -> str:
    """Return the name of the section with the synchronisations on a network."""
    return f"synchronisation, {network}"


def _between(results: Results) -> list[float]:
    return [run["ratio"] for _, run in sorted(results.section("between").items())]


def _encoding(results: Results) -> list[float]:
    """Return the ratios for 1% of 10 million elements, which exceed the caches."""
    wanted = (10**7, 0.01)
    return [
        encoding["ratio"]
        for _, run in sorted(results.section("encoding").items())
        for encoding in run
        if (encoding["elements"], encoding["wanted_density"]) == wanted
    ]


def _variant(
    value: str, layout: str = "2x2", **settings: str | int
) -> Callable[[Results], list[float]]:
    name = Variant(**settings).name  # type: ignore[arg-type]
    section = synchronisation_name(Network.read(layout, "1gbit"))
    return lambda results: [
        run[name][value] for _, run in sorted(results.section(section).items()) if name in run
    ]


def _to(layout: str, system: str, other: str) -> Callable[[Results], list[float]]:
    kind = key_of(Network.read(layout, "1gbit"), Work())
    return lambda results: results.against(kind, system, other, lambda figures: figures.step_s)


def _to_ddp(kind: str, system: str) -> Callable[[Results], list[float]]:
    return lambda results: results.against(kind, system, "ddp", lambda figures: figures.step_s)


def _communication_to_ddp(kind: str, system: str) -> Callable[[Results], list[float]]:
    return lambda results: results.against(
        kind, system, "ddp", lambda figures: figures.communication_s
    )


_SYNCHRONISATION = "block synchronisation, 24.3M, 1 Gbit/s, 2 x 2, to the wire time of float32"
_ALONE = "the same, 2 hosts of 1 rank"

_WHOLE = "BMUF, block 50, 2 x 2, whole run, to the same ranks without communication"


def _whole(title: str, kind: str, system: str, limit: float) -> Target:
    overlap = bool(named(system).arguments.get("overlap"))

    def least(results: Results) -> list[float]:
        runs = results.figures(kind, system).values()
        return [figures.least_ratio(overlap=overlap) for figures in runs]

    return Target(
        name=f"{_WHOLE}: {title}",
        limit=limit,
        measured=lambda results: results.to_limit(kind, system),
        least=least,
    )


TARGETS = (
    Target(
        name="BMUF, a step between synchronisations, to the bare local step",
        limit=1.02,
        measured=_between,
    ),
    Target(name=f"{_SYNCHRONISATION}: every rank a worker", limit=1.10, measured=_variant("ratio")),
    Target(
        name=f"{_SYNCHRONISATION}: groups of a host, leader",
        limit=1.10,
        measured=_variant("ratio", group_size=GROUP_SIZE),
    ),
    Target(
        name=f"{_SYNCHRONISATION}: groups of a host, sharded",
        limit=1.10,
        measured=_variant("ratio", group_size=GROUP_SIZE, across="sharded"),
    ),
    *(
        Target(
            name=f"{_ALONE}, {dtype}",
            limit=limit,
            measured=_variant("ratio", "2x1", across_dtype=dtype),
        )
        for dtype, limit in (("float32", 1.10), ("bfloat16", 0.60), ("int8", 0.35), ("int4", 0.22))
    ),
    *(
        Target(
            name=f"{ours}, {layout.replace('x', ' x ')}, 1 Gbit/s, a step, to {theirs}",
            limit=1.0,
            measured=_to(layout, ours, theirs),
        )
        for layout in ("2x1", "4x1", "2x2", "1x4")
        for ours, theirs in (("bmuf", "torchft_local_sgd"), ("diloco", "torchft_diloco"))
    ),
    _whole("1 Gbit/s", FAST, "bmuf", 1.10),
    _whole("1 Gbit/s, overlap", FAST, "bmuf_overlap", 1.03),
    _whole("100 Mbit/s", SLOW, "bmuf", 1.9),
    _whole("100 Mbit/s, int8", SLOW, "bmuf_int8", 1.3),
    _whole("100 Mbit/s, overlap", SLOW, "bmuf_overlap", 1.05),
    Target(
        name="GTC encode and residual update, one core, to one copy of the gradient",
        limit=2.5,
        measured=_encoding,
    ),
    Target(
        name="GTC at 1% density, 2 x 2, 1 Gbit/s, communication of a step, to DDP's",
        limit=0.12,
        measured=_communication_to_ddp(FAST, "gtc"),
    ),
    Target(
        name="BMUF_GTC, 2 x 2, 1 Gbit/s, block 50, whole run, to no communication",
        limit=1.45,
        measured=lambda results: results.to_limit(FAST, "bmuf_gtc"),
    ),
    Target(
        name="BMUF_GTC, 2 x 2, 100 Mbit/s, block 50, whole run, to DDP's",
        limit=0.03,
        measured=_to_ddp(SLOW, "bmuf_gtc"),
    ),
    Target(
        name="BMUF_GTC, 2 x 2, 100 Mbit/s, block 50, whole run, overlap, to DDP's",
        limit=0.018,
        measured=_to_ddp(SLOW, "bmuf_gtc_overlap"),
    ),
    Target(
        name="extra memory per rank, BMUF, groups of 2, sharded, in models: 2 / P + one buffer",
        limit=2 / GROUP_SIZE + 1,
        measured=_variant("extra_models", group_size=GROUP_SIZE, across="sharded"),
    ),
)


def targets_table(results: Results) -> str:
    """Return the table of all targets as Markdown, including those that are not measured."""
    rows = []
    for target in TARGETS:
        values = list(target.measured(results))
        verdict = "not measured" if not values else "yes" if target.met(values) else "no"
        measured = spread(values, target.digits) if values else ""
        least = [] if target.least is None else list(target.least(results))
        allowed = spread(least, target.digits) if least else ""
        rows.append((target.name, f"{target.limit:g}", measured, allowed, verdict))
    return markdown(("ratio", "limit", "measured", "the link alone", "met"), rows)
