"""Tests of wrong arguments of `lightning-hier lighthouse`."""

from __future__ import annotations

import socket

import pytest

from lightning_hier.cli.lighthouse import run


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--min_groups", "0"], "--min_groups must be a whole number of at least 1, got 0"),
        (["--join_timeout_s", "-1"], "--join_timeout_s must be a finite number of .*, got -1.0"),
        (["--heartbeat_timeout_s", "nan"], "--heartbeat_timeout_s must be a finite number"),
        (["--heartbeat_timeout_s", "4e-4"], "must be .* of at least 0.001, got 0.0004"),
        (["--bind", "nowhere"], "could not be started at --bind=nowhere .*: pass a free address"),
    ],
)
def test_values_outside_their_range(args: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(args)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match=r"\(Address already in use .*\): pass a free address"):
            run(["--bind", f"127.0.0.1:{taken.getsockname()[1]}"])
