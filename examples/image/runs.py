"""Settings and results of runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from examples.run_store import portable


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes:
        system: a key of ``SYSTEMS``.
        corpus: name of the corpus, see ``Images``.
        corpus_args: arguments of the corpus, see ``Images``.
        model_args: arguments of ``ResNetClassifier``.
        ranks: number of processes.
        late_rank: rank that is late.
        late_seconds: delay of each late batch in seconds.
        late_fraction: fraction of the rank's batches that are late.
        pace_seconds: minimum duration of a forward pass in seconds, see ``Pace``.
        epochs: number of epochs.
        decay_epochs: epochs after which the learning rate is multiplied by 0.1.
        batch_images: number of images in a mini-batch of one rank.
        learning_rate: learning rate of one gradient. For a step with d gradients, it is multiplied
            by d.
        seed: seed of the initial model, the order of batches, and the delays.
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
    epochs: int = 20
    decay_epochs: list[int] = field(default_factory=list)
    batch_images: int = 16
    learning_rate: float = 0.02
    seed: int = 0

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings without directories of this machine, which identify the run."""
        return {**asdict(self), "corpus_args": portable(self.corpus_args)}


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """Result of one rank at the end of training.

    Attributes:
        rank: the rank.
        waited_s: waiting time in training steps in seconds, see ``StepClock``.
        median_step_s: median duration of a training step in seconds.
        longest_step_s: duration of the longest training step in seconds.
        slept_s: duration of all intentional pauses in seconds.
        sent_bytes: payload that the rank sent.
        dropped: number of gradients that its server dropped because they arrived too late.
        updates: number of updates by its server. 0 without servers.
        gradients_per_update: mean number of gradients in an update by its server.
        start_bytes: peak resident memory at the start of training.
        peak_bytes: peak resident memory at the end of training.
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
    """Result of a run.

    Attributes:
        settings: settings of the run, see ``Settings.portable_settings``.
        parameters: number of parameters of the model.
        test_accuracy: test accuracy of the final model, from 0 to 1.
        curve: seconds since the start of training, and accuracy on the valid split, for each epoch.
        train_seconds: time from the start of training to the end of the last validation.
        ranks: fields of the ``RankResult`` of each rank.
    """

    settings: dict[str, Any]
    parameters: int
    test_accuracy: float
    curve: list[tuple[float, float]]
    train_seconds: float
    ranks: list[dict[str, float]]

    def of_ranks(self, name: str) -> list[float]:
        """Return a field of ``RankResult`` of all ranks."""
        return [rank[name] for rank in self.ranks]

    @property
    def dropped_gradients(self) -> float:
        """Mean number of gradients that a server dropped because they arrived too late."""
        return sum(self.of_ranks("dropped")) / len(self.ranks)

    @property
    def used_share(self) -> float:
        """Fraction of all batches whose gradients are part of updates, from 0 to 1."""
        used = sum(rank["gradients_per_update"] * rank["updates"] for rank in self.ranks)
        updates = sum(self.of_ranks("updates"))
        return used / updates / self.settings["ranks"] if updates else 1.0

    @property
    def sent_bytes(self) -> float:
        """Payload that all ranks sent."""
        return sum(self.of_ranks("sent_bytes"))
