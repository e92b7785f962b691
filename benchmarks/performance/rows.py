"""Runs rows of the table: each system in its own processes, its control beside it."""

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
from benchmarks.performance.job import Job, Network, goodput_bytes, key_of, steps_for
from benchmarks.performance.store import Store
from benchmarks.performance.systems import System, obstacle
from benchmarks.performance.work import Work

_LIMIT_S = 900.0
# Of a row that is known to fail: it may do so by waiting for ever.
_FAILURE_LIMIT_S = 180.0
_WORTH_READING = 400

Say = Callable[[str], None]


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


def measure_row(system: System, work: Work, network: Network, *, blocks: int) -> dict[str, Any]:
    """One run of one system: its figures, or why there are none."""
    missing = obstacle(system)
    if missing is not None:
        return {"skipped": missing}
    steps = steps_for(system, work, network, blocks=blocks)
    nbytes = goodput_bytes(network)

    def argument(folder: str) -> str:
        return Job(
            system=system.name,
            work=work,
            network=network,
            steps=steps,
            goodput_bytes=nbytes,
            folder=folder,
        ).encoded()

    try:
        limit_s = _FAILURE_LIMIT_S if system.expected_failure else _LIMIT_S
        readings = ranks_do(network, "benchmarks.performance.rank", argument, limit_s=limit_s)
    except (RuntimeError, TimeoutError) as error:
        known = f" (known: {system.expected_failure})" if system.expected_failure else ""
        return {"failed": why(error) + known}
    return {"figures": asdict(figures(readings, system.block))}


def measure_rows(
    systems: Sequence[System],
    work: Work,
    network: Network,
    store: Store,
    *,
    run: int,
    blocks: int = 2,
    say: Say = print,
) -> None:
    """One run of all systems, one after the other; those that are in the store are left out."""
    for system in systems:
        kind = key_of(network, work)
        key = f"row/{kind}/{system.name}/{run}"
        if key in store:
            continue
        found = measure_row(system, work, network, blocks=blocks)
        if "skipped" in found:
            say(f"{system.title}: left out, {found['skipped']}")
            continue  # not kept: it may be there the next time
        store.add(key, {"kind": kind, "system": system.name, "run": run, **found})
        say(f"{kind}, run {run}, {system.title}: {_in_short(found)}")


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
