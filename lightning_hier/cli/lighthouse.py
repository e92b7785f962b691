"""`lightning-hier lighthouse`: the Lighthouse of torchft, for groups that come and go."""

from __future__ import annotations

import signal
import threading

from lightning_hier.algorithms.arguments import check_whole, is_number
from lightning_hier.cli.mistakes import CommandParser

_DESCRIPTION = """\
Serve quorums for groups that come and go (membership=TorchFT(...)).

It needs no GPU and little memory. Anyone who reaches its port can take part in the
quorums: open it to the hosts of the groups only."""

# A limit in seconds that is not 0 in the milliseconds of torchft.
_LEAST_S = 0.001


def run(args: list[str]) -> None:
    """Serve until the process is interrupted or terminated.

    Raises:
        ValueError: a limit is outside its range, or the server could not be started.

    """
    asked = _parser().parse_args(args)
    check_whole("--min_groups", asked.min_groups)
    for name in ("join_timeout_s", "heartbeat_timeout_s"):
        value = getattr(asked, name)
        if not is_number(value) or value < _LEAST_S:
            raise ValueError(
                f"--{name} must be a finite number of at least {_LEAST_S}, got {value!r}"
            )
    from lightning_hier.membership.torchft import check_torchft, quiet_torchft

    check_torchft()
    quiet_torchft()  # before the import, because torchft reads its settings when it is loaded
    from torchft.coordination import LighthouseServer

    try:
        server = LighthouseServer(
            bind=asked.bind,
            min_replicas=asked.min_groups,
            join_timeout_ms=round(1000 * asked.join_timeout_s),
            quorum_tick_ms=50,
            heartbeat_timeout_ms=round(1000 * asked.heartbeat_timeout_s),
        )
    except RuntimeError as error:
        raise ValueError(
            f"the Lighthouse could not be started at --bind={asked.bind} ({error}): pass a free "
            "address and port of this host, such as 0.0.0.0:29511"
        ) from error
    # Flushed, because a script that starts the groups may wait for this line.
    print(f"Lighthouse at {_address(asked.bind, server.address())}", flush=True)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    server.shutdown()


def _address(bind: str, server: str) -> str:
    """Address for the groups: that of the server, with the host of ``bind`` if it names one."""
    host = bind.rpartition(":")[0]
    return (
        server if host in ("", "[::]", "0.0.0.0") else f"http://{host}:{server.rpartition(':')[2]}"
    )


def _parser() -> CommandParser:
    parser = CommandParser("lighthouse", _DESCRIPTION)
    add = parser.add_argument
    listens = "address and port on which it listens (%(default)s)"
    add("--bind", default="[::]:29510", help=listens)
    add(
        "--min_groups", type=int, default=1, help="least number of groups in a quorum (%(default)s)"
    )
    join = "seconds that a quorum waits for groups that are alive but have not come (%(default)s)"
    add("--join_timeout_s", type=float, default=60.0, help=join)
    heartbeat = "seconds without a heartbeat after which a group is lost (%(default)s)"
    add("--heartbeat_timeout_s", type=float, default=5.0, help=heartbeat)
    return parser
