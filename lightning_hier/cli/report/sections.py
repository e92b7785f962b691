"""The plots of a page, in sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightning_hier.cli.report.plots import Line, Plot, Point
from lightning_hier.cli.report.runs import EMPTY, Run, Series

_MANY_TIMES = 5.0


@dataclass(frozen=True)
class Section:
    """Plots under one heading."""

    title: str
    plots: list[Plot]


# Names of the series by title of the plot, in sections.
_SERIES = {
    "Communication": {
        "payload inside groups": "hier/group/payload_bytes",
        "payload between groups": "hier/across/payload_bytes",
        "density of GTC": "hier/gtc/density",
        "norm of GTC's residuals": "hier/gtc/residual_norm",
    },
    "Blocks": {
        "norm of the global update": "hier/block/update_norm",
        "distance between the groups' models": "hier/block/model_distance",
        "excluded groups": "hier/block/excluded",
    },
    "Parameter servers": {
        "staleness (PSP)": "hier/psp/staleness",
        "gradients per update (PSP)": "hier/psp/gradients_per_round",
        "gradients dropped (PSP)": "hier/psp/dropped",
        "staleness, sum over pushes (two-stage)": "hier/two_stage/master/staleness_sum",
        "seconds waited (two-stage)": "hier/two_stage/device/waiting_seconds",
    },
}


def sections(runs: Sequence[Run], metrics: Sequence[str]) -> list[Section]:
    """All sections that are not empty.

    Args:
        runs: runs in the order of their colours.
        metrics: metrics that are plotted over steps, time and bytes.

    """
    all_sections = [Section(metric, _over_three_axes(runs, metric)) for metric in metrics]
    all_sections += [Section(title, _present(runs, wanted)) for title, wanted in _SERIES.items()]
    waits = [Line(i, run.name, waited_share(run)) for i, run in enumerate(runs)]
    if any(line.points for line in waits):
        title = "time waited for other ranks, percent"
        # Into the section "Communication", the first one after those of the metrics.
        all_sections[len(metrics)].plots.append(Plot(title, waits, "step", y_kind="percent"))
    return [section for section in all_sections if section.plots]


def waited_share(run: Run) -> list[Point]:
    """Waiting time in percent of the time since the previous value, over steps."""
    waited, elapsed = run.total("hier/waited_seconds"), run.total("hier/elapsed_seconds")
    points = []
    # A share of each interval, because a share of the whole run would hide later changes.
    samples = [(step, waited.at(step), elapsed.at(step)) for step in waited.steps]
    known = [(step, w, e) for step, w, e in samples if w is not None and e is not None]
    for (_, w0, e0), (step, w1, e1) in zip(known, known[1:], strict=False):
        if e1 > e0:
            points.append((step, 100 * (w1 - w0) / (e1 - e0)))
    return points


def _over_three_axes(runs: Sequence[Run], metric: str) -> list[Plot]:
    def lines(axis: Callable[[Run], Series] | None) -> list[Line]:
        return [Line(i, run.name, _points(run, metric, axis)) for i, run in enumerate(runs)]

    over_bytes = lines(lambda run: run.bytes_between)
    ends = [line.points[-1][0] for line in over_bytes if line.points]
    # Logarithmic if one run sends many times as much as another.
    log = max(ends, default=0.0) > _MANY_TIMES * min(filter(None, ends), default=math.inf)
    return [
        Plot("over steps", lines(None), "step"),
        Plot("over time", lines(lambda run: run.elapsed), "time", "seconds"),
        Plot("over bytes", over_bytes, "sent between groups", "bytes", x_log=log),
    ]


def _points(run: Run, name: str, axis: Callable[[Run], Series] | None) -> list[Point]:
    points = run.series.get(name, EMPTY).points
    if axis is None:
        return points
    along = axis(run)
    placed = ((along.at(step), value) for step, value in points)
    return [(x, value) for x, value in placed if x is not None]


def _present(runs: Sequence[Run], wanted: Mapping[str, str]) -> list[Plot]:
    """Plots over steps of values that some run has logged and that are not always 0."""
    plots = []
    for title, name in wanted.items():
        unit = next((unit for unit in ("bytes", "seconds") if name.endswith(unit)), "")
        lines = []
        for number, run in enumerate(runs):
            logged = _logged_name(run, name)
            if logged is None or not any(run.series[logged].values):
                continue
            series = run.total(logged) if unit else run.series[logged]
            lines.append(Line(number, run.name, series.points))
        if lines:
            plots.append(Plot(title, lines, "step", y_kind=unit))
    return plots


def _logged_name(run: Run, name: str) -> str | None:
    """The name in a run, which contains the index of the optimizer if there are several."""
    _, family, rest = name.split("/", 2)
    names = (name, f"hier/{family}/0/{rest}")
    return next((candidate for candidate in names if candidate in run.series), None)
