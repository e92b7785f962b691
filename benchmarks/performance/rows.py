"""Measurement of the systems in one network, one after the other in one launch of the ranks.

A launch takes longer than the steps of many systems. If ranks fail, each system is measured in a
separate launch, so that only those that fail have no figures.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.hosts import hosts_or_loopback
from benchmarks.launch import run_module
from benchmarks.performance.figures import figures
from benchmarks.performance.job import Job, Network, goodput_bytes, key_of
from benchmarks.performance.store import Store
from benchmarks.performance.systems import System, unavailable_reason
from benchmarks.performance.work import Work

_LIMIT_S = 900.0
# Limit for a system that is expected to fail, because it may hang.
_FAILURE_LIMIT_S = 180.0
_LONGEST_MESSAGE = 400


def run_ranks(
    network: Network,
    module: str,
    argument: Callable[[str], str],
    *further: str,
    limit_s: float = _LIMIT_S,
) -> list[Any]:
    """Run a module on all ranks of a new network, and return the results of the ranks.

    Args:
        network: hosts and links.
        module: module that writes ``rank<number>.json`` into the folder in its first argument.
        argument: function that returns the first argument for that folder.
        *further: further arguments of the module.
        limit_s: seconds after which the run is stopped.

    Raises:
        RuntimeError: a rank failed. The message contains the end of the output of each host.
        TimeoutError: the run was not complete within the limit.

    """
    created = hosts_or_loopback(network.hosts, network.rate, loopback=network.loopback)
    with tempfile.TemporaryDirectory() as name, created as emulated:
        folder = Path(name)
        arguments = (argument(name), *further)
        run_module(
            emulated, network.ranks_per_host, module, *arguments, folder=folder, limit_s=limit_s
        )
        return [
            json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(network.ranks)
        ]


def measure_systems(
    systems: Sequence[System], work: Work, network: Network, *, blocks: int
) -> Iterator[tuple[System, dict[str, Any]]]:
    """Measure systems in one launch of the ranks.

    Yields:
        Each system with its figures, or with the reason why there are none.

    """
    nbytes, names = goodput_bytes(network), [system.name for system in systems]

    def argument(folder: str) -> str:
        return Job(
            work=work,
            network=network,
            goodput_bytes=nbytes,
            folder=folder,
            systems=names,
            blocks=blocks,
        ).encoded()

    known = systems[0].expected_failure if len(systems) == 1 else ""
    limit_s = _FAILURE_LIMIT_S if known else _LIMIT_S * len(systems)
    try:
        ranks = run_ranks(network, "benchmarks.performance.rank", argument, limit_s=limit_s)
    except (RuntimeError, TimeoutError) as error:
        failure = summary(error)
        if len(systems) == 1:
            yield systems[0], {"failed": failure + (f" (known: {known})" if known else "")}
            return
        print(f"{failure}; each system is measured in a separate launch", flush=True)
        for system in systems:
            yield from measure_systems([system], work, network, blocks=blocks)
        return
    for system, readings in zip(systems, zip(*ranks, strict=True), strict=True):
        yield system, {"figures": asdict(figures(readings, system.block))}


def measure_rows(
    systems: Sequence[System],
    work: Work,
    network: Network,
    store: Store,
    *,
    run: int,
    blocks: int,
) -> None:
    """Measure one run of all systems that are not in the store."""
    kind = key_of(network, work)
    keys = {system: f"row/{kind}/{system.name}/{run}" for system in systems}
    wanted = []
    for system in systems:
        missing = unavailable_reason(system)
        if missing is not None:
            # Not stored, because the next call may be able to run it.
            print(f"{system.title}: skipped, {missing}", flush=True)
        elif keys[system] not in store:
            wanted.append(system)
    together = [system for system in wanted if not system.expected_failure]
    launches = [[system] for system in wanted if system.expected_failure]
    for launch in [together, *launches] if together else launches:
        for system, row in measure_systems(launch, work, network, blocks=blocks):
            store.add(keys[system], {"kind": kind, "system": system.name, "run": run, **row})
            print(f"{kind}, run {run}, {system.title}: {_text(row)}", flush=True)


def _text(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"failed, {row['failed']}"
    measured = row["figures"]
    ratio = measured["step_s"] / measured["control_s"]
    return f"{1e3 * measured['step_s']:.0f} ms a step, {ratio:.2f} of the limit"


def summary(error: RuntimeError | TimeoutError) -> str:
    """Return the most informative line of a failure: the last one that names an error."""
    text = str(error)
    if isinstance(error, TimeoutError):
        return text.partition("\n")[0]
    named = [line.strip() for line in text.splitlines() if "Error: " in line]
    return (named or text.splitlines() or ["no output"])[-1][:_LONGEST_MESSAGE]
