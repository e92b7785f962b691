"""One run of many small workers: what is set, and what comes out."""

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
Engine = Literal["stacked", "trainer"]
Corrects = Literal["both", "first", "second"]
Values = Literal["same", "int8", "int4"]
Merge = float | Literal["progress"]

SHAPE = Shape(layers=1, heads=2, width=24)
VOCABULARY = 128
"""Bytes from 127 on, and the end of a document, are one token: a fifth of a step's time less."""
CONTEXT = 32
CLIP = 1.0
WEIGHT_DECAY = 0.1
MOMENTUM = 0.9
"""Of SGD."""

_MOMENTUM = ("bmuf_cbm", "bmuf_nbm", "bmuf_adam", "bmuf_adam_average")
_AVERAGING = ("model_averaging", *_MOMENTUM, "diloco")
_MOMENTS = ("bmuf_adam", "bmuf_adam_average")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        system: how the workers are synchronised.
        optimizer: of each worker.
        workers: in all.
        group_size: workers that share a model, by exact averages of their gradients.
        steps: of each worker.
        batch_windows: windows in a batch of one worker.
        block_size: tau, steps between two synchronisations.
        warmup_share: share of the steps, at the start, with exact averages of the gradients.
        learning_rate: at its peak: it rises over 5% of the steps and falls over the last 20%, or
            along a cosine.
        beta1: of AdamW.
        beta2: of AdamW.
        corrects: moments that BMUF-Adam corrects; the step count goes with the second ones.
        block_momentum: eta; None is 1 - 1 / N for N models.
        outer_lr: nu of DiLoCo.
        outer_momentum: mu of DiLoCo; None is 1 - nu / N.
        fragments: of the model, each at its own step of a block. Of DiLoCo, as the next two.
        overlap: steps between the sending of an update and its outer step.
        merge: what becomes of these steps: all are kept, or the local model has this weight.
        across_dtype: of the updates that models exchange; other than the weights' own it rounds.
        across_density: share of the elements of an update that is exchanged.
        moments_every: blocks between two exchanges of moments.
        qsr: alpha of the quadratic synchronisation rule for the length of blocks, or None.
        longest_block: with ``qsr``.
        schedule: of the learning rate.
        seed: of the initial weights and of the text.
        engine: ``"stacked"``, all models as one batch, or ``"trainer"``, the package's strategies.

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
    corrects: Corrects = "both"
    block_momentum: float | None = None
    outer_lr: float = 0.7
    outer_momentum: float | None = 0.9
    fragments: int = 1
    overlap: int = 0
    merge: Merge = "progress"
    across_dtype: Values = "same"
    across_density: float = 1.0
    moments_every: int = 1
    qsr: float | None = None
    longest_block: int = 0
    schedule: ScheduleName = "constant"
    seed: int = 0
    engine: Engine = "stacked"

    @property
    def ranks(self) -> int:
        """Processes."""
        return 1

    @property
    def averages(self) -> bool:
        """Whether models are averaged, not gradients."""
        return self.system in _AVERAGING

    @property
    def models(self) -> int:
        """N, models that are averaged."""
        return self.workers // self.group_size

    @property
    def warmup_steps(self) -> int:
        """Steps before the first block."""
        return round(self.warmup_share * self.steps)

    @property
    def eta(self) -> float:
        """Block momentum."""
        if self.system not in _MOMENTUM:
            return 0.0
        return 1.0 - 1.0 / self.models if self.block_momentum is None else self.block_momentum

    @property
    def mu(self) -> float:
        """Outer momentum."""
        if self.outer_momentum is None:
            return 1.0 - self.outer_lr / self.models
        return self.outer_momentum

    @property
    def moves_moments(self) -> bool:
        """Whether moments are exchanged."""
        return self.system in _MOMENTS

    def rate(self, step: int) -> float:
        """Learning rate at a step, counted from 0."""
        factor = Schedule(kind=self.schedule).factor(step, self.steps)
        return self.learning_rate * factor

    def block_at(self, step: int) -> int:
        """Steps of a block that begins with this step."""
        if self.qsr is None:
            return self.block_size
        # A quotient of decimal numbers may be a little below the whole number that it means.
        steps = int((self.qsr / self.rate(step)) ** 2 + 1e-9)
        return max(self.block_size, min(steps, self.longest_block))

    def portable_settings(self) -> dict[str, Any]:
        """The settings, without those that the system does not use."""
        used = self
        if not self.averages:
            used = replace(used, group_size=1, block_size=0, warmup_share=0.0)
            used = replace(used, across_dtype="same", across_density=1.0, qsr=None)
        if self.system not in _MOMENTUM:
            used = replace(used, block_momentum=None)
        if self.system != "diloco":
            used = replace(used, outer_lr=0.0, outer_momentum=None, fragments=1, overlap=0)
        if not self.moves_moments:
            used = replace(used, moments_every=1)
        if not used.overlap:
            used = replace(used, merge="progress")
        if used.qsr is None:
            used = replace(used, longest_block=0)
        if self.optimizer != "adamw":
            used = replace(used, beta1=0.0, beta2=0.0)
        if self.system != "bmuf_adam":
            used = replace(used, corrects="both")
        return asdict(used)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a run.

    Attributes:
        settings: of the run, see ``Settings.portable_settings``.
        loss: of the global model on the valid split, in nats per token. A model whose loss is not
            finite, or larger, counts as one that knows nothing.
        blocks: synchronisations of models.
        seconds: of training.
        curve: of some steps: their number, the synchronisations of whole models so far, and the
            loss of the global model on a part of the valid split.

    """

    settings: dict[str, Any]
    loss: float
    blocks: int
    seconds: float
    curve: Sequence[tuple[int, float, float]] = ()
