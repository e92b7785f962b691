"""What a fit adds to the Trainer: callbacks around those of the user, and handlers of signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import Callback

from lightning_hier.strategies.averaged_weights import AveragedWeights
from lightning_hier.strategies.elastic import StateServer
from lightning_hier.strategies.lifecycle import EndOfData, GlobalModelLifecycle, OwnError
from lightning_hier.strategies.misuse import RawSteps
from lightning_hier.strategies.sigterm import QuietTermination

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


class FitHooks:
    """Installs callbacks and handlers of signals for one fit.

    The changes of the session undo them.

    Args:
        session: session with a synchroniser.
        metrics_callback: logs metrics.

    Attributes:
        averages: averages of WeightAveraging callbacks.
        raw_steps: check that no step bypasses the strategy.

    """

    def __init__(self, session: FitSession, metrics_callback: Callback) -> None:
        synchroniser, changes = session.synchroniser, session.changes
        termination = QuietTermination(changes, synchroniser.health)
        self.raw_steps = RawSteps(
            lambda: synchroniser.trained.parameters,
            lambda: synchroniser.evaluation.active or session.communicators.world.size == 1,
        )
        changes.on_close(self.raw_steps.remove)
        self.averages = AveragedWeights(session.trainer, session.communicators)
        # Averages of weights follow the global model, and callbacks of the user put them into the
        # module in its place.
        first = [
            OwnError(changes, session.communicators.progress),
            EndOfData(synchroniser.health),
            GlobalModelLifecycle(synchroniser.evaluation),
            self.averages,
        ]
        last = [] if session.elastic is None else [StateServer(session.elastic)]
        changes.surround_callbacks(first, [metrics_callback, termination, *last])
