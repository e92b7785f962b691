"""Where training stands in its data and its random numbers, so that it can go on exactly there.

Lightning counts the batches of an epoch, but a run that is resumed in the middle of one begins its
data anew. Here every rank keeps the random state with which the data of this epoch were begun; a
resumed run begins them with that state, draws as many batches as were used, and only then takes the
random state of the moment when it was saved. A loader with a state of its own (``state_dict``) is
left to Lightning, which restores it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lightning_hier.comm.worker_random import WorkerRandom, random_state, set_random_state
from lightning_hier.strategies.private_names import check_names, private
from lightning_hier.strategies.trainer_changes import TrainerChanges

RandomState = dict[str, Any]
RandomStates = list[RandomState]


class DataPosition:
    """Follows one Trainer's epochs while it fits, and puts them back where they were.

    Args:
        changes: to the Trainer that is about to fit.
        generators: of the workers of this rank.
        device: on which the rank trains.

    """

    def __init__(
        self, changes: TrainerChanges, generators: WorkerRandom, device: torch.device
    ) -> None:
        self._fit_loop: Any = changes.trainer.fit_loop
        self._generators = generators
        self._validation = IsolatedValidation(changes, device)
        self._begun: RandomStates = []
        self._saved: RandomStates | None = None  # of the moment when the run was saved
        self._resumed: RandomStates | None = None  # those that its data were begun with
        self._ended: RandomStates | None = None
        # The methods in which Lightning starts the data of an epoch.
        changes.replace("fit_loop.setup_data", self._setup_data)
        changes.replace("fit_loop.epoch_loop.on_run_start", self._on_run_start)
        changes.replace("fit_loop.epoch_loop.reset", self._reset)
        changes.on_close(self._end)

    def _setup_data(self, set_up: Callable[[], None]) -> None:
        self._leave_epoch_that_ended()
        # The first epoch's data begin here, and those of a loader that is made anew.
        before, random = self._iterator(), self._generators.states()
        set_up()
        if self._iterator() is not before:
            self._begun = random

    def _on_run_start(self, start: Callable[[Any], None], fetcher: Any) -> None:
        before, random = self._iterator(), self._generators.states()
        start(fetcher)
        renewed = self._iterator() is not before
        if self._resumed is not None:
            self._go_on(fetcher, random, renewed=renewed)
        elif renewed:
            self._begun = random

    def _reset(self, reset: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            # Its warning of loaders without a state does not hold here.
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended")
            reset()

    def _end(self) -> None:
        self._ended = [self._now(worker) for worker in range(self._generators.number)]

    def state(self, worker: int = 0) -> dict[str, RandomState]:
        """A worker's random states, of this moment and of the begin of the epoch's data."""
        begun = self._begun if self._resumed is None else self._resumed
        return {"now": self._now(worker), "begun": begun[worker] if begun else {}}

    def load(self, states: Sequence[dict[str, RandomState]]) -> None:
        """Go on from what :meth:`state` gave of each worker, once training starts."""
        self._saved = [own["now"] for own in states]
        self._resumed = [own["begun"] for own in states]

    def rewind(self) -> None:
        """Forget the data that were used, before a state is loaded."""
        self._begun = []
        self._saved = self._resumed = None

    def start(self) -> None:
        """Training starts: draw what comes next as the run that was saved would have."""
        if self._saved is not None:
            self._generators.set_states(self._saved)
        self._saved = None

    def _now(self, worker: int) -> RandomState:
        if self._ended is not None:
            return self._ended[worker]
        if self._saved is not None:  # training has not started, and perhaps never will
            return self._saved[worker]
        outside = self._validation.outside if worker == 0 else None  # who alone validates
        return outside or self._generators.state(worker)

    def _leave_epoch_that_ended(self) -> None:
        """Have Lightning count the epoch that begins now, where a run was saved at an epoch's end.

        Lightning 2.6 counts the epoch as done whose last batch was saved, but takes itself to be in
        its middle still and does not count the next one as begun. Saved again in that one, the next
        resume would begin it anew.
        """
        epochs = self._fit_loop.epoch_progress.total
        if self._fit_loop.restarted_mid_epoch and epochs.processed == epochs.started:
            self._fit_loop.reset_restart_stage()

    def _iterator(self) -> Any:
        # A CombinedLoader is its own iterator; the iterator below is new each time.
        loader = self._fit_loop._combined_loader
        if loader is None:
            return None
        check_names(loader)
        return loader._iterator

    def _go_on(self, fetcher: Any, random: RandomStates, *, renewed: bool) -> None:
        """Bring the data of the first epoch to where they were, and the random state with them."""
        assert self._resumed is not None
        begun, self._resumed = self._resumed, None
        used = self._fit_loop.epoch_loop.batch_progress.current.ready
        if not used:
            if not renewed:
                self._generators.set_states(random)
                iter(fetcher)
            self._begun = random
            return
        self._begun = begun
        loaders = fetcher.combined_loader.flattened
        if _step_draws(fetcher) or any(hasattr(loader, "load_state_dict") for loader in loaders):
            return
        self._generators.set_states(begun)
        iter(fetcher)
        for _ in range(used):
            next(fetcher)
        self._generators.set_states(random)


def _step_draws(fetcher: Any) -> bool:
    """Whether ``training_step`` takes the iterator itself, and draws its batches."""
    kind = private("lightning.pytorch.loops.fetchers", "_DataLoaderIterDataFetcher")
    return isinstance(fetcher, kind)


# The second one is called when a run is resumed, and makes an iterator that it does not use.
_DRAWING = (
    "fit_loop.epoch_loop.val_loop.run",
    "fit_loop.epoch_loop.val_loop.increment_progress_to_evaluation_end",
)


class IsolatedValidation:
    """Runs the validation loop of a Trainer that fits, and then puts the random state back.

    Lightning makes a new iterator of the validation data each time, which draws a seed from the
    global generator; so does whatever the module draws itself. Dropout masks and shuffled data of
    the training after it would depend on how often it validates.

    Args:
        changes: to the Trainer that is about to fit.
        device: on which it trains.

    Attributes:
        outside: the random state of training while it validates, else None.

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
