"""Train in three groups, kill one of them in the middle of a block, and start it again.

python -m examples.elastic.demo            under 3 minutes on 2 cores
python -m examples.elastic.demo --short    under 45 seconds
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from examples.elastic.jobs import Job, LighthouseJob, end_of
from examples.elastic.loss_plot import plot_losses
from examples.elastic.step_log import Line, read_log

PLOT = Path("outputs/elastic/loss.png")
GROUPS, KILLED = 3, 1
MOST_STEPS = 100_000
_POLL_S = 0.02


@dataclass(frozen=True)
class Settings:
    """Settings of a demo.

    Attributes:
        steps_after: steps of the run after the return of the group, at least.
        kill_step: step after which a group is killed.
        downtime_s: seconds until it is started again.
        step_s: minimum duration of a step.
        block_size: number of steps of a block.
        limit_s: time limit of every wait.

    """

    steps_after: int
    kill_step: int
    downtime_s: float
    step_s: float = 0.05
    block_size: int = 20
    limit_s: float = 120.0


FULL = Settings(steps_after=1000, kill_step=310, downtime_s=5.0)
SHORT = Settings(steps_after=100, kill_step=50, downtime_s=1.0)


class Demo:
    """Three groups and their Lighthouse. Leaving the context kills them.

    Args:
        settings: settings.
        folder: existing folder for logs and output.

    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._last_step = folder / "last_step.txt"
        self._stack = ExitStack()
        self._start_s = time.monotonic()
        self._lighthouse = self._stack.enter_context(LighthouseJob(folder / "lighthouse.txt"))
        self._jobs = {group: self._start(group) for group in range(GROUPS)}
        self._print(f"a Lighthouse and {GROUPS} groups are started")

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> tuple[int, int]:
        """Train, kill a group, and start it again.

        Returns:
            The step at which the group was killed, and the step from which it trained again.

        Raises:
            RuntimeError: a group failed, or a wait exceeded its limit.

        """
        settings = self._settings
        self._wait(lambda: all(self.log(group) for group in range(GROUPS)), "training")
        self._print("all groups train")
        killed_step, killed_s = self._kill()
        self._wait(lambda: all(self._blocks_after(killed_s)), "a synchronisation of the others")
        longest = max(pause_after(self.log(group), killed_s) for group in self._others)
        names = " and ".join(map(str, self._others))
        self._print(
            f"groups {names} have synchronised without it: the longest pause between two of "
            f"their steps was {longest:.1f} s"
        )
        time.sleep(max(0.0, killed_s + settings.downtime_s - time.monotonic()))
        self._jobs[KILLED] = self._start(KILLED)
        self._print(f"group {KILLED} is started again")
        self._wait(self._has_rejoined, f"the return of group {KILLED}")
        first = next(line for line in self.log(KILLED) if line.pid == self._jobs[KILLED].pid)
        downtime_s = first.time_s - killed_s
        self._print(
            f"group {KILLED} trains again, {downtime_s:.1f} s after it was killed, from step "
            f"{first.step} with the model of the others"
        )
        last_step = self._end_at(first.step + settings.steps_after)
        self._wait(lambda: all(job.code == 0 for job in self._jobs.values()), "the end")
        self._print(f"all groups have reached step {last_step}")
        return killed_step, first.step

    def log(self, group: int) -> list[Line]:
        """Return the log of a group so far."""
        return read_log(self._folder / f"group_{group}.jsonl")

    @property
    def _others(self) -> list[int]:
        return [group for group in range(GROUPS) if group != KILLED]

    def _start(self, group: int) -> Job:
        settings = self._settings
        values = {
            "lighthouse": self._lighthouse.address,
            "group": group,
            "groups": GROUPS,
            "steps": MOST_STEPS,
            "last_step": self._last_step,
            "block_size": settings.block_size,
            "step_s": settings.step_s,
            "log": self._folder / f"group_{group}.jsonl",
        }
        options = [text for name, value in values.items() for text in (f"--{name}", str(value))]
        output = self._folder / f"group_{group}.txt"
        return self._stack.enter_context(
            Job((sys.executable, "-m", "examples.elastic.train", *options), output)
        )

    def _kill(self) -> tuple[int, float]:
        """Kill a group in the middle of a block. Return the step and the time."""
        settings = self._settings

        def kill_step_reached() -> bool:
            lines = self.log(KILLED)
            return bool(lines) and lines[-1].step >= settings.kill_step

        self._wait(kill_step_reached, f"step {settings.kill_step}")
        self._jobs.pop(KILLED).kill()
        killed_s, step = time.monotonic(), self.log(KILLED)[-1].step
        block_step = step % settings.block_size
        self._print(f"group {KILLED} is killed at step {step}, {block_step} steps into a block")
        return step, killed_s

    def _end_at(self, step: int) -> int:
        """End the run of all groups at the end of the block after ``step``. Returns its step."""
        # The end of a block, so that all groups end with the same model.
        blocks = ceil(step / self._settings.block_size) + 1
        last_step = blocks * self._settings.block_size
        partial = self._last_step.with_suffix(".partial")
        partial.write_text(str(last_step))
        partial.replace(self._last_step)
        return last_step

    def _blocks_after(self, time_s: float) -> list[bool]:
        """Return, for each of the other groups, whether it has ended a block after ``time_s``."""
        logs = [self.log(group) for group in self._others]
        return [
            any(line.event == "block" and line.time_s > time_s for line in lines) for lines in logs
        ]

    def _has_rejoined(self) -> bool:
        lines, pid = self.log(KILLED), self._jobs[KILLED].pid
        return any(line.pid == pid for line in lines)

    def _wait(self, done: Callable[[], bool], event: str) -> None:
        """Wait until ``done`` returns True.

        Raises:
            RuntimeError: a group failed, or the time limit was exceeded.

        """
        deadline_s = time.monotonic() + self._settings.limit_s
        while not done():
            for group, job in self._jobs.items():
                if job.code not in (None, 0):
                    raise RuntimeError(
                        f"group {group} exited with code {job.code}:\n{end_of(job.output)}"
                    )
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{event}: not within {self._settings.limit_s:.0f} s")
            time.sleep(_POLL_S)

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self._start_s:6.1f} s  {text}", flush=True)


