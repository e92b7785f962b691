"""Runs of the systems in one network, one after the other in one start of the ranks.

A start takes longer than the steps of many systems. Where ranks fail, each system is measured in a
start of its own, so that only those that fail have no figures.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.hosts import Host, hosts, loopback_hosts
from benchmarks.launch import run_module
from benchmarks.performance.figures import figures
from benchmarks.performance.job import Job, Network, goodput_bytes, key_of
from benchmarks.performance.store import Store
from benchmarks.performance.systems import System, obstacle
from benchmarks.performance.work import Work

_LIMIT_S = 900.0
# Of a row that is known to fail: it may do so by waiting for ever.
_FAILURE_LIMIT_S = 180.0
_WORTH_READING = 400


@contextmanager
def network_up(network: Network) -> Iterator[list[Host]]:
    """Its hosts; removed at the end."""
    if network.loopback:
        yield loopback_hosts(network.hosts)
        return
    with hosts(network.hosts, network.rate) as found:
        yield found


def ranks_do(
    network: Network,
    module: str,
    argument: Callable[[str], str],
    *further: str,
    limit_s: float = _LIMIT_S,
) -> list[Any]:
    """Run a module on all ranks of a network of its own, and give what each has written.

    Args:
        network: hosts and links.
        module: writes ``rank<number>.json`` into the folder that it is told.
        argument: makes the module's first argument, given that folder.
        *further: arguments of the module.
        limit_s: after which ranks are ended that came to no end.

    Raises:
        RuntimeError: a rank failed; the end of what its host has put out.
        TimeoutError: the ranks came to no end.

    """
    with tempfile.TemporaryDirectory() as name, network_up(network) as found:
        folder = Path(name)
        told = (argument(name), *further)
        run_module(found, network.ranks_per_host, module, *told, folder=folder, limit_s=limit_s)
        return [
            json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(network.ranks)
        ]


def measure_systems(
    systems: Sequence[System], work: Work, network: Network, *, blocks: int
) -> dict[System, dict[str, Any]]:
    """Measure systems in one start of the ranks.

    Returns:
        For each system its figures, or the reason why there are none.

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
        ranks = ranks_do(network, "benchmarks.performance.rank", argument, limit_s=limit_s)
    except (RuntimeError, TimeoutError) as error:
        if len(systems) == 1:
            return {systems[0]: {"failed": why(error) + (f" (known: {known})" if known else "")}}
        print(f"{why(error)}; each system is measured in a start of its own", flush=True)
        alone = (measure_systems([own], work, network, blocks=blocks) for own in systems)
        return {system: row for rows in alone for system, row in rows.items()}
    return {
        system: {"figures": asdict(figures(readings, system.block))}
        for system, readings in zip(systems, zip(*ranks, strict=True), strict=True)
    }


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
        missing = obstacle(system)
        if missing is not None:
            print(f"{system.title}: left out, {missing}")  # not stored: a later start may have it
        elif keys[system] not in store:
            wanted.append(system)
    together = [system for system in wanted if not system.expected_failure]
    starts = [[system] for system in wanted if system.expected_failure]
    for start in [together, *starts] if together else starts:
        for system, row in measure_systems(start, work, network, blocks=blocks).items():
            store.add(keys[system], {"kind": kind, "system": system.name, "run": run, **row})
            print(f"{kind}, run {run}, {system.title}: {_in_short(row)}", flush=True)


def _in_short(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"failed, {found['failed']}"
    own = found["figures"]
    ratio = own["step_s"] / own["control_s"]
    return f"{1e3 * own['step_s']:.0f} ms a step, {ratio:.2f} of the limit"


def why(error: RuntimeError | TimeoutError) -> str:
    """The line that says most of a failure: the last that names an error."""
    text = str(error)
    if isinstance(error, TimeoutError):
        return text.partition("\n")[0]
    named = [line.strip() for line in text.splitlines() if "Error: " in line]
    return (named or text.splitlines() or ["no word"])[-1][:_WORTH_READING]
