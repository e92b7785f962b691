"""Emulated hosts: their links keep the rate, and nothing of them is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hosts import hosts, made_by
from benchmarks.launch import run_module
from tests.waiting import wait_for_marks

_RATES = {"20mbit": 2_500_000, "80mbit": 10_000_000}


@pytest.mark.slow
@pytest.mark.needs_netns
def test_links_differ_as_their_rates_do_in_both_directions(tmp_path: Path) -> None:
    """A quarter of a second's worth is sent both ways; goodput in the ratio of the rates, 4."""
    found = {}
    for rate, bytes_per_s in _RATES.items():
        with hosts(3, rate) as three:
            run_module(three, 1, "tests.distributed.goodput_run", str(tmp_path),
                       str(bytes_per_s // 4), folder=tmp_path)  # fmt: skip
        found[rate] = json.loads((tmp_path / "goodput.json").read_text())
    for way in ("out", "in"):
        assert 3.0 < found["80mbit"][way] / found["20mbit"][way] < 5.0
        # Headers take a few percent of a rate, and no more comes through than that.
        assert 0.8 < found["20mbit"][way] / _RATES["20mbit"] < 1.1


@pytest.mark.needs_netns
def test_nothing_is_left_after_an_exception() -> None:
    with pytest.raises(KeyError, match="on purpose"), hosts(3, "1gbit"):
        assert len(made_by(os.getpid())) >= 7  # 3 namespaces, 3 links, a bridge
        raise KeyError("on purpose")
    assert not made_by(os.getpid())


@pytest.mark.needs_netns
def test_what_was_made_before_a_rate_that_cannot_be_read_is_removed() -> None:
    with pytest.raises(subprocess.CalledProcessError), hosts(2, "fast"):
        pass
    assert not made_by(os.getpid())


@pytest.mark.needs_netns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    # A shell that runs the tests in the background has them, and what they start, ignore SIGINT.
    code = (
        "import signal, sys, time; from pathlib import Path; from benchmarks.hosts import hosts\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with hosts(2, '1gbit') as found:\n"
        "    found[0].start(['sleep', '600'], Path(sys.argv[1]) / 'log')\n"
        "    (Path(sys.argv[1]) / 'up').touch()\n"
        "    time.sleep(600)"
    )
    program = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE)
    wait_for_marks(tmp_path, "up")
    assert made_by(program.pid)
    program.send_signal(number)
    program.communicate(timeout=280)
    assert program.returncode != 0
    assert not made_by(program.pid)
