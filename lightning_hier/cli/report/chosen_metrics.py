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


def choose_metrics(runs: Sequence[Run], asked: Sequence[str] | None) -> list[str]:
    """Names of the metrics to plot.

    Args:
        runs: compared runs.
        asked: metrics requested by the user. None: losses, error rates and similar metrics, sorted
            by the number of runs that have them.

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
        return list(dict.fromkeys(asked))
    single = {name for name in logged if name.endswith("_epoch")}
    single = {name for name in single if name.removesuffix("_epoch") + _TWIN in logged}
    curves = {name for name in logged - single if _is_curve(runs, name)}
    telling = {name for name in curves if _TELLING.search(name.lower())}
    return sorted(telling or curves, key=lambda name: _rank(runs, name))[:_MOST]


def single_values(runs: Sequence[Run]) -> list[str]:
    """Metrics that were logged once, as by ``trainer.test``. They appear only in the table."""
    logged = {name for run in runs for name in run.metrics}
    single = {name for name in logged if not _is_curve(runs, name)}
    telling = {name for name in single if _TELLING.search(name.lower())}
    return sorted(telling, key=lambda name: _rank(runs, name))[:_MOST]


def _is_curve(runs: Sequence[Run], name: str) -> bool:
    return any(len(run.series[name].steps) > 1 for run in runs if name in run.series)


def _rank(runs: Sequence[Run], name: str) -> tuple[int, bool, bool, str]:
    absent = sum(name not in run.series for run in runs)
    return absent, "loss" not in name.lower(), "train" not in name.lower(), name
