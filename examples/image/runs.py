"""What a run is told, and what comes out of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from examples.run_store import portable


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        system: a key of ``SYSTEMS``.
        corpus: as ``Images`` names it.
        corpus_args: likewise.
        model_args: of ``ResNetClassifier``.
        ranks: processes.
        late_rank: that is late.
        late_seconds: for each batch that is late.
        late_fraction: of the late rank's batches.
        pace_seconds: that each forward takes at least, see ``Pace``.
        killed_rank: that is killed, or None.
        killed_step: before which it is.
        epochs: passes over the data.
        decay_epochs: after these the learning rate is multiplied by 0.1.
        batch_images: in a mini-batch of one rank.
        learning_rate: for one gradient; a step with d gradients takes d times as much.
        seed: of the initial model, of the order of batches and of everything that is late.
    """

    system: str
    corpus: Literal["digits", "mnist", "cifar10"] = "digits"
    corpus_args: dict[str, Any] = field(default_factory=dict)
    model_args: dict[str, Any] = field(default_factory=dict)
    ranks: int = 4
    late_rank: int = 3
    late_seconds: float = 0.0
    late_fraction: float = 1.0
    pace_seconds: float = 0.0
    killed_rank: int | None = None
    killed_step: int = 0
    epochs: int = 20
    decay_epochs: list[int] = field(default_factory=list)
    batch_images: int = 16
    learning_rate: float = 0.02
    seed: int = 0

    def portable_settings(self) -> dict[str, Any]:
        """The settings as they are noted: without the folders of one machine."""
        return {**asdict(self), "corpus_args": portable(self.corpus_args)}


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank has counted by the end of training.

    Attributes:
        rank: that counted.
        waited_s: seconds of waiting in training steps, see ``StepClock``.
        median_step_s: seconds of the median training step.
        longest_step_s: seconds of the longest.
        slept_s: seconds slept on purpose.
        sent_bytes: payload.
        dropped: gradients of its block that came too late for its server.
        updates: of its block; 0 without servers.
        gradients_per_update: of its block.
        start_bytes: most memory that was resident before ``fit``.
        peak_bytes: most memory that was resident, at the end of training.
    """

    rank: float
    waited_s: float
    median_step_s: float
    longest_step_s: float
    slept_s: float
    sent_bytes: float
    dropped: float
    updates: float
    gradients_per_update: float
    start_bytes: float
    peak_bytes: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a run.

    Attributes:
        settings: of the run, see ``Settings.portable_settings``.
        parameters: of the model.
        test_accuracy: of the last model, from 0 to 1.
        curve: seconds since training began, and accuracy of the valid split, epoch by epoch.
        train_seconds: from the first batch to the end of the last validation.
        ranks: a ``RankResult`` of each rank that was there to the end.
    """

    settings: dict[str, Any]
    parameters: int
    test_accuracy: float
    curve: list[tuple[float, float]]
    train_seconds: float
    ranks: list[dict[str, float]]

    def of_ranks(self, name: str) -> list[float]:
        """A field of ``RankResult``, of all ranks."""
        return [rank[name] for rank in self.ranks]

    @property
    def dropped_gradients(self) -> float:
        """That came too late: one that a single server of N has dropped counts 1/N."""
        return sum(self.of_ranks("dropped")) / len(self.ranks)

    @property
    def used_share(self) -> float:
        """Of the ranks' batches: how many went into updates, from 0 to 1."""
        used = sum(rank["gradients_per_update"] * rank["updates"] for rank in self.ranks)
        updates = sum(self.of_ranks("updates"))
        return used / updates / self.settings["ranks"] if updates else 1.0

    @property
    def sent_bytes(self) -> float:
        """Payload of all ranks."""
        return sum(self.of_ranks("sent_bytes"))
