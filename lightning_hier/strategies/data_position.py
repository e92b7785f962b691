"""Position of a rank in its data, and its random states, for exact resuming.

A resumed run restarts the data of its epoch. Every rank restores the states of its own loaders, or
starts its loaders with the random state of that time and reads the used batches. Then it restores
the random state of the save. ``exactness.py`` finds data for which this is not exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lightning_hier.comm.random_state import random_state, set_random_state
from lightning_hier.strategies import loop_position
from lightning_hier.strategies.exactness import (
    has_state,
    of_data,
    of_trainer,
    report,
)
from lightning_hier.strategies.trainer_changes import TrainerChanges

RandomState = dict[str, Any]
State = dict[str, Any]


class DataPosition:
    """Records the position in the data of a Trainer that fits, and restores it.

    Args:
        changes: changes to the Trainer that is about to fit.
        device: device of the rank.

    Attributes:
        used: batches of the first epoch that were used, if that is not Lightning's count.
        taken: whether the state is that of another group, which no line calls exact.

    """

    def __init__(self, changes: TrainerChanges, device: torch.device) -> None:
        self._trainer: Any = changes.trainer
        self._device = device
        self._validation = IsolatedValidation(changes, device)
        self._begun: RandomState = {}  # at the start of the epoch's data
        self._reads_ahead = False
        self._ahead: State = {}  # states of loaders before they read ahead, and random state
        self._loops: Mapping[str, Any] | None = None  # of a saved run, until the data have started
        self._saved: State = {}  # state of this rank, if the run resumes exactly
        self._lost: Sequence[str] = ()
        self._started = False
        self._metrics: Mapping[str, Any] = {}
        self._ended: State = {}
        self.used: int | None = None
        self.taken = False
        # Lightning starts the data of the first epoch, or of a new loader, after the first of these
        # methods, and that of other epochs in the second.
        changes.replace("fit_loop._load_combined_loader_states", self._load_loader_states)
        changes.replace("fit_loop.epoch_loop.on_run_start", self._on_run_start)
        changes.replace("fit_loop.epoch_loop.reset", self._reset)
        changes.replace("fit_loop.epoch_loop._on_before_fetch", self._on_before_fetch)
        changes.replace("fit_loop.epoch_loop._get_monitor_value", self._monitored)
        changes.on_close(self._end)

    def loops(self) -> State:
        """Position in Lightning's loops, equal on all ranks, with the metrics they lack."""
        if self._loops is not None:  # the loops have not gone on
            steps_next = self._loops["plateaus"] and not self._started
            return {**self._loops, "plateaus": steps_next}
        names = [c.monitor for c in self._trainer.lr_scheduler_configs if c.reduce_on_plateau]
        metrics = {**self._metrics, **self._trainer.callback_metrics}
        followed = {name: metrics[name] for name in names if name in metrics}
        return {**loop_position.loop_position(self._trainer), "metrics": followed}

    def state(self) -> State:
        """State of this rank: random states, now and at the start of the data, and loaders."""
        if self._ended:
            return self._ended
        if self._loops is not None and self._saved:  # the data have not started again
            return {**self._saved, "now": self._now()} if self._started else self._saved
        of_loaders = self._ahead or {"loaders": self._states_of_loaders(), "ahead": {}}
        return {"now": self._now(), "begun": self._begun, **of_loaders}

    def load(
        self, loops: Mapping[str, Any], state: State | None = None, lost: Sequence[str] = ()
    ) -> None:
        """Continue at a saved position when training starts.

        Args:
            loops: result of :meth:`loops`.
            state: result of :meth:`state`, to resume exactly.
            lost: reasons, with the way round, why the run does not resume exactly even so.

        """
        loop_position.restore_loops(self._trainer, loops)
        self._loops, self._saved, self._metrics = loops, state or {}, loops["metrics"]
        self._begun, self._started, self._lost = {}, False, lost

    def start(self) -> None:
        """Restore the random state of the save when training starts."""
        if self._loops is not None and not self._started:
            if self._saved and not self.taken:  # groups must draw different numbers
                self._set(self._saved["now"])
            loop_position.finish_epoch(self._trainer, self._loops)
        self._started = True

    def _now(self) -> RandomState:
        return self._validation.outside or random_state(self._device)

    def _set(self, state: RandomState) -> None:
        set_random_state(state, self._device)

    def _end(self) -> None:
        # A checkpoint that is saved after training needs the state before the loaders are reset.
        self._ended = self.state()

    @property
    def _loaders(self) -> list[Any]:
        data = self._trainer.train_dataloader
        return [] if data is None else CombinedLoader(data).flattened

    def _states_of_loaders(self) -> list[Any]:
        return [one.state_dict() if has_state(one) else None for one in self._loaders]

    def _load_loader_states(self, load: Callable[[], None]) -> None:
        # Lightning would load those of rank 0, before samplers know the epoch.
        if self._loops is None:
            load()
        self._begun = random_state(self._device)

    def _on_run_start(self, start: Callable[[Any], None], fetcher: Any) -> None:
        combined = fetcher.combined_loader
        before, random = combined._iterator, random_state(self._device)
        start(fetcher)
        if combined._iterator is not before:  # a CombinedLoader is its own iterator
            self._begun = random
        self._ahead = {}
        # Without a length, Lightning reads a batch ahead.
        self._reads_ahead = (
            fetcher.length is None
            and hasattr(fetcher, "prefetch_batches")
            and any(map(has_state, combined.flattened))
        )
        loops, saved = self._loops, self._saved
        if loops is not None:
            self._restart_data(fetcher, loops, saved)
            self._loops, self._saved = None, {}
            if loops["batches"]:
                loop_position.finish_batch(self._trainer, loops, fetcher)

    def _on_before_fetch(self, note: Callable[[], None]) -> None:
        note()
        if self._reads_ahead:
            self._ahead = {"loaders": self._states_of_loaders(), "ahead": self._now()}

    def _restart_data(self, fetcher: Any, loops: Mapping[str, Any], saved: State) -> None:
        """Restart the data of the epoch in which a run was saved."""
        of_loaders = saved["loaders"] if saved else []
        reasons = of_data(self._trainer, fetcher, loops, of_loaders) if saved else ["elsewhere"]
        used = int(loops["batches"]) if self.used is None else self.used
        self.used = None  # in this epoch only
        loaders = fetcher.combined_loader.flattened
        loads = bool(saved) and len(loaders) == len(of_loaders)
        pairs = zip(loaders, of_loaders, strict=True) if loads else ()
        restored = [(one, state) for one, state in pairs if state is not None and has_state(one)]
        random = random_state(self._device)
        for loader, state in restored:
            loader.load_state_dict(state)
            if not used or loops["last"]:
                iter(loader)  # the rest of the epoch that has ended: the next call starts one
        self._set(random)
        if loops["last"]:
            pass  # the data start in the next epoch
        elif not used:
            # Lightning has started them before the random state and the epoch were restored.
            self._begun = random
            iter(fetcher)
        elif restored:
            self._begun = saved["begun"]
            self._read_on(fetcher, saved["ahead"])
            fetcher.fetched += used
            self._set(random)
        elif not reasons:
            self._begun = saved["begun"]
            self._set(self._begun)
            iter(fetcher)
            for _ in range(min(used, fetcher.length)):
                next(fetcher)
            # That of the save, because loading the used batches has drawn random numbers.
            self._set(random)
        if saved and not self.taken:
            report([*self._lost, *reasons, *of_trainer(self._trainer, loops)])

    def _read_on(self, fetcher: Any, random: RandomState) -> None:
        """Start loaders with a state, and read ahead with the random state of the saved run."""
        if not (self._reads_ahead and random):
            iter(fetcher)
            return
        batches, fetcher.prefetch_batches = fetcher.prefetch_batches, 0
        iter(fetcher)
        fetcher.prefetch_batches = batches
        self._set(random)
        with suppress(StopIteration):
            fetcher.batches.append(next(fetcher))

    def _reset(self, reset: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            # Lightning warns that it cannot restore loaders without a state, as does `report`.
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended")
            reset()

    def _monitored(self, read: Callable[[str], Any], name: str) -> Any:
        value = read(name)
        return self._metrics.get(name) if value is None else value


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
