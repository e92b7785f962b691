"""Systems, settings and results of the language example's demo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lightning_hier import BMUFAdam, HierarchicalStrategy


@dataclass(frozen=True, kw_only=True)
class System:
    """A strategy of the comparison.

    Attributes:
        title: name in tables and plots.
        strategy: function that creates the strategy.

    """

    title: str
    strategy: Callable[[], HierarchicalStrategy]


SYSTEMS: dict[str, System] = {
    "bmuf_adam": System(
        title="BMUF-Adam, 2 groups of 2",
        strategy=lambda: HierarchicalStrategy(group_size=2, block_sync=BMUFAdam()),
    ),
    # DDP that counts its bytes.
    "ddp": System(
        title="DDP, 4 ranks",
        strategy=lambda: HierarchicalStrategy(group_size="world"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one run.

    Attributes:
        system: a key of ``SYSTEMS``.
        ranks: number of processes.
        steps: number of optimizer steps of each rank.
        validations: number of evaluations on the valid split, at equal intervals. The last one is
            at the end.
        context: number of tokens of a window.
        batch_windows: number of windows in a batch of one rank.
        learning_rate: peak learning rate of AdamW.
        beta1: first beta of AdamW. The default is the value to which BMUF-Adam lowers a larger
            beta, so that both systems use the same.
        eval_share: fraction of the valid and test batches that are evaluated.
        seed: seed of the initial model and of the order of the windows.
        log_dir: folder of the TensorBoard logs.

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
        """Return the settings without folders of this machine."""
        return {**asdict(self), "log_dir": ""}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of the learning curve.

    Attributes:
        step: number of steps of each rank so far.
        across_bytes: payload that all ranks have sent across groups so far.
        bits_per_byte: bits per byte of the valid split.

    """

    step: int
    across_bytes: int
    bits_per_byte: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        settings: settings of the run, see ``Settings.portable_settings``.
        curve: fields of a ``Point`` for each validation, in order.
        test_bits_per_byte: bits per byte of the test split.
        group_bytes: payload that all ranks have sent inside groups.
        across_bytes: payload that all ranks have sent across groups. It includes all bytes of DDP,
            whose ranks would be on several hosts.
        train_seconds: duration of ``fit``, including validation.
        steps: number of steps of each rank.

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
        """Title of the system."""
        return SYSTEMS[self.settings["system"]].title

    @property
    def points(self) -> list[Point]:
        """The learning curve."""
        return [Point(**point) for point in self.curve]

    @property
    def valid_bits_per_byte(self) -> float:
        """Bits per byte of the valid split at the end."""
        return self.points[-1].bits_per_byte

    def point_after(self, across_bytes: float) -> Point | None:
        """Return the first validation after so many bytes sent across groups, or None."""
        return next((p for p in self.points if p.across_bytes >= across_bytes), None)
