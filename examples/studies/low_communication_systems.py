"""The systems of ``low_communication``: settings of each row that differ from the default."""

from __future__ import annotations

from typing import Any

from examples.studies import low_communication_claims as claims

Changes = dict[str, Any]
Rows = dict[tuple[str, ...], Changes]
"""Changed settings by the labels of a row."""

BLOCK = 50
"""Default block size."""
SYNC: Changes = {"system": "synchronous"}
AVERAGING: Changes = {"outer_lr": 1.0, "outer_momentum": 0.0}
"""Outer step that applies the mean: model averaging, or SparseLoCo with sparse updates."""
FROM_N: Changes = {"outer_momentum": None}
LESS: Changes = {"outer_momentum": 0.5}
SHORT: Changes = {"beta1": 0.5}
INT4: Changes = {"across_dtype": "int4"}
ADAM: Changes = {"system": "bmuf_adam", "beta1": 0.5, "block_momentum": 0.9}
STREAMING: Changes = {"fragments": 4}
WARM: Changes = {"warmup_share": 0.1}
COSINE: Changes = {"schedule": "cosine", "warmup_share": 0.05}


def _block(size: int, **changes: Any) -> Changes:
    return {"block_size": size, **changes}


def by_momentum() -> Rows:
    """Return rows with different outer steps and block sizes."""
    outer: dict[str, Changes] = {
        claims.FIXED: {},
        claims.FROM_N: FROM_N,
        claims.LESS: LESS,
        claims.MEAN: AVERAGING,
        claims.SHORT: SHORT,
    }
    rows: Rows = {
        (name, str(size)): _block(size, **changes)
        for name, changes in outer.items()
        for size in (10, 50)
    }
    rows[claims.FIXED, "100"] = _block(100)
    return rows


def by_delay() -> Rows:
    """Return rows with different fragments, delays, merges and outer steps."""
    rows: Rows = {}
    for fragments, delay in ((1, 0), (4, 0), (4, 5), (4, 25), (1, 50)):
        timing = f"{BLOCK}, {fragments}, {delay}"
        delayed: Changes = {"fragments": fragments, "overlap": delay}
        rows[claims.FIXED, claims.PROGRESS, timing] = delayed
        if delay:
            rows[claims.FIXED, claims.HALF, timing] = {**delayed, "merge": 0.5}
    rows[claims.FIXED, claims.LOCAL, f"{BLOCK}, 4, 5"] = {**STREAMING, "overlap": 5, "merge": 1.0}
    outer: dict[str, Changes] = {
        claims.FIXED: {},
        claims.FROM_N: FROM_N,
        claims.LESS: LESS,
        claims.MEAN: AVERAGING,
    }
    for name, changes in outer.items():
        for size in (BLOCK, 10):
            for delay in (0, size):
                timing = f"{size}, 1, {delay}"
                rows[name, claims.PROGRESS, timing] = _block(size, overlap=delay, **changes)
    return rows


def by_updates() -> Rows:
    """Return rows with quantised and sparse updates."""
    rows: Rows = {}
    for name, density, dtype in claims.UPDATES:
        rows[claims.FIXED, "10", name] = _block(10, across_density=density, across_dtype=dtype)
    for density in (0.1, 0.05, 0.02, 0.01):
        rows[claims.MEAN, "10", claims.sparse(density)] = _block(
            10, across_density=density, **INT4, **AVERAGING
        )
    rows[claims.MEAN, "10", claims.sparse(0.02, claims.WHOLE)] = _block(
        10, **AVERAGING, across_density=0.02
    )
    rows[claims.FIXED, "50", claims.WHOLE] = {}
    rows[claims.FIXED, "50", claims.INT4] = INT4
    rows[claims.FIXED, "50", claims.STREAMED] = {**INT4, **STREAMING, "overlap": 25}
    rows[claims.FIXED, "100", claims.INT4] = _block(100, **INT4)
    return rows


def by_moments() -> Rows:
    """Return rows of BMUF-Adam with different intervals of the exchange of moments."""
    rows: Rows = {
        (claims.ADAM, "10", str(every)): _block(10, **ADAM, moments_every=every)
        for every in (1, 3, 6)
    }
    rows[claims.ADAM, "50", "1"] = _block(50, **ADAM)
    rows[f"{claims.ADAM}, int4", "10", "6"] = _block(10, **ADAM, **INT4, moments_every=6)
    return rows


