"""`python -m tests.fuzz --minutes 10 --seed 1`: cases one after the other, until time is up.

A case that fails prints its seed and settings; the exit code is then 1. `--case SEED` runs one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.fuzz.checking import SUCCESS, Verdict, check
from tests.fuzz.drawing import draw
from tests.fuzz.workers import verdicts


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says; 1 if a property failed."""
    options = _options(arguments)
    if options.case is not None:
        verdict = check(draw(options.case))
        print(describe(options.case, verdict))
        return int(verdict.failed)
    first = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seeds from {first}, {options.workers} cases at a time, {options.minutes:g} minutes")
    ends: Counter[str] = Counter()
    failed = 0
    clear: dict[str, Counter[str]] = {}
    began = time.monotonic()
    for seed, verdict in verdicts(first, options.workers, began + 60 * options.minutes):
        ends[f"FAILED {verdict.end}" if verdict.failed else verdict.end] += 1
        if verdict.failed:
            failed += 1
            print(describe(seed, verdict), flush=True)
        elif verdict.end != SUCCESS:
            clear.setdefault(verdict.end, Counter())[verdict.message[:160]] += 1
    print(summary(ends, clear, time.monotonic() - began))
    return int(failed > 0)


def describe(seed: int, verdict: Verdict) -> str:
    """A case and how it ended, as text."""
    said = "FAILED" if verdict.failed else "ended by"
    lines = [f"seed {seed} {said} {verdict.end}: {verdict.message}"]
    if verdict.failed:
        lines += [str(draw(seed)), f"again: python -m tests.fuzz --case {seed}", verdict.traceback]
    return "\n".join(line for line in lines if line)


def summary(ends: Counter[str], clear: dict[str, Counter[str]], seconds: float) -> str:
    """How many cases ended in which way, and what the clear errors said."""
    number = sum(ends.values())
    lines = [f"{number} cases in {seconds / 60:.1f} minutes"]
    for end, count in ends.most_common():
        lines.append(f"{count:6} {count / max(1, number):4.0%} {end}")
        lines += [f"{n:14} {text}" for text, n in clear.get(end, Counter()).most_common(5)]
    return "\n".join(lines)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="when to begin no more cases")
    parser.add_argument("--seed", type=int, help="of the first case; the others count on from it")
    parser.add_argument("--case", type=int, help="run the case of this seed only")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
