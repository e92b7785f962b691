"""Selection of the metrics on the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightning_hier.cli.report.runs import Run

_MOST = 6
# Parts of names that usually denote the quality of a model.
_TELLING = re.compile(
    r"loss|err|acc|perplexity|ppl|(^|[/_])(wer|cer|per|f1|auc|bleu|mse|nll)($|[/_])"
)
# Lightning creates two names for log(on_step=True, on_epoch=True). One of them is sufficient.
_TWIN = "_step"


def choose_metrics(runs: Sequence[Run], asked: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Names of the metrics to plot, and of those that appear only in the table.

    Args:
        runs: compared runs.
        asked: metrics requested by the user. None: losses, error rates and similar metrics, sorted
            by the number of runs that have them. Those that were logged once, as by
            ``trainer.test``, appear only in the table.

    Raises:
        ValueError: no run has a requested metric. The error lists the available ones.

    """
    logged = {name for run in runs for name in run.metrics}
    if asked is not None:
        unknown = [name for name in asked if name not in logged]
        if unknown:
            listed = ", ".join(sorted(logged)) or "none"
            raise ValueError(
                f"no run has logged {', '.join(map(repr, unknown))}; there is {listed}"
            )
        return list(dict.fromkeys(asked)), []
    twins = {name for name in logged if name.removesuffix("_epoch") + _TWIN in logged}
    curves = {name for name in logged if _is_curve(runs, name)}
    telling = {name for name in logged if _TELLING.search(name.lower())}
    plotted = curves - twins
    return _first(runs, plotted & telling or plotted), _first(runs, telling - curves)


def _first(runs: Sequence[Run], names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: _rank(runs, name))[:_MOST]


def _is_curve(runs: Sequence[Run], name: str) -> bool:
    return any(len(run.series[name].steps) > 1 for run in runs if name in run.series)


def _rank(runs: Sequence[Run], name: str) -> tuple[int, bool, bool, str]:
    # Metrics that most runs have come first, because the page compares runs.
    absent = sum(name not in run.series for run in runs)
    return absent, "loss" not in name.lower(), "train" not in name.lower(), name
