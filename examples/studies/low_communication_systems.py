"""The systems of ``low_communication``: what each row of its tables changes."""

from __future__ import annotations

from typing import Any

from examples.studies import low_communication_claims as claims

Changes = dict[str, Any]
Rows = dict[tuple[str, ...], Changes]
"""Changes of the settings by the labels of a row."""

BLOCK = 50
"""Steps, unless a row says another number."""
SYNC: Changes = {"system": "synchronous"}
AVERAGING: Changes = {"outer_lr": 1.0, "outer_momentum": 0.0}
"""An outer step that takes the mean: model averaging, and SparseLoCo if it is sparse."""
FROM_N: Changes = {"outer_momentum": None}
LESS: Changes = {"outer_momentum": 0.5}
SHORT: Changes = {"beta1": 0.5}
INT4: Changes = {"across_dtype": "int4"}
ADAM: Changes = {"system": "bmuf_adam", "beta1": 0.5, "block_momentum": 0.9}
STREAMING: Changes = {"fragments": 4}
WARM: Changes = {"warmup_share": 0.1}
COSINE: Changes = {"schedule": "cosine", "warmup_share": 0.05}


def _block(size: int, **own: Any) -> Changes:
    return {"block_size": size, **own}


def by_momentum() -> Rows:
    """Outer steps and block sizes, 16 workers."""
    outer: dict[str, Changes] = {
        claims.FIXED: {},
        claims.FROM_N: FROM_N,
        claims.LESS: LESS,
        claims.MEAN: AVERAGING,
        claims.SHORT: SHORT,
    }
    found: Rows = {
        (name, str(size)): _block(size, **own) for name, own in outer.items() for size in (10, 50)
    }
    found[claims.FIXED, "100"] = _block(100)
    return found


def by_delay() -> Rows:
    """Fragments, delays, merges and outer steps."""
    found: Rows = {}
    for fragments, delay in ((1, 0), (4, 0), (4, 5), (4, 25), (1, 50)):
        place = f"{BLOCK}, {fragments}, {delay}"
        own = {"fragments": fragments, "overlap": delay}
        found[claims.FIXED, claims.PROGRESS, place] = own
        if delay:
            found[claims.FIXED, claims.HALF, place] = {**own, "merge": 0.5}
    found[claims.FIXED, claims.LOCAL, f"{BLOCK}, 4, 5"] = {**STREAMING, "overlap": 5, "merge": 1.0}
    outer: dict[str, Changes] = {
        claims.FIXED: {},
        claims.FROM_N: FROM_N,
        claims.LESS: LESS,
        claims.MEAN: AVERAGING,
    }
    for name, changes in outer.items():
        for size in (BLOCK, 10):
            for delay in (0, size):
                place = f"{size}, 1, {delay}"
                found[name, claims.PROGRESS, place] = _block(size, overlap=delay, **changes)
    return found


def by_updates() -> Rows:
    """Rounded and sparse updates."""
    found: Rows = {}
    for name, density, dtype in claims.UPDATES:
        own = {"across_density": density, "across_dtype": dtype}
        found[claims.FIXED, "10", name] = _block(10, **own)
    for density in (0.1, 0.05, 0.02, 0.01):
        own = {"across_density": density, **INT4}
        found[claims.MEAN, "10", claims.sparse(density)] = _block(10, **own, **AVERAGING)
    found[claims.MEAN, "10", claims.sparse(0.02, claims.WHOLE)] = _block(
        10, **AVERAGING, across_density=0.02
    )
    found[claims.FIXED, "50", claims.WHOLE] = {}
    found[claims.FIXED, "50", claims.INT4] = INT4
    found[claims.FIXED, "50", claims.STREAMED] = {**INT4, **STREAMING, "overlap": 25}
    found[claims.FIXED, "100", claims.INT4] = _block(100, **INT4)
    return found


def by_moments() -> Rows:
    """BMUF-Adam."""
    found: Rows = {
        (claims.ADAM, "10", str(every)): _block(10, **ADAM, moments_every=every)
        for every in (1, 3, 6)
    }
    found[claims.ADAM, "50", "1"] = _block(50, **ADAM)
    found[f"{claims.ADAM}, int4", "10", "6"] = _block(10, **ADAM, **INT4, moments_every=6)
    return found


def by_rule(rate: float) -> Rows:
    """QSR beside blocks of a constant length; they begin to grow at half of the peak rate."""
    rule = {"qsr": rate / 2 * 10**0.5, "longest_block": 100}
    return {
        ("DiLoCo", "10"): _block(10, **COSINE),
        ("DiLoCo", claims.RULE): _block(10, **COSINE, **rule),
        ("DiLoCo", "20"): _block(20, **COSINE),
    }


def by_warmup() -> Rows:
    """Shares of the steps, and other systems with the shorter warm-up."""
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
    found: Rows = {
        (name, f"{share:.0%}"): {**own, "warmup_share": share}
        for name, own in systems.items()
        for share in (0.0, 0.02)
        if share or name != late
    }
    found[claims.blocks(claims.FIXED, 50), "10%"] = {"warmup_share": 0.1}
    return found


def of_few() -> Rows:
    """Four workers."""
    return {
        (claims.SYNC, "-"): SYNC,
        (claims.FIXED, "100"): _block(100),
        (claims.FROM_N, "100"): _block(100, **FROM_N),
        (f"{claims.FIXED}, {claims.LATE}", "100"): _block(100, overlap=100),
        (f"{claims.FIXED}, {claims.INT4}", "100"): _block(100, **INT4),
        (claims.ADAM, "10"): _block(10, **ADAM),
    }


def of_many() -> Rows:
    """64 workers."""
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
