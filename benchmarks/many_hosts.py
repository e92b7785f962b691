"""One block synchronisation with many hosts of one rank, beside the planner's prediction.

    python -m benchmarks.many_hosts --hosts 4 8 16

The model is small and the links are slow, so that the link is the limit although all hosts share
the cores of one machine. The prediction uses the goodput of the link, and the planner's default
rate of copies. The last rows are predictions only: the time for up to 1,000 hosts at a latency that
emulated hosts do not have.
"""

from __future__ import annotations

import argparse

from benchmarks.hosts import needs_loopback
from benchmarks.performance.job import Network
from benchmarks.performance.link import bytes_to_send
from benchmarks.performance.sections import synchronisations
from benchmarks.performance.synchronisation import Variant
from benchmarks.performance.work import Work
from examples.tables import markdown
from lightning_hier.planning import Link, Workload
from lightning_hier.planning import Network as Cluster
from lightning_hier.planning.synchronisation import synchronise

WORK = Work(features=64, cells=128, layers=2, senones=512)

_LATENCY_S = 0.01
_VARIANTS = [Variant(across_dtype=dtype) for dtype in ("float32", "int8")]


def predicted(work: Work, hosts: int, variant: Variant, goodput: float, latency_s: float) -> float:
    """Return the seconds that the planner predicts for a synchronisation."""
    link = Link(bytes_per_second=goodput, latency_s=latency_s)
    cluster = Cluster(hosts=hosts, devices=1, within=link, between=link)
    workload = Workload(parameters=work.parameters, step_s=work.step_s)
    return synchronise(workload, cluster, variant.planner_settings()).blocking_s


def measure(hosts: int, rate: str, *, loopback: bool) -> list[tuple[str, ...]]:
    """Measure with this number of hosts, and return a row for each dtype."""
    network = Network.read(f"{hosts}x1", rate, loopback=loopback)
    measured = synchronisations(network, WORK, _VARIANTS, repetitions=3)
    rows: list[tuple[str, ...]] = []
    for variant in _VARIANTS:
        seconds, wire_s = (measured[variant.name][name] for name in ("seconds", "wire_s"))
        goodput = bytes_to_send(WORK.model_bytes, hosts) / wire_s
        expected = predicted(WORK, hosts, variant, goodput, 0.0)
        rows.append((str(hosts), variant.across_dtype, f"{seconds:.2f}", f"{wire_s:.2f}",
                     f"{expected:.2f}", f"{expected / seconds - 1:+.0%}"))  # fmt: skip
    return rows


def main() -> None:
    """Print measurements with predictions, and predictions of many more hosts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rate", default="10mbit", help="rate of each link, for tc")
    options = parser.parse_args()
    loopback = needs_loopback()
    rows = [
        row for hosts in options.hosts for row in measure(hosts, options.rate, loopback=loopback)
    ]
    header = ("hosts", "dtype", "seconds", "wire time, float32", "predicted", "deviation")
    print(markdown(header, rows))
    large = Work()
    rows = [
        (str(hosts), *(f"{predicted(large, hosts, variant, 119e6, _LATENCY_S):.1f}"
                       for variant in _VARIANTS))
        for hosts in (4, 32, 100, 1000)
    ]  # fmt: skip
    print(f"\nPredicted seconds at {1e3 * _LATENCY_S:.0f} ms, {large.parameters / 1e6:.1f}M "
          "parameters, 1 Gbit/s\n")  # fmt: skip
    print(markdown(("hosts", *(variant.across_dtype for variant in _VARIANTS)), rows))


if __name__ == "__main__":
    main()
