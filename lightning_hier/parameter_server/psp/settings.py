"""What all servers of a run go by."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.parameter_server.psp.push_rule import PushRule


@dataclass(frozen=True, kw_only=True)
class PSPSettings:
    """What all servers go by.

    Attributes:
        rule: c and tau_1.
        world_size: number of ranks at the start, which c refers to.
        linear_scaling: whether the learning rate is multiplied by the number of gradients.
        warmup_steps: so many first steps of every optimizer take all workers' gradients, at the
            learning rate as it is.
        steps_made: by each optimizer before this run, in one that goes on; empty: none.
        limit_s: after so many seconds of waiting for a worker, those that wait are told its name.
        takeover_s: how long the successor of a server waits for the copies that workers hold.

    """

    rule: PushRule
    world_size: int
    linear_scaling: bool = True
    warmup_steps: int = 0
    steps_made: tuple[int, ...] = ()
    limit_s: float = 1800.0
    takeover_s: float = 30.0

    def warming(self, optimizer: int, version: int) -> bool:
        """Whether the step of an optimizer from a version is one of the warm-up."""
        made = self.steps_made[optimizer] if self.steps_made else 0
        return made + version < self.warmup_steps