def by_rule(rate: float) -> Rows:
    """Return rows with QSR and with constant block sizes.

    With QSR, blocks begin to grow at half of the peak learning rate.
    """
    rule = {"qsr": rate / 2 * 10**0.5, "longest_block": 100}
    return {
        ("DiLoCo", "10"): _block(10, **COSINE),
        ("DiLoCo", claims.RULE): _block(10, **COSINE, **rule),
        ("DiLoCo", "20"): _block(20, **COSINE),
    }


def by_warmup() -> Rows:
    """Return rows without warm-up and with a short one, for several systems."""
    sparse = {**AVERAGING, **INT4, "across_density": 0.02}
    systems: dict[str, Changes] = {
        claims.blocks(claims.FIXED, 10): _block(10),
        claims.blocks(claims.FIXED, 50): {},
        claims.blocks(claims.SHORT, 10): _block(10, **SHORT),
        claims.blocks(f"{claims.FIXED}, {claims.LATE}", 50): {"overlap": 50},
        claims.blocks(f"{claims.FIXED}, {claims.STREAMED}", 50): {
            **INT4,
            **STREAMING,
            "overlap": 25,
        },
        claims.blocks(f"{claims.MEAN}, {claims.sparse(0.02)}", 10): _block(10, **sparse),
        claims.blocks(f"{claims.SHORT}, {claims.INT4}", 10): _block(10, **SHORT, **INT4),
        claims.blocks(f"{claims.SHORT}, {claims.INT4}", 50): {**SHORT, **INT4},
        claims.blocks(f"{claims.SHORT}, {claims.STREAMED}", 50): {
            **SHORT,
            **INT4,
            **STREAMING,
            "overlap": 25,
        },
        claims.blocks(claims.ADAM, 10): _block(10, **ADAM),
        claims.blocks(claims.ADAM, 50): _block(50, **ADAM),
        claims.blocks(claims.RARELY, 10): _block(10, **ADAM, **INT4, moments_every=6),
    }
    late = claims.blocks(f"{claims.SHORT}, {claims.STREAMED}", 50)
    rows: Rows = {
        (name, f"{share:.0%}"): {**changes, "warmup_share": share}
        for name, changes in systems.items()
        for share in (0.0, 0.02)
        if share or name != late
    }
    rows[claims.blocks(claims.FIXED, 50), "10%"] = {"warmup_share": 0.1}
    return rows


def of_few() -> Rows:
    """Return the rows of four workers."""
    return {
        (claims.SYNC, "-"): SYNC,
        (claims.FIXED, "100"): _block(100),
        (claims.FROM_N, "100"): _block(100, **FROM_N),
        (f"{claims.FIXED}, {claims.LATE}", "100"): _block(100, overlap=100),
        (f"{claims.FIXED}, {claims.INT4}", "100"): _block(100, **INT4),
        (claims.ADAM, "10"): _block(10, **ADAM),
    }


def of_many() -> Rows:
    """Return the rows of 64 workers."""
    return {
        (claims.SYNC, "-"): SYNC,
        (claims.FIXED, "10"): _block(10),
        (claims.FIXED, "50"): {},
        (claims.FROM_N, "10"): _block(10, **FROM_N),
        (claims.MEAN, "10"): _block(10, **AVERAGING),
        (f"{claims.FIXED}, {claims.LATE}", "10"): _block(10, overlap=10),
        (f"{claims.FIXED}, {claims.INT4}", "10"): _block(10, **INT4),
        (f"{claims.FIXED}, {claims.STREAMED}", "50"): {**INT4, **STREAMING, "overlap": 25},
        (f"{claims.MEAN}, {claims.sparse(0.02)}", "10"): _block(
            10, **AVERAGING, **INT4, across_density=0.02
        ),
        (claims.ADAM, "10"): _block(10, **ADAM),
        (claims.SHORT, "10"): _block(10, **SHORT),
        (f"{claims.SHORT}, {claims.WARM}", "10"): _block(10, **SHORT, **WARM),
        (f"{claims.ADAM}, {claims.WARM}", "10"): _block(10, **ADAM, **WARM),
        (f"{claims.RARELY}, {claims.WARM}", "10"): _block(
            10, **ADAM, **INT4, **WARM, moments_every=6
        ),
    }
