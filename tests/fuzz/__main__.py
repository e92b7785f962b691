"""`python -m tests.fuzz --minutes 10 --seed 1`: run random cases until the time is up.

If a case fails, its seed and settings are printed, and the exit code is 1. `--case SEED` runs only
the case of this seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from tests.fuzz.checking import SUCCESS, Verdict, check
from tests.fuzz.drawing import draw


def main(arguments: list[str] | None = None) -> int:
    """Run the cases that the command line selects, and return 1 if a property failed."""
    options = _options(arguments)
    if options.case is not None:
        verdict = check(draw(options.case))
        print(describe(options.case, verdict))
        return int(verdict.failed)
    first = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seeds from {first}, {options.workers} parallel cases, {options.minutes:g} minutes")
    ends: Counter[str] = Counter()
    failed = 0
    clear: dict[str, Counter[str]] = {}
    began = time.monotonic()
    for seed, verdict in _verdicts(first, options.workers, began + 60 * options.minutes):
        ends[f"FAILED {verdict.end}" if verdict.failed else verdict.end] += 1
        if verdict.failed:
            failed += 1
            print(describe(seed, verdict), flush=True)
        elif verdict.end != SUCCESS:
            clear.setdefault(verdict.end, Counter())[verdict.message[:160]] += 1
    print(summary(ends, clear, time.monotonic() - began))
    return int(failed > 0)


def _verdicts(first: int, workers: int, until_s: float) -> Iterator[tuple[int, Verdict]]:
    """Verdicts of the cases from a seed on, so many at a time. After `until_s`, none starts."""
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(_verdict, seed) for seed in range(first, first + workers)}
        seed = first + workers
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (own.result() for own in done)
            for _ in done:
                if time.monotonic() < until_s:
                    running.add(pool.submit(_verdict, seed))
                    seed += 1


def _verdict(seed: int) -> tuple[int, Verdict]:
    try:
        return seed, check(draw(seed))
    except Exception:  # an error of the fuzzer, which is reported as a failed case
        failed = Verdict("of the fuzzer itself", "see below", True, traceback.format_exc())
        return seed, failed


def describe(seed: int, verdict: Verdict) -> str:
    """The result of a case as text, with its settings if it failed."""
    verb = "FAILED" if verdict.failed else "ended by"
    lines = [f"seed {seed} {verb} {verdict.end}: {verdict.message}"]
    if verdict.failed:
        lines += [str(draw(seed)), f"again: python -m tests.fuzz --case {seed}", verdict.traceback]
    return "\n".join(line for line in lines if line)


def summary(ends: Counter[str], clear: dict[str, Counter[str]], seconds: float) -> str:
    """The number of cases for each end, and the most frequent messages of clear errors."""
    number = sum(ends.values())
    lines = [f"{number} cases in {seconds / 60:.1f} minutes"]
    for end, count in ends.most_common():
        lines.append(f"{count:6} {count / max(1, number):4.0%} {end}")
        lines += [f"{n:14} {text}" for text, n in clear.get(end, Counter()).most_common(5)]
    return "\n".join(lines)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="time after which no case starts"
    )
    parser.add_argument("--seed", type=int, help="seed of the first case; the next ones follow")
    parser.add_argument("--case", type=int, help="run the case of this seed only")
    parser.add_argument("--workers", type=int, default=2, help="number of parallel cases")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
