"""The part of a synchronous strategy that saves checkpoints and goes on from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gradients.gradient_sync import GTC, GradientSync
from lightning_hier.comm.gradients.reached import reach
from lightning_hier.strategies.automatic import numbers
from lightning_hier.strategies.checkpoints.changed_world import (
    resume_elsewhere,
    take_residuals,
    what_changes,
)
from lightning_hier.strategies.checkpoints.rank_files import (
    Part,
    RankFiles,
    remove_folder,
    section_of,
)
from lightning_hier.strategies.checkpoints.resuming import SavedRun
from lightning_hier.strategies.checkpoints.run_state import State
from lightning_hier.strategies.checkpoints.saved_optimizers import require_same_optimizers
from lightning_hier.strategies.checkpoints.saving import save_run, write_everywhere
from lightning_hier.strategies.fit_session import FitSession
from lightning_hier.strategies.tiered import TieredStrategy

_PLAIN = (
    "it holds no state of this package (it was saved after a stage other than fit, by another "
    "strategy, or by an older version), so training goes on from its model and optimizers with a "
    "new block; the order of the data and the random numbers begin anew."
)


class CheckpointedStrategy(TieredStrategy):
    """A strategy whose checkpoints hold the state of all ranks; a subclass makes the sessions."""

    gradient_sync: GradientSync
    block_sync: BlockSync | None
    _session: FitSession | None = None
    _ended: FitSession | None = None
    _loaded: str = ""
    _weights_only: bool = True
    # What "auto" stood for in the run that is resumed: a longer one goes on as it has begun.
    _resumed_numbers: Mapping[str, Any] = {}

    @property
    def _fit_session(self) -> FitSession:
        if self._session is None:
            raise RuntimeError("there is a session only while the Trainer fits")
        return self._session

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save ``checkpoint``, and beside it what only this rank knows.

        A collective of the world: every rank must call it.

        Raises:
            OSError: on every rank, what any rank could not write.

        """
        session = self._session or self._ended
        write = super().save_checkpoint
        if session is None or not session.begun or "optimizer_states" not in checkpoint:
            write_everywhere(lambda: write(checkpoint, filepath, storage_options), self.root_device)
            return
        session.training.synchroniser.local.keep_written_buffers()
        # What callbacks have put into the checkpoint are the tensors that are shown here.
        with session.training.averaged_weights.shown():
            saved = save_run(
                checkpoint,
                filepath,
                shared=self._shared(session),
                states=self._states(session),
                layout=self.worker_layout,
                removes=self.local_rank == 0,
                io=self.checkpoint_io,
                write=lambda whole: write(whole, filepath, storage_options),
                device=self.root_device,
            )
        saves = session.saved_under[str(filepath)]
        saves.append(saved)
        # An asynchronous writer may not have replaced the checkpoint yet that names the older save.
        kept = 2 if isinstance(self.checkpoint_io, AsyncCheckpointIO) else 1
        self._remove_saves([saves.pop(0) for _ in saves[kept:]])
        if self.local_rank == 0 and len(saves) == kept:
            saves[0].remove_abandoned()

    @override
    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, and remember which one: a Tuner goes on from one of its own."""
        self._loaded = str(checkpoint_path)
        self._weights_only = weights_only is not False
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._resumed_numbers = (section_of(checkpoint) or {}).get("numbers", {})
        return checkpoint

    @override
    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove a checkpoint, then what ranks have saved beside it."""
        super().remove_checkpoint(filepath)
        session = self._session or self._ended
        saves = session.saved_under.pop(str(filepath), None) if session else None
        if saves is not None:
            self._remove_saves(saves)
        elif self.local_rank == 0:
            remove_folder(f"{filepath}.ranks")  # of an earlier job

    def _remove_saves(self, saves: Sequence[RankFiles]) -> None:
        if self.local_rank == 0:
            for save in saves:
                save.remove()

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on where the checkpoint was saved, or say what can't go on.

        A collective of the world: every rank must call it.
        """
        require_same_optimizers(checkpoint, self.optimizers, self.root_device)
        path = self._loaded
        section = section_of(checkpoint)
        if section is None:
            super().load_optimizer_state_dict(checkpoint)
            rank_zero_warn(f"Resuming from {path}: {_PLAIN}")
            return
        files = RankFiles.saved_with(path, section["save"])
        saved = SavedRun(section, files, self.checkpoint_io, self._weights_only)
        saved.require_complete(self.root_device)
        session = self._fit_session
        if files.of_all_saves == f"{path}.ranks":  # else they belong to the target of a link
            session.saved_under[str(path)].append(files)
        kinds = self._kinds(session)
        # Where nothing is left to be trained, what the module holds now is what `fit` leaves.
        with session.training.synchroniser.local.loading():
            if saved.goes_on(self.worker_layout.sizes, kinds):
                self._go_on(saved, kinds)
            else:
                self._go_on_elsewhere(saved, checkpoint)

    def _go_on(self, saved: SavedRun, kinds: Mapping[str, Any]) -> None:
        session, training = self._fit_session, self._fit_session.training
        state = training.state
        trained = session.worker.begun
        session.rewind()
        state.load_steps(saved.section)
        if trained:
            self._wrap()  # as at the begin of a run, with the buckets of that
        self._wrap_trained(saved)
        group = self._group(0)
        first, of_group = saved.of_rank(self._workers[0]), saved.of_group(group)
        order = [state.parameters[name] for name in saved.section["ready_order"]]
        if isinstance(self.model, DistributedDataParallel) and self.root_device.type == "cpu":
            session.reduction.rehearse(self.model, order)
        state.load(saved.section, of_group, first, saved.shares_for(group, kinds))
        training.averaged_weights.load(of_group["averages"], first["averages"])
        if first["precision"]:
            self.precision_plugin.load_state_dict(first["precision"])
        played = training.played
        if not session.warming:
            played.models.open()
        random, gradients = [], []
        for workers in played.each():
            for number in workers:
                rank = saved.of_rank(self._workers[number]) if number else first
                if number == workers[0] and number:
                    state.load_local(saved.of_group(self._group(number)), rank)
                state.load_worker(number, rank)
                random.append(rank["random"])
                gradients.append(rank["gradients"])
        session.position.load(random)

        def set_gradients() -> None:
            for workers in played.each():
                for number in workers:
                    with session.accumulated(workers, number):
                        reach(state.parameters[name] for name in gradients[number])
                        state.set_gradients(gradients[number])

        # Lightning empties the gradients before it trains.
        session.waiting = gradients
        session.on_start.append(set_gradients)
        rank_zero_info("Resuming where the run was saved, with the state of every rank.")

    def _go_on_elsewhere(self, saved: SavedRun, checkpoint: Mapping[str, Any]) -> None:
        session, training = self._fit_session, self._fit_session.training
        state = training.state
        state.load_steps(saved.section)
        self._wrap_trained(saved)
        opens = self.block_sync is not None and not training.synchroniser.warming
        resume_elsewhere(saved, checkpoint, state, opens_blocks=opens)
        # A group of one worker has none, and only in DDP can it be given what is left of others.
        alone = self.virtual_workers > 1 and self._group_size() == 1
        compresses = isinstance(self.gradient_sync, GTC) and not alone
        if compresses:
            own = [worker.memory for worker in session.workers]
            memories = dict(zip(self._workers, own, strict=True))
            take_residuals(saved, state, memories, self._all_workers)
        kinds = self._kinds(session)
        rank_zero_warn(what_changes(saved, self.worker_layout, kinds, keeps_residuals=compresses))

    def _group(self, number: int) -> int:
        """Of a worker of this rank."""
        return self.worker_layout.coordinates(self._workers[number])[1]

    def _wrap_trained(self, saved: SavedRun) -> None:
        """Have DDP know the parameters that had been unfrozen when the run was saved.

        On a resume a ``BaseFinetuning``, or the module itself, freezes them all once more, and need
        not come back to those of earlier epochs.
        """
        self._fit_session.training.state.thaw(saved.section)
        self._wrap_if_changed()

    def _wrap_if_changed(self) -> None:
        """Wrap anew where other ranks reduce gradients than before, or others are trainable.

        DDP leaves alone what was frozen when it was made.
        """
        session = self._fit_session
        if not session.reduction.suits(self._module.parameters(), warming=session.warming):
            self._wrap()

    @abstractmethod
    def _wrap(self) -> None:
        """Wrap the module by DDP over the ranks that reduce its gradients now, if there are any.

        A collective of these ranks.
        """

    def _kinds(self, session: FitSession) -> dict[str, Any]:
        """What a run must have in common with another one to go on exactly."""
        sync = self.block_sync
        shortened = sync is not None and sync.across_dtype != "same"
        return {
            "gradient_sync": type(self.gradient_sync).__name__,
            "block_sync": type(self.block_sync).__name__,
            "overlap": None if sync is None else sync.overlap,
            "across_dtype": None if sync is None else sync.across_dtype,
            # What short forms leave over lies with the ranks that exchange between hosts.
            "inter_host_ranks": self.communicators.route.inter_host_ranks if shortened else None,
            # Which then lies behind the model, in the same shares.
            "optimizer_state": "averaged" if sync is not None and sync.averages_state else "local",
            "sharded": session.training.synchroniser.placement.sharded,
            "warmup_steps": self.warmup_steps,
            # Of which each has its share of the global model.
            "ranks_per_group": self.layout.sizes[0],
        }

    def _shared(self, session: FitSession) -> dict[str, Any]:
        state = session.training.state
        return {
            **state.shared(),
            "kinds": self._kinds(session),
            "numbers": numbers(self.warmup_steps, self.gradient_sync, self.block_sync),
            "ready_order": [state.names[own] for own in session.reduction.ready_order],
        }

    def _states(self, session: FitSession) -> Iterator[tuple[Part, int, State]]:
        """What this rank saves, each with its local model in the module."""
        played = session.training.played
        with played.models.opened():
            for workers in played.each():
                position, group = self.worker_layout.coordinates(self._workers[workers[0]])
                for number in workers:
                    with session.accumulated(workers, number):
                        yield "rank", self._workers[number], self._of_worker(session, number)
                if position == 0:
                    yield "group", group, self._of_group(session)

    def _of_group(self, session: FitSession) -> dict[str, Any]:
        training = session.training
        return {**training.state.of_group(), "averages": training.averaged_weights.of_group()}

    def _of_worker(self, session: FitSession, number: int) -> dict[str, Any]:
        loop = self._module.trainer.fit_loop.epoch_loop
        training = session.training
        accumulates = self._session is not None and loop._should_accumulate()
        gradients = training.state.gradients() if accumulates else {}
        return {
            **training.state.of_worker(number, with_blocks=number % training.played.per_model == 0),
            "averages": training.averaged_weights.of_rank(),
            "random": session.position.state(number),
            "precision": self.precision_plugin.state_dict(),
            "gradients": session.waiting[number] if session.waiting else gradients,
        }
