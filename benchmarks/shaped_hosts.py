"""Two emulated hosts with a slow link between them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.hosts import Host, hosts

# A packet of a veth pair may hold 64 KiB, and the bucket must take it whole.
_BUCKET = "256kb"
_LONGEST_QUEUE = "50ms"


@contextmanager
def shaped_hosts(rate: str) -> Iterator[list[Host]]:
    """Two hosts that send to each other at ``rate`` in each direction; removed at the end.

    A token bucket shapes what leaves a host. What leaves one of two is what the other receives, so
    both directions are shaped.

    Args:
        rate: as ``tc`` reads it, such as ``"1gbit"``.

    Raises:
        subprocess.CalledProcessError: no right to make namespaces, or a rate that can't be read.

    """
    with hosts(2) as pair:
        for host in pair:
            _shape(host, rate)
        yield pair


def _shape(host: Host, rate: str) -> None:
    bucket = ["tbf", "rate", rate, "burst", _BUCKET, "latency", _LONGEST_QUEUE]
    command = ["tc", "-n", host.namespace, "qdisc", "add", "dev", "eth0", "root", *bucket]
    subprocess.run(command, check=True, capture_output=True, text=True)
