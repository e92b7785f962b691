"""The command `measure`: its arguments."""

from __future__ import annotations

from pathlib import Path

from lightning_hier.cli.measure.measuring import measure
from lightning_hier.cli.parsing import CommandParser

_DESCRIPTION = """\
Time the links of a cluster, and a step of your module, for `lightning-hier plan`.

Start one rank for each device, as for training, while nothing else uses the links:

  torchrun --nnodes 2 --nproc-per-node 4 ... -m lightning_hier measure --config train.yaml

Without a config only links are timed; started alone, only the module's step."""


def run(args: list[str]) -> None:
    """Measure, print a table on rank 0 and write the JSON file. Every rank must call it.

    Args:
        args: of the command line, without the command.

    Raises:
        ValueError: a bad value, or nothing to measure.
        PeerError: a rank did not take part within the time limit; names it.
        OSError: the file can't be written.

    """
    measure(_parser().parse_args(args))


def _parser() -> CommandParser:
    parser = CommandParser("measure", _DESCRIPTION)
    add = parser.add_argument
    add("--out", type=Path, default=Path("network.json"), help="written by rank 0 (%(default)s)")
    add("--config", action="append", default=[], help="YAML of the training whose step is timed")
    add("--steps", type=int, default=20, help="of the module; the second half counts (%(default)s)")
    add(
        "--sizes",
        type=_bytes,
        nargs="+",
        default=[1 << 12, 1 << 16, 1 << 20, 1 << 23],
        help="of messages: bytes, or 64K, 8M (4K 64K 1M 8M)",
    )
    add("--repeats", type=int, default=20, help="of each size, if time allows (%(default)s)")
    add("--budget-s", type=float, default=2.0, help="seconds for one size (%(default)s)")
    add("--timeout-s", type=float, default=300.0, help="of any wait for a rank (%(default)s)")
    add("--accelerator", choices=("auto", "cpu", "gpu"), default="auto")
    return parser


def _bytes(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    return int(text[:-1] if unit > 1 else text) * unit
