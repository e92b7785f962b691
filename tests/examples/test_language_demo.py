"""The demo of the language example: its runs, its table, its sentences, its picture."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from examples import run_store
from examples.language import demo
from examples.language.runs import Result, Settings

PNG = b"\x89PNG"


def outcome(
    settings: Settings,
    *,
    test: float = 3.0,
    across_mb: Sequence[int] = (100, 200, 400),
    seconds: float = 40.4,
) -> Result:
    bits = (5.0, 4.0, 3.1)
    return Result(
        settings=settings.portable_settings(),
        curve=[
            {"step": 100 * number, "across_bytes": sent * 10**6, "bits_per_byte": value}
            for number, (sent, value) in enumerate(zip(across_mb, bits, strict=True), start=1)
        ],
        test_bits_per_byte=test,
        group_bytes=50_000_000 if settings.system == "bmuf_adam" else 0,
        across_bytes=across_mb[-1] * 10**6,
        train_seconds=seconds,
        steps=300,
    )


BMUF_ADAM = outcome(Settings(system="bmuf_adam"))
DDP = outcome(Settings(system="ddp"), test=3.03, across_mb=(300, 700, 2000), seconds=38.0)


def test_a_sentence_says_who_wins_by_how_much_at_which_bytes() -> None:
    sentence = demo.who_wins(BMUF_ADAM, DDP)
    assert "BMUF-Adam has 3.000 bits per byte on test and DDP 3.030" in sentence
    assert "BMUF-Adam wins by 0.030 (1.0%)" in sentence
    assert "5.0 times fewer bytes across groups (400.0 and 2000.0 MB)" in sentence
    # DDP's first validation with as many bytes.
    assert "after 700.0 MB DDP has 4.000 on valid, where BMUF-Adam ends at 3.100" in sentence
    worse = demo.who_wins(replace(BMUF_ADAM, test_bits_per_byte=3.33), DDP)
    assert "DDP wins by 0.300 (9.0%)" in worse
    equal = demo.who_wins(replace(BMUF_ADAM, test_bits_per_byte=3.0304), DDP)
    assert "neither wins" in equal


def test_demo_prints_table_and_sentences_and_draws_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Settings] = []

    def fake_runs(module: str, arguments: str, *, ranks: int) -> None:
        assert (module, ranks) == ("examples.language.run_systems", 4)
        job = json.loads(arguments)
        started.extend(Settings(**each) for each in job["runs"])
        with Path(job["results"]).open("a") as file:
            for each in job["runs"]:
                given = BMUF_ADAM if each["system"] == "bmuf_adam" else DDP
                result = replace(given, settings=Settings(**each).portable_settings())
                file.write(json.dumps(asdict(result)) + "\n")

    monkeypatch.setattr(run_store, "run_module", fake_runs)
    monkeypatch.setattr(demo, "read_text", lambda: 0)
    monkeypatch.setattr(demo, "PLOT", tmp_path / "plots" / "demo.png")
    monkeypatch.setattr("sys.argv", ["demo", "--short"])
    demo.main()
    assert [settings.system for settings in started] == ["bmuf_adam", "ddp"]
    assert len({(s.steps, s.batch_windows, s.context, s.seed) for s in started}) == 1
    printed = capsys.readouterr().out
    assert len(re.findall(r"^\| (?:BMUF-Adam|DDP)", printed, re.MULTILINE)) == 2
    assert "BMUF-Adam wins by 0.030" in printed and "DDP is the better choice" in printed
    assert (tmp_path / "plots" / "demo.png").read_bytes().startswith(PNG)
