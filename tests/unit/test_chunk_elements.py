"""Length of the chunks of a synchronisation, which the planner counts."""

from __future__ import annotations

import pytest

from lightning_hier.algorithms.exchange_chunks import chunk_elements
from lightning_hier.planning import Link, Network, Processor, Workload
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.prediction import Settings
from lightning_hier.planning.synchronisation import _Fragment

CASES = [
    ("cpu", False, False, 1 << 19),
    ("cpu", False, True, 1 << 21),
    ("cpu", True, False, 1 << 20),
    ("cpu", True, True, 1 << 20),
    ("cuda", False, False, 1 << 25),
    ("cuda", True, True, 1 << 25),
]


@pytest.mark.parametrize(("device", "quantised", "one_host", "elements"), CASES)
def test_chunks_have_the_length_that_the_planner_counts(
    device: str, quantised: bool, one_host: bool, elements: int
) -> None:
    on_cpu = device == "cpu"
    assert chunk_elements(on_cpu=on_cpu, quantised=quantised, one_host=one_host) == elements
    link = Link(bytes_per_second=1e9, latency_s=1e-3)
    processor = Processor(cores=None if device == "cuda" else 2)
    network = Network(
        hosts=1 if one_host else 2, devices=2, within=link, between=link, processor=processor
    )
    dtype = "int8" if quantised else "same"
    layout = Layout(network, Settings(density=None, group_size=1, across_dtype=dtype))
    workload = Workload(parameters=3 * elements, step_s=0.1)
    assert _Fragment(workload, layout, moments=False).chunks == 3
