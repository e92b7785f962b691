"""Keeps Lightning's termination flag from coupling all ranks at every batch.

Lightning's training loop broadcasts a flag over the whole world before each batch, and its signal
handler broadcasts once more. Between two synchronisations nothing may cross a tier, so under our
strategies a rank only notes the signal; all ranks learn of it at their next synchronisation and
stop together, by Lightning's own way out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import lightning
import lightning.pytorch as pl
from lightning_utilities.core.rank_zero import rank_zero_warn

_LOOP_METHOD = "_broadcast_sigterm_tensor"
_HANDLER = "_sigterm_notifier_fn"


class QuietTermination:
    """Replaces the two broadcasts on one Trainer, and puts them back."""

    def __init__(self, trainer: pl.Trainer, on_signal: Callable[[], None]) -> None:
        """Call ``on_signal`` when this process receives SIGTERM."""
        self._trainer = trainer
        self._on_signal = on_signal
        self._connector: Any = trainer._signal_connector
        self._loop: Any = trainer.fit_loop.epoch_loop

    def install(self) -> None:
        """Replace them. Lightning registers its signal handlers later, so it takes ours."""
        if not hasattr(self._loop, _LOOP_METHOD) or not hasattr(self._connector, _HANDLER):
            rank_zero_warn(
                f"Lightning {lightning.__version__} has no {_LOOP_METHOD} or {_HANDLER} to "
                "replace; if its loop communicates at every batch in another way, groups will wait "
                "for each other between synchronisations. Tested with Lightning 2.6."
            )
            return
        setattr(self._loop, _LOOP_METHOD, lambda: None)
        setattr(self._connector, _HANDLER, self._note)

    def remove(self) -> None:
        """Give the Trainer its own methods back."""
        self._loop.__dict__.pop(_LOOP_METHOD, None)
        self._connector.__dict__.pop(_HANDLER, None)

    def stop(self) -> None:
        """Let Lightning stop after this batch, as if the signal had come now."""
        self._connector.received_sigterm = True

    def _note(self, signum: int, _: FrameType | None) -> None:
        launcher = self._trainer.strategy.launcher
        if launcher is not None:
            launcher.kill(signum)
        self._on_signal()
