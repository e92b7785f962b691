"""The measurements beside the table of systems: each is one line in the store for a run."""

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
from benchmarks.performance.rows import ranks_do
from benchmarks.performance.synchronisation import Synchronisations, Variant
from benchmarks.performance.work import Work


def synchronisations(
    network: Network, work: Work, chosen: Sequence[Variant], *, repetitions: int = 5
) -> dict[str, dict[str, float]]:
    """Every variant's time against the wire time of float32, its bytes and its memory, by name.

    The time is that of the slowest rank, median of the repetitions; memory is that of the rank
    that needs most, in models.
    """
    nbytes = goodput_bytes(network)
    readings = ranks_do(
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
    found = {variant.name: [own[variant.name] for own in readings] for variant in chosen}
    return {name: synchronisation_figures(own, network, work) for name, own in found.items()}


def synchronisation_figures(
    ranks: Sequence[dict[str, Any]], network: Network, work: Work
) -> dict[str, float]:
    """Of one variant, out of what all ranks have measured."""
    slowest = [max(taken) for taken in zip(*(own["seconds"] for own in ranks), strict=True)]
    seconds = statistics.median(slowest)
    wire_s = wire_seconds(bytes_to_send(work.model_bytes, network.hosts), ranks[0]["goodput"])
    return {
        "seconds": seconds,
        "wire_s": wire_s,
        "ratio": seconds / wire_s,
        "least_ratio": min(slowest) / wire_s,
        "host_models": max(statistics.median(own["sent_bytes"]) for own in ranks)
        / work.model_bytes,
        "extra_models": max(own["extra_tensor_bytes"] for own in ranks) / work.model_bytes,
        "extra_resident_models": max(own["extra_resident_bytes"] for own in ranks)
        / work.model_bytes,
    }


def between(
    work: Work, *, loopback: bool, ranks: int = 2, pairs: int = 8, window: int = 20
) -> dict[str, float]:
    """A step of BMUF that ends no block against the bare local step: mean of the ranks' ratios."""
    network = Network(hosts=ranks, ranks_per_host=1, rate=None, loopback=loopback)
    steps = Steps(window=window)

    def argument(folder: str) -> str:
        return Job(
            work=work, network=network, steps=steps, goodput_bytes=0, folder=folder
        ).encoded()

    readings = ranks_do(network, "benchmarks.performance.between", argument, str(pairs))
    found = [[Pair(**pair) for pair in own] for own in readings]
    every = [pair for own in found for pair in own]
    return {
        "ratio": statistics.fmean(ratio(own, work.step_s) for own in found),
        "processor_ratio": statistics.fmean(processor_ratio(own, work.step_s) for own in found),
        "added_ms": 1e3 * statistics.median(pair.ours_s - pair.bare_s for pair in every),
    }


def encodings(sizes: Sequence[int], densities: Sequence[float]) -> list[dict[str, Any]]:
    """Of every size at every density, on one core of this process."""
    torch.set_num_threads(1)
    found = [
        encoding.measure(size, density, repetitions=encoding.repetitions_for(size))
        for size in sizes
        for density in densities
    ]
    return [asdict(own) | {"ratio": own.ratio} for own in found]
