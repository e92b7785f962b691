"""Measurements other than the table of systems. Each is one line of the store for a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import encoding
from benchmarks.performance.between import Pair, processor_ratio, ratio
from benchmarks.performance.job import Job, Network, Steps, goodput_bytes
from benchmarks.performance.link import bytes_to_send, wire_seconds
from benchmarks.performance.rows import run_ranks
from benchmarks.performance.synchronisation import Synchronisations, Variant
from benchmarks.performance.work import Work


def synchronisation_name(network: Network) -> str:
    """Return the name of the section with the synchronisations on a network."""
    return f"synchronisation, {network}"


def synchronisations(
    network: Network, work: Work, chosen: Sequence[Variant], *, repetitions: int = 5
) -> dict[str, dict[str, float]]:
    """Measure time, bytes and memory of a synchronisation for all variants, by name.

    Times are relative to the wire time of float32, for the slowest rank, median of the repetitions.
    Memory is that of the rank with the largest, as a multiple of the model's.
    """
    nbytes = goodput_bytes(network)
    readings = run_ranks(
        network,
        "benchmarks.performance.synchronisation",
        lambda folder: Synchronisations(
            work=work,
            variants=list(chosen),
            repetitions=repetitions,
            goodput_bytes=nbytes,
            ranks_per_host=network.ranks_per_host,
            folder=folder,
        ).encoded(),
    )
    return {
        variant.name: synchronisation_figures(
            [reading[variant.name] for reading in readings], network, work
        )
        for variant in chosen
    }


def synchronisation_figures(
    ranks: Sequence[dict[str, Any]], network: Network, work: Work
) -> dict[str, float]:
    """Compute the figures of one variant from the readings of all ranks."""
    slowest = [max(times) for times in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    seconds = statistics.median(slowest)
    wire_s = wire_seconds(bytes_to_send(work.model_bytes, network.hosts), ranks[0]["goodput"])
    return {
        "seconds": seconds,
        "wire_s": wire_s,
        "ratio": seconds / wire_s,
        "least_ratio": min(slowest) / wire_s,
        "host_models": max(statistics.median(rank["sent_bytes"]) for rank in ranks)
        / work.model_bytes,
        "extra_models": max(rank["extra_tensor_bytes"] for rank in ranks) / work.model_bytes,
        "extra_resident_models": max(rank["extra_resident_bytes"] for rank in ranks)
        / work.model_bytes,
    }


def between(
    work: Work, *, loopback: bool, ranks: int = 2, pairs: int = 8, window: int = 20
) -> dict[str, float]:
    """Measure a step of BMUF between synchronisations relative to a plain local step.

    Ratios are means over the ranks.
    """
    network = Network(hosts=ranks, ranks_per_host=1, rate=None, loopback=loopback)
    steps = Steps(window=window)

    def argument(folder: str) -> str:
        return Job(
            work=work, network=network, steps=steps, goodput_bytes=0, folder=folder
        ).encoded()

    readings = run_ranks(network, "benchmarks.performance.between", argument, str(pairs))
    by_rank = [[Pair(**pair) for pair in reading] for reading in readings]
    added_s = [pair.ours_s - pair.bare_s for of_rank in by_rank for pair in of_rank]
    return {
        "ratio": statistics.fmean(ratio(of_rank, work.step_s) for of_rank in by_rank),
        "processor_ratio": statistics.fmean(
            processor_ratio(of_rank, work.step_s) for of_rank in by_rank
        ),
        "added_ms": 1e3 * statistics.median(added_s),
    }


def encodings(sizes: Sequence[int], densities: Sequence[float]) -> list[dict[str, Any]]:
    """Measure the encoding of all sizes at all densities, on one core of this process."""
    torch.set_num_threads(1)
    measured = [
        encoding.measure(size, density, repetitions=encoding.repetitions_for(size))
        for size in sizes
        for density in densities
    ]
    return [asdict(one) | {"ratio": one.ratio} for one in measured]
