"""Run a module of yours under torchrun on emulated hosts: what would a slow network do to it?

    python -m benchmarks.on_hosts --hosts 2 --devices 2 --rate 100mbit train --strategy bmuf_gtc

runs ``torchrun -m train --strategy bmuf_gtc`` on two hosts of two ranks, each behind a link that
carries 100 Mbit/s. Hosts are network namespaces of this machine (Linux, root, iproute2); where they
cannot be made it says so, and ranks share the loopback instead.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.hosts import Host, hosts, loopback_hosts, missing_means
from benchmarks.launch import run_module


def main(args: Sequence[str] | None = None) -> None:
    """Run the module, and print what the first host said.

    Raises:
        RuntimeError: a host's agent has failed; has what all hosts said.
        TimeoutError: they have not come to an end within the limit.

    """
    asked = _parser().parse_args(args)
    with TemporaryDirectory() as folder, _made(asked) as found:
        run_module(
            found,
            asked.devices,
            asked.module,
            *asked.arguments,
            folder=Path(folder),
            limit_s=asked.limit_s,
        )
        print((Path(folder) / "host0.log").read_text(), end="")


@contextmanager
def _made(asked: Namespace) -> Iterator[list[Host]]:
    missing = missing_means()
    if missing is None:
        with hosts(asked.hosts, asked.rate) as found:
            yield found
    else:
        print(f"no emulated hosts: {missing}; ranks share the loopback", file=sys.stderr)
        yield loopback_hosts(asked.hosts)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.on_hosts", description=__doc__)
    parser.add_argument("--hosts", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--devices", type=int, default=1, help="ranks of each (%(default)s)")
    parser.add_argument("--rate", help="of each link, as tc reads it: 100mbit, 1gbit; default: any")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="of the run (%(default)s)")
    parser.add_argument("module", help="what torchrun runs by -m; found in the current folder too")
    parser.add_argument("arguments", nargs=REMAINDER, help="of the module")
    return parser


if __name__ == "__main__":
    main()
