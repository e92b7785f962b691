"""Writes the tables of docs/reports/foreign.md: `python -m tests.foreign.report`."""

from __future__ import annotations

import json
import re
from statistics import mean
from typing import Any

from tests.foreign.environments import NOT_YET, PACKAGES, REPOSITORY
from tests.foreign.test_packages import RESULTS, STRATEGIES

PAGE = REPOSITORY / "docs" / "reports" / "foreign.md"
Results = dict[str, dict[str, Any]]


def results_of(package: str) -> Results:
    """Return the results of a package by strategy."""
    paths = {name: RESULTS / f"{package}-{name}.json" for name in STRATEGIES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def loss_cell(results: Results, strategy: str) -> str:
    """Return the loss relative to DDP's by the same seed: the mean, and the range of seeds."""
    result = results.get(strategy)
    if result is None or len(result["losses"]) < len(results["ddp"]["losses"]):
        return "-" if result is None else "error"
    ratios = [
        own / ddp for own, ddp in zip(result["losses"], results["ddp"]["losses"], strict=True)
    ]
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def check_cell(results: Results, strategy: str) -> str:
    """Return how the run resumed, or that something is wrong."""
    result = results.get(strategy)
    if result is None or result["faults"]:
        return "-" if result is None else "fault"
    named = {"differs": "resumed", "announced": "not exact, said"}
    resumed: str = result["resumed"]
    return named.get(resumed, resumed)


def tables(before: str) -> str:
    """Return both tables, the commits, and the packages that cannot be tried.

    A package without results keeps the lines that it has in the text before.
    """
    names = [name for name in STRATEGIES if name != "ddp"]
    heading = " | ".join(f"`{name}`" for name in names)
    losses = [f"| | before | DDP | {heading} |", "| --- " * (len(names) + 3) + "|"]
    checks = [f"| | {heading} |", "| --- " * (len(names) + 1) + "|"]
    runs: list[str] = []
    for package in PACKAGES:
        results = results_of(package)
        if "ddp" not in results:
            kept = re.findall(rf"^[|-] {package} .*", before, re.MULTILINE)
            for lines, line in zip((losses, checks, runs), kept, strict=False):
                lines.append(line)
            continue
        ddp = results["ddp"]
        title = f"{package} {ddp['version']}"
        numbers = " | ".join(loss_cell(results, name) for name in names)
        initial = "" if ddp["initial"] is None else f"{ddp['initial']:.3g}"
        losses.append(f"| {title} | {initial} | {mean(ddp['losses']):.3g} | {numbers} |")
        checks.append(f"| {title} | {' | '.join(check_cell(results, name) for name in names)} |")
        used = sorted({result["commit"] for result in results.values()})
        runs.append(f"- {title}: seeds {len(ddp['losses'])}, commit {', '.join(used)}.")
    runs += [f"- {name}: {reason}." for name, reason in NOT_YET.items()]
    return "\n\n".join("\n".join(lines) for lines in (losses, checks, runs))


def main() -> None:
    """Replace what the page has between its two marks."""
    marked = re.compile(r"(<!-- results -->\n).*(<!-- end of results -->)", re.DOTALL)
    text = PAGE.read_text()
    PAGE.write_text(marked.sub(lambda m: f"{m[1]}\n{tables(m[0])}\n\n{m[2]}", text))


if __name__ == "__main__":
    main()
