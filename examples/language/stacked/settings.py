"""One run of many small workers: what is set, and what comes out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from examples.language.shapes import Shape

System = Literal[
    "one_worker",
    "synchronous",
    "model_averaging",
    "bmuf_cbm",
    "bmuf_nbm",
    "bmuf_adam",
    "bmuf_adam_average",
]
OptimizerName = Literal["adamw", "sgd"]
Engine = Literal["stacked", "trainer"]
Corrects = Literal["both", "first", "second"]

SHAPE = Shape(layers=1, heads=2, width=24)
VOCABULARY = 128
"""Bytes from 127 on, and the end of a document, are one token: a fifth of a step's time less."""
CONTEXT = 32
CLIP = 1.0
WEIGHT_DECAY = 0.1
MOMENTUM = 0.9
"""Of SGD."""

_AVERAGING = ("model_averaging", "bmuf_cbm", "bmuf_nbm", "bmuf_adam", "bmuf_adam_average")
_MOMENTUM = _AVERAGING[1:]


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
        learning_rate: at its peak: it rises over 5% of the steps and falls over the last 20%.
        beta1: of AdamW.
        beta2: of AdamW.
        corrects: moments that BMUF-Adam corrects; the step count goes with the second ones.
        block_momentum: eta; None is 1 - 1 / N for N models.
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

    def anywhere(self) -> dict[str, Any]:
        """The settings, without those that the system does not use."""
        used = self
        if not self.averages:
            used = replace(used, group_size=1, block_size=0, warmup_share=0.0)
        if self.system not in _MOMENTUM:
            used = replace(used, block_momentum=None)
        if self.optimizer != "adamw":
            used = replace(used, beta1=0.0, beta2=0.0)
        if self.system != "bmuf_adam":
            used = replace(used, corrects="both")
        return asdict(used)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a run.

    Attributes:
        settings: of the run, see ``Settings.anywhere``.
        loss: of the global model on the valid split, in nats per token. A model whose loss is not
            finite, or larger, counts as one that knows nothing.
        blocks: synchronisations of models.
        seconds: of training.

    """

    settings: dict[str, Any]
    loss: float
    blocks: int
    seconds: float
