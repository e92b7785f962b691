"""Train in three groups, kill one of them, start it again, and watch it come back.

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
from pathlib import Path

from examples.elastic.jobs import Job, LighthouseJob, end_of
from examples.elastic.loss_plot import plot_losses
from examples.elastic.step_log import Line, read_log

PLOT = Path("outputs/elastic/loss.png")
GROUPS, KILLED = 3, 1
_POLL_S = 0.02


@dataclass(frozen=True)
class Settings:
    """Settings of a demo.

    Attributes:
        steps: of the run.
        kill_step: step after which a group is killed.
        away_s: seconds until it is started again.
        step_s: least seconds of a step.
        block_size: steps of a block.
        limit_s: limit of every wait.

    """

    steps: int
    kill_step: int
    away_s: float
    step_s: float = 0.05
    block_size: int = 20
    limit_s: float = 120.0


FULL = Settings(steps=1600, kill_step=310, away_s=5.0)
SHORT = Settings(steps=320, kill_step=50, away_s=1.0)


class Demo:
    """Three groups and their Lighthouse. Leaving the context kills them.

    Args:
        settings: settings.
        folder: existing folder for logs and output.

    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._stack = ExitStack()
        self._begun_s = time.monotonic()
        self._lighthouse = self._stack.enter_context(LighthouseJob(folder / "lighthouse.txt"))
        self._jobs = {group: self._start(group) for group in range(GROUPS)}
        self._say(f"a Lighthouse and {GROUPS} groups are started")

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> tuple[int, int]:
        """Train, kill a group, and start it again.

        Returns:
            The step at which it was killed, and the one from which it trained again.

        Raises:
            RuntimeError: a group failed, or something took too long.

        """
        asked = self._settings
        self._wait(lambda: all(self.log(group) for group in range(GROUPS)), "training")
        self._say("all groups train")
        killed_at, killed_s = self._kill()
        self._wait(lambda: all(self._blocks_after(killed_s)), "a synchronisation of the others")
        longest = max(pause_after(self.log(group), killed_s) for group in self._others)
        names = " and ".join(map(str, self._others))
        self._say(
            f"groups {names} have synchronised without it: the longest pause between two of "
            f"their steps was {longest:.1f} s"
        )
        time.sleep(max(0.0, killed_s + asked.away_s - time.monotonic()))
        self._jobs[KILLED] = self._start(KILLED)
        self._say(f"group {KILLED} is started again")
        self._wait(lambda: self._is_back(), f"the return of group {KILLED}")
        back = next(line for line in self.log(KILLED) if line.pid == self._jobs[KILLED].pid)
        away_s = back.time_s - killed_s
        self._say(
            f"group {KILLED} trains again, {away_s:.1f} s after it was killed, from step "
            f"{back.step} with the model of the others"
        )
        self._wait(lambda: all(job.code == 0 for job in self._jobs.values()), "the end")
        self._say(f"all groups have reached step {asked.steps}")
        return killed_at, back.step

    def log(self, group: int) -> list[Line]:
        """What a group has written until now."""
        return read_log(self._folder / f"group_{group}.jsonl")

    @property
    def _others(self) -> list[int]:
        return [group for group in range(GROUPS) if group != KILLED]

    def _start(self, group: int) -> Job:
        asked = self._settings
        values = {
            "lighthouse": self._lighthouse.address,
            "group": group,
            "groups": GROUPS,
            "steps": asked.steps,
            "block_size": asked.block_size,
            "step_s": asked.step_s,
            "log": self._folder / f"group_{group}.jsonl",
        }
        options = [text for name, value in values.items() for text in (f"--{name}", str(value))]
        output = self._folder / f"group_{group}.txt"
        return self._stack.enter_context(Job(("examples.elastic.train", *options), output))

    def _kill(self) -> tuple[int, float]:
        """Kill a group in the middle of a block. Returns the step and the time."""
        asked = self._settings

        def in_block() -> bool:
            return (self.log(KILLED) or [_NOTHING])[-1].step >= asked.kill_step

        self._wait(in_block, f"step {asked.kill_step}")
        self._jobs.pop(KILLED).kill()
        killed_s, step = time.monotonic(), self.log(KILLED)[-1].step
        block = step % asked.block_size
        self._say(f"group {KILLED} is killed at step {step}, {block} steps into a block")
        return step, killed_s

    def _blocks_after(self, time_s: float) -> list[bool]:
        found = [self.log(group) for group in self._others]
        return [any(e.event == "block" and e.time_s > time_s for e in lines) for lines in found]

    def _is_back(self) -> bool:
        lines, pid = self.log(KILLED), self._jobs[KILLED].pid
        if all(self._jobs[group].code == 0 for group in self._others):
            raise RuntimeError(
                f"group {KILLED} was not back before the others had ended: the machine is too "
                "slow for so few steps"
            )
        return any(line.pid == pid for line in lines)

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + self._settings.limit_s
        while not done():
            for group, job in self._jobs.items():
                if job.code not in (None, 0):
                    raise RuntimeError(
                        f"group {group} has ended with {job.code}:\n{end_of(job.output)}"
                    )
            if time.monotonic() > until:
                raise RuntimeError(f"{what}: not within {self._settings.limit_s:.0f} s")
            time.sleep(_POLL_S)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun_s:6.1f} s  {text}", flush=True)


_NOTHING = Line("start", 0, 0, 0.0)


def pause_after(lines: Sequence[Line], time_s: float) -> float:
    """Longest time between two steps, of which the later one was after a moment."""
    pairs = zip(lines, lines[1:], strict=False)
    return max((b.time_s - a.time_s for a, b in pairs if b.time_s > time_s), default=0.0)


def different_models(logs: Sequence[Sequence[Line]]) -> list[str]:
    """What differs between the models of the groups, at the ends of blocks and at the end."""
    found: dict[tuple[str, int], set[str | None]] = {}
    for line in (line for lines in logs for line in lines if line.event in ("block", "end")):
        found.setdefault((line.event, line.step), set()).add(line.digest)
    return [f"{event} {step}" for (event, step), digests in found.items() if len(digests) > 1]


def main() -> int:
    """Run the demo, and draw the losses."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="under 45 seconds")
    settings = SHORT if parser.parse_args().short else FULL
    with tempfile.TemporaryDirectory() as folder, Demo(settings, Path(folder)) as demo:
        try:
            killed, back = demo.run()
        except RuntimeError as error:
            print(f"The demo has failed: {error}", file=sys.stderr)
            return 1
        logs = {f"group {group}": demo.log(group) for group in range(GROUPS)}
    marks = {"killed": killed, "back": back}
    title = f"Digits: group {KILLED} of {GROUPS} is killed and comes back"
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
