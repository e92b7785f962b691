"""Tests of the sentences in the language example's demo. `.ci/run` runs the demo itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from examples.language import demo
from examples.language.runs import Result, Settings


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


def test_sentence_has_the_winner_the_margin_and_the_bytes() -> None:
    sentence = demo.score_comparison(BMUF_ADAM, DDP)
    assert "BMUF-Adam has 3.000 bits per byte on test and DDP 3.030" in sentence
    assert "BMUF-Adam wins by 0.030 (1.0%)" in sentence
    assert "5.0 times fewer bytes across groups (400.0 and 2000.0 MB)" in sentence
    # The first validation of DDP after at least as many bytes.
    assert "after 700.0 MB DDP has 4.000 on valid, where BMUF-Adam ends at 3.100" in sentence
    worse = demo.score_comparison(replace(BMUF_ADAM, test_bits_per_byte=3.33), DDP)
    assert "DDP wins by 0.300 (9.0%)" in worse
    equal = demo.score_comparison(replace(BMUF_ADAM, test_bits_per_byte=3.0304), DDP)
    assert "neither wins" in equal
