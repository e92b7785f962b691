"""Settings and results of the runs of the language studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from examples.language.schedules import Schedule, ScheduleName
from examples.language.shapes import Shape

System = Literal[
    "one_worker",
    "synchronous",
    "model_averaging",
    "bmuf_cbm",
    "bmuf_nbm",
    "bmuf_adam",
    "bmuf_adam_average",
    "diloco",
]
OptimizerName = Literal["adamw", "sgd"]
AcrossDtype = Literal["same", "int8", "int4"]
Merge = float | Literal["progress"]

SHAPE = Shape(layers=1, heads=2, width=24)
VOCABULARY = 128
"""Bytes from 127 and the end-of-document token share one token, which saves a fifth of a step."""
CONTEXT = 32
CLIP = 1.0
WEIGHT_DECAY = 0.1
MOMENTUM = 0.9
"""Momentum of SGD."""

_BLOCK_MOMENTUM_SYSTEMS = ("bmuf_cbm", "bmuf_nbm", "bmuf_adam", "bmuf_adam_average")
_AVERAGING_SYSTEMS = ("model_averaging", *_BLOCK_MOMENTUM_SYSTEMS, "diloco")
_MOMENT_SYSTEMS = ("bmuf_adam", "bmuf_adam_average")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one run.

    Attributes:
        system: algorithm that synchronises the workers.
        optimizer: local optimizer of each worker.
        workers: number of workers.
        group_size: number of workers of a group, which average their gradients exactly.
        steps: number of steps of each worker.
        batch_windows: number of windows in a batch of one worker.
        block_size: tau, number of steps between two synchronisations.
        warmup_share: fraction of the steps, at the start, with exact averages of the gradients.
        learning_rate: peak learning rate. It rises over 5% of the steps and falls over the last
            20%, or along a cosine.
        beta1: first beta of AdamW.
        beta2: second beta of AdamW.
        block_momentum: eta. None: 1 - 1 / N for N models.
        outer_lr: nu of DiLoCo.
        outer_momentum: mu of DiLoCo. None: 1 - nu / N.
        fragments: number of fragments of the model. It applies to DiLoCo, as do the next two.
        overlap: number of steps between sending an update and applying it.
        merge: ``"progress"`` keeps the local steps of the overlap. A number is the weight of the
            local model in its average with the global model.
        across_dtype: dtype of exchanged updates. ``"same"`` is that of the weights.
        across_density: fraction of the elements of an update that is exchanged.
        moments_every: number of blocks between two exchanges of moments.
        qsr: coefficient alpha of the quadratic synchronisation rule for the block size, or None.
        longest_block: maximum block size with ``qsr``.
        schedule: schedule of the learning rate.
        seed: seed of the initial weights and of the text.

    """

    system: System
    optimizer: OptimizerName = "adamw"
    workers: int = 1
    group_size: int = 1
    steps: int = 1000
    batch_windows: int = 1
    block_size: int = 10
    warmup_share: float = 0.1
    learning_rate: float = 0.002
    beta1: float = 0.9
    beta2: float = 0.999
    block_momentum: float | None = None
    outer_lr: float = 0.7
    outer_momentum: float | None = 0.9
    fragments: int = 1
    overlap: int = 0
    merge: Merge = "progress"
    across_dtype: AcrossDtype = "same"
    across_density: float = 1.0
    moments_every: int = 1
    qsr: float | None = None
    longest_block: int = 0
    schedule: ScheduleName = "constant"
    seed: int = 0

    def with_few_workers(self, most: int = 8) -> Settings:
        """The same run on at most so many workers, for a quick form that fits any machine."""
        workers, group_size = min(self.workers, most), min(self.group_size, most)
        return replace(self, workers=workers, group_size=group_size)

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.workers

    @property
    def averages(self) -> bool:
        """Whether models are averaged, instead of gradients."""
        return self.system in _AVERAGING_SYSTEMS

    @property
    def models(self) -> int:
        """N, number of models that are averaged."""
        return self.workers // self.group_size

    @property
    def warmup_steps(self) -> int:
        """Number of steps before the first block."""
        return round(self.warmup_share * self.steps)

    @property
    def eta(self) -> float:
        """Block momentum."""
        if self.system not in _BLOCK_MOMENTUM_SYSTEMS:
            return 0.0
        return 1.0 - 1.0 / self.models if self.block_momentum is None else self.block_momentum

    @property
    def exchanges_moments(self) -> bool:
        """Whether moments of Adam are exchanged."""
        return self.system in _MOMENT_SYSTEMS

    def synchronised(self, step: int) -> float:
        """Return the number of synchronisations of whole models up to a step.

        A fragment that is sent before its synchronisation is counted at its synchronisation.
        """
        if not self.averages:
            return 0.0
        begin, blocks = self.warmup_steps, 0
        while begin + self._block_at(begin) <= step:
            begin, blocks = begin + self._block_at(begin), blocks + 1
        rest = max(0, step - begin)
        if step == self.steps:
            return float(blocks + (rest > 0))
        return blocks + rest * self.fragments // self._block_at(begin) / self.fragments

    def _block_at(self, step: int) -> int:
        """Return the number of steps of a block that begins at this step."""
        if self.qsr is None:
            return self.block_size
        rate = self.learning_rate * Schedule(kind=self.schedule).factor(step, self.steps)
        # 1e-9, because the rounded quotient may be slightly below an integer.
        steps = int((self.qsr / rate) ** 2 + 1e-9)
        return max(self.block_size, min(steps, self.longest_block))

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings, with defaults for those that the system does not use."""
        used = self
        if not self.averages:
            used = replace(used, group_size=1, block_size=0, warmup_share=0.0)
            used = replace(used, across_dtype="same", across_density=1.0, qsr=None)
        if self.system not in _BLOCK_MOMENTUM_SYSTEMS:
            used = replace(used, block_momentum=None)
        if self.system != "diloco":
            used = replace(used, outer_lr=0.0, outer_momentum=None, fragments=1, overlap=0)
        if not self.exchanges_moments:
            used = replace(used, moments_every=1)
        if not used.overlap:
            used = replace(used, merge="progress")
        if used.qsr is None:
            used = replace(used, longest_block=0)
        if self.optimizer != "adamw":
            used = replace(used, beta1=0.0, beta2=0.0)
        return asdict(used)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        settings: settings of the run, see ``Settings.portable_settings``.
        loss: loss of the global model on the valid split, in nats per token. It is at most
            log(vocabulary), the loss of a uniform distribution, also if the loss is not finite.
        curve: steps, and the same loss at these steps.

    """

    settings: dict[str, Any]
    loss: float
    curve: Sequence[tuple[int, float]] = ()
