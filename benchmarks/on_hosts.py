"""Run a module under torchrun on emulated hosts, to test it over a slow network.

    python -m benchmarks.on_hosts --hosts 2 --devices 2 --rate 100mbit train --strategy bmuf_gtc

runs ``torchrun -m train --strategy bmuf_gtc`` on two hosts of two ranks, with a link of 100 Mbit/s
each. Hosts are network namespaces of this machine (Linux, root, iproute2). If they cannot be
created, a message is printed, and ranks share the loopback.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.hosts import hosts_or_loopback, missing_requirement
from benchmarks.launch import run_module


def main(args: Sequence[str] | None = None) -> None:
    """Run the module, and print the output of the first host.

    Raises:
        RuntimeError: the agent of a host has failed. The message contains the output of all hosts.
        TimeoutError: the run was not complete within the limit.

    """
    options = _parser().parse_args(args)
    missing = missing_requirement()
    if missing is not None:
        print(f"no emulated hosts: {missing}; ranks share the loopback", file=sys.stderr)
    created = hosts_or_loopback(options.hosts, options.rate, loopback=missing is not None)
    with TemporaryDirectory() as folder, created as emulated:
        run_module(
            emulated,
            options.devices,
            options.module,
            *options.arguments,
            folder=Path(folder),
            limit_s=options.limit_s,
        )
        print((Path(folder) / "host0.log").read_text(), end="")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.on_hosts", description=__doc__)
    parser.add_argument("--hosts", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--devices", type=int, default=1, help="ranks per host (%(default)s)")
    parser.add_argument("--rate", help="rate of each link, such as 100mbit (default: no limit)")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="time limit (%(default)s)")
    parser.add_argument("module", help="module to run, also from the current folder")
    parser.add_argument("arguments", nargs=REMAINDER, help="arguments of the module")
    return parser


if __name__ == "__main__":
    main()
