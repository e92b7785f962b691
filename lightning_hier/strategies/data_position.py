"""Position of training in its data and random states, for exact resuming.

Lightning counts the batches of an epoch, but a run that resumes within an epoch restarts its data.
Here, every rank stores the random state at the start of the epoch's data. A resumed run starts the
data with this state, skips the batches that were used, and then restores the random state of the
save. Lightning restores loaders that have a ``state_dict``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.comm.random_state import random_state, set_random_state
from lightning_hier.strategies.private_names import check_names, private
from lightning_hier.strategies.trainer_changes import TrainerChanges

RandomState = dict[str, Any]


class DataPosition:
    """Records the position in the data of a Trainer that fits, and restores it.

    Args:
        changes: changes to the Trainer that is about to fit.
        device: device of the rank.

    Attributes:
        used: batches of the first epoch that were used, if that is not Lightning's count.

    """

    def __init__(self, changes: TrainerChanges, device: torch.device) -> None:
        self._fit_loop: Any = changes.trainer.fit_loop
        self._device = device
        self._validation = IsolatedValidation(changes, device)
        self._begun: RandomState = {}
        self._saved: RandomState | None = None  # at the time of the save
        self._resumed: RandomState | None = None  # at the start of the epoch's data
        self._ended: RandomState | None = None
        self.used: int | None = None
        # Lightning starts the data of an epoch in these methods.
        changes.replace("fit_loop.setup_data", self._setup_data)
        changes.replace("fit_loop.epoch_loop.on_run_start", self._on_run_start)
        changes.replace("fit_loop.epoch_loop.reset", self._reset)
        changes.on_close(self._end)

    def _setup_data(self, set_up: Callable[[], None]) -> None:
        self._leave_epoch_that_ended()
        # Starts the data of the first epoch, and of a loader that is created again.
        before, random = self._iterator(), random_state(self._device)
        set_up()
        if self._iterator() is not before:
            self._begun = random

    def _on_run_start(self, start: Callable[[Any], None], fetcher: Any) -> None:
        before, random = self._iterator(), random_state(self._device)
        start(fetcher)
        renewed = self._iterator() is not before
        if self._resumed is not None:
            self._skip_used_batches(fetcher, random, renewed=renewed)
        elif renewed:
            self._begun = random

    def _reset(self, reset: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            # Lightning warns that it cannot restore loaders without a state, which is done here.
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended")
            reset()

    def _end(self) -> None:
        # A checkpoint that is saved after training needs the random states at its end.
        self._ended = self._now()

    def state(self) -> dict[str, RandomState]:
        """Random states now and at the start of the epoch's data."""
        # Until the data have started again, the position is that of the loaded state.
        return {
            "now": self._now(),
            "begun": self._begun if self._resumed is None else self._resumed,
        }

    def load(self, state: dict[str, RandomState]) -> None:
        """Restore :meth:`state` when training starts."""
        self._saved, self._resumed = state["now"], state["begun"]

    def rewind(self) -> None:
        """Reset the position, before a state is loaded."""
        self._begun = {}
        self._saved = self._resumed = None

    def start(self) -> None:
        """Restore the random state of the save when training starts."""
        if self._saved is not None:
            self._restore(self._saved)
        self._saved = None

    def _now(self) -> RandomState:
        if self._ended is not None:
            return self._ended
        if self._saved is not None:  # training has not started, and may never start
            return self._saved
        return self._validation.outside or random_state(self._device)

    def _restore(self, state: RandomState) -> None:
        set_random_state(state, self._device)

    def _leave_epoch_that_ended(self) -> None:
        """Make Lightning count the starting epoch, if a run was saved at the end of an epoch.

        Lightning 2.6 counts an epoch as complete if its last batch was saved, but does not count
        the next one as started. If the run is saved again in that epoch, the next resume would
        restart it.
        """
        epochs = self._fit_loop.epoch_progress.total
        if self._fit_loop.restarted_mid_epoch and epochs.processed == epochs.started:
            self._fit_loop.reset_restart_stage()

    def _iterator(self) -> Any:
        # A CombinedLoader is its own iterator, but the iterator below it is new each time.
        loader = self._fit_loop._combined_loader
        if loader is None:
            return None
        check_names(loader)
        return loader._iterator

    def _skip_used_batches(self, fetcher: Any, random: RandomState, *, renewed: bool) -> None:
        """Skip the used batches of the first epoch, and restore the random state.

        If there are fewer batches, the epoch ends at once, with a warning on rank 0.
        """
        assert self._resumed is not None
        begun, self._resumed = self._resumed, None
        used = self._fit_loop.epoch_loop.batch_progress.current.ready
        if self.used is not None:
            # A group that took the state of another has its own position, in this epoch only.
            used, self.used = self.used, None
        if not used:
            if not renewed:
                # setup_data started the data before `start` restored the random state of the save.
                self._restore(random)
                iter(fetcher)
            self._begun = random
            return
        self._begun = begun
        loaders = fetcher.combined_loader.flattened
        # Such loaders restore their own position. For such steps, next() would draw no batch.
        if _step_draws(fetcher) or any(hasattr(loader, "load_state_dict") for loader in loaders):
            return
        self._restore(begun)
        iter(fetcher)
        for number in range(used):
            # Lightning would take the StopIteration of next() for the end of training.
            if fetcher.done:
                rank_zero_warn(
                    f"the checkpoint was saved after {used} batches of an epoch, but the training "
                    f"data have only {number} now, so this epoch ends. To resume exactly, use the "
                    "data, the batch size and the limit_train_batches of the saved run"
                )
                break
            next(fetcher)
        # That of the save, because loading the skipped batches has drawn random numbers again.
        self._restore(random)


def _step_draws(fetcher: Any) -> bool:
    """Whether ``training_step`` receives the iterator and draws batches itself."""
    kind = private("lightning.pytorch.loops.fetchers", "_DataLoaderIterDataFetcher")
    return isinstance(fetcher, kind)


# The second method is called when a run resumes, and creates an iterator that is not used.
_DRAWING = (
    "fit_loop.epoch_loop.val_loop.run",
    "fit_loop.epoch_loop.val_loop.increment_progress_to_evaluation_end",
)


class IsolatedValidation:
    """Restores the random state of training after each validation.

    Lightning creates a new iterator of the validation data each time, which draws a seed from the
    global generator, and the module may draw numbers as well. Without this class, dropout masks and
    the order of data in training would depend on the number of validations.

    Args:
        changes: changes to the Trainer that is about to fit.
        device: device of the rank.

    Attributes:
        outside: random state of training during validation, otherwise None.

    """

    def __init__(self, changes: TrainerChanges, device: torch.device) -> None:
        self._device = device
        self.outside: RandomState | None = None
        for name in _DRAWING:
            changes.replace(name, self._isolated)

    def _isolated(self, method: Callable[[], Any]) -> Any:
        self.outside = random_state(self._device)
        try:
            return method()
        finally:
            set_random_state(self.outside, self._device)
            self.outside = None
