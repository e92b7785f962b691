"""The runs of the language example's demo: what is set, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lightning_hier import BMUFAdam, HierarchicalStrategy


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to train.

    Attributes:
        title: in tables and pictures.
        strategy: makes what is passed to the Trainer.
    """

    title: str
    strategy: Callable[[], HierarchicalStrategy]


SYSTEMS: dict[str, System] = {
    "bmuf_adam": System(
        title="BMUF-Adam, 2 groups of 2",
        strategy=lambda: HierarchicalStrategy(group_size=2, block_sync=BMUFAdam()),
    ),
    # DDP, with its bytes counted.
    "ddp": System(
        title="DDP, 4 ranks",
        strategy=lambda: HierarchicalStrategy(group_size="world"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        system: a key of ``SYSTEMS``.
        ranks: processes.
        steps: optimizer steps of each rank.
        validations: evaluations on the valid split, at equal distances; the last one is at the end.
        context: tokens of a window.
        batch_windows: windows in a batch of one rank.
        learning_rate: of AdamW, at its peak.
        beta1: first beta of AdamW; BMUF-Adam would lower a larger one by itself, and DDP would not.
        eval_share: share of the valid and test batches that are evaluated.
        seed: of the initial model and of the order of the windows.
        log_dir: TensorBoard logs go here.
    """

    system: str
    ranks: int = 4
    steps: int = 300
    validations: int = 6
    context: int = 128
    batch_windows: int = 8
    learning_rate: float = 4e-3
    beta1: float = 0.5
    eval_share: float = 1.0
    seed: int = 0
    log_dir: str = "outputs/language/demo"

    def portable_settings(self) -> dict[str, Any]:
        """The settings without the folder of one machine."""
        return {**asdict(self), "log_dir": ""}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place on the learning curve.

    Attributes:
        step: steps of each rank before it.
        across_bytes: payload of all ranks across groups before it.
        bits_per_byte: of the valid split.
    """

    step: int
    across_bytes: int
    bits_per_byte: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a run.

    Attributes:
        settings: of the run, see ``Settings.portable_settings``.
        curve: fields of a ``Point`` for each validation, in order.
        test_bits_per_byte: of the test split.
        group_bytes: payload of all ranks inside groups.
        across_bytes: payload of all ranks across groups. All bytes of DDP are among these, since
            its ranks are on several hosts where such a comparison matters.
        train_seconds: of ``fit``, validation included.
        steps: steps of each rank.
    """

    settings: dict[str, Any]
    curve: list[dict[str, Any]]
    test_bits_per_byte: float
    group_bytes: int
    across_bytes: int
    train_seconds: float
    steps: int

    @property
    def title(self) -> str:
        """Name of the system."""
        return SYSTEMS[self.settings["system"]].title

    @property
    def points(self) -> list[Point]:
        """The learning curve."""
        return [Point(**point) for point in self.curve]

    @property
    def valid_bits_per_byte(self) -> float:
        """Of the valid split, at the end."""
        return self.points[-1].bits_per_byte

    def point_after(self, across_bytes: float) -> Point | None:
        """The first validation by which so many bytes were sent; None if there is none."""
        return next((p for p in self.points if p.across_bytes >= across_bytes), None)