def pause_after(lines: Sequence[Line], time_s: float) -> float:
    """Return the longest time between two steps of which the second is after ``time_s``."""
    pairs = zip(lines, lines[1:], strict=False)
    return max((b.time_s - a.time_s for a, b in pairs if b.time_s > time_s), default=0.0)


def different_models(logs: Sequence[Sequence[Line]]) -> list[str]:
    """Return the ends of blocks, and of the run, at which the models of the groups differ."""
    digests_at: dict[tuple[str, int], set[str | None]] = {}
    for line in (line for lines in logs for line in lines if line.event in ("block", "end")):
        digests_at.setdefault((line.event, line.step), set()).add(line.digest)
    return [f"{event} {step}" for (event, step), digests in digests_at.items() if len(digests) > 1]


def main() -> int:
    """Run the demo, and plot the losses."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="under 45 seconds")
    settings = SHORT if parser.parse_args().short else FULL
    with tempfile.TemporaryDirectory() as folder, Demo(settings, Path(folder)) as demo:
        try:
            killed_step, rejoined_step = demo.run()
        except RuntimeError as error:
            print(f"The demo failed: {error}", file=sys.stderr)
            return 1
        logs = {f"group {group}": demo.log(group) for group in range(GROUPS)}
    marks = {"killed": killed_step, "back": rejoined_step}
    title = f"Digits: group {KILLED} of {GROUPS} is killed and rejoins"
    plot_losses(logs, PLOT, title=title, marks=marks, steps=settings.block_size)
    print(f"\nLoss of each group: {PLOT}")
    different = different_models(list(logs.values()))
    if different:
        print(f"The models of the groups differ: {', '.join(different)}", file=sys.stderr)
        return 1
    digest = logs["group 0"][-1].digest
    print(f"All groups have the same model at the end of every block and of the run: {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
