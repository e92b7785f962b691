"""State of a synchronous run: what is equal on all ranks, and the state of each rank.

A run resumes exactly with the same groups and settings, otherwise with a warning. With other groups
of ranks or another synchronisation, the current block ends where the checkpoint was saved: the
global model is that of the file, with the global update that led to it. Residuals are redistributed
such that their mean gradient is kept: with N ranks before and N' now, rank k gets ``N'/N`` times
the residuals of ranks k, k + N', ..., hence ``sum(r') / N' = sum(r) / N``. Residuals of gradients
and of updates are not exchanged for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm
from typing_extensions import override

from lightning_hier.comm.gradients.gradient_sync import GTC, CommHook
from lightning_hier.comm.gradients.reached import reach
from lightning_hier.comm.sharded_tensors import local_tensor, sharded_like
from lightning_hier.loop.engine_state import EngineState, State
from lightning_hier.loop.outer_state import JoinedParts, outer_state, outer_states
from lightning_hier.loop.settings import automatic_values
from lightning_hier.strategies.checkpoints.saved_run import SavedRun

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession

_BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm)


class RunState(EngineState):
    """State of the engine in a fit, with that of the Trainer.

    Args:
        session: session of the run.

    """

    def __init__(self, session: FitSession) -> None:
        super().__init__(session)
        module, self._session = session.trainer.lightning_module, session
        # A resumed run must know which parameters were unfrozen during training.
        self._frozen_at_first = self._frozen()
        mesh = module.device_mesh if self.divided else None
        self._mesh = None if mesh is None else list(mesh.shape)

    @override
    def kinds(self) -> State:
        # Data-parallel and tensor-parallel ranks of a group, which hold parts of the module.
        return {**super().kinds(), "mesh": self._mesh}

    def of_checkpoint(self) -> State:
        """Return the small state that is equal on all ranks, for the checkpoint itself."""
        session, settings = self._session, self._settings
        return {
            **self.shared(),
            "loops": session.position.loops(),
            "frozen": self._frozen(),
            "frozen_at_first": self._frozen_at_first,
            "automatic_values": automatic_values(settings),
            "membership": session.elastic.state() if session.elastic else None,
        }

    @override
    def of_group(self) -> State:
        return {**super().of_group(), "averages": self._session.averages.of_group()}

    @override
    def of_rank(self) -> State:
        """Return the state of this rank, for its own file. Tensors are not copied.

        If all ranks of a group have the same local model, the first rank of the group saves it. If
        the module is divided, or with GTC of updates, each rank saves its own.
        """
        session, trainer = self._session, self._session.trainer
        gradients = session.accumulated_gradients  # empty once training has started
        # After a complete step, gradients have been used, and the next step clears them. With
        # manual optimization, only the module knows which of them it will use.
        by_hand = not trainer.lightning_module.automatic_optimization
        if not gradients and (by_hand or trainer.fit_loop.epoch_loop._should_accumulate()):
            gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        outer = outer_state(self._synchroniser.blocks or (), self.names)
        state = {
            **super().of_rank(),
            # The state of the blocks has the vectors.
            "outer": [[{**own, "vectors": [*own["vectors"]]} for own in block] for block in outer],
            "averages": session.averages.of_rank(),
            "random": session.position.state(),
            "precision": trainer.precision_plugin.state_dict(),
            "gradients": {
                name: local_tensor(gradient)
                for name, gradient in gradients.items()
                if gradient is not None
            },
        }
        if session.communicators.group.position == 0 or self.ranks_differ:
            state["local_model"] = self.of_group()
        return state

    def set_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Load the gradients of an accumulated step, or all with manual optimization."""
        # With manual optimization, DDP has reduced each backward pass. Divided modules have no DDP.
        if self._session.trainer.lightning_module.automatic_optimization and not self.divided:
            reach(self.parameters[name] for name in gradients)  # first, as it sets them to zero
        for name, gradient in gradients.items():
            parameter = self.parameters[name]
            parameter.grad = sharded_like(gradient.to(parameter.device, copy=True), parameter)

    def restore(self, saved: SavedRun, checkpoint: Mapping[str, Any]) -> None:
        """Load the state of all ranks. A collective of the world: every rank must call it.

        Args:
            saved: complete files next to the checkpoint.
            checkpoint: checkpoint that Lightning has loaded.

        Raises:
            ValueError: on every rank, if the module lacks parameters of the saved run.

        """
        session, synchroniser, shared = self._session, self._synchroniser, saved.section
        missing = [name for name in shared["trainable"] if name not in self.parameters]
        if missing:
            raise ValueError(
                f"the module has no parameter {missing[0]!r}, which the saved run has trained "
                f"({len(missing)} of {len(shared['trainable'])} are missing): resume with the "
                "module that was saved, in which the same layers are wrapped by "
                "torch.compile(layer) or activation checkpointing. layer.compile() and "
                "torch.utils.checkpoint keep names"
            )
        exactly = self.continues(shared)
        synchroniser.trained.note_frozen()  # Lightning has loaded them
        # If no training is left, the module keeps its values, which are the result of ``fit``.
        with synchroniser.evaluation.loading():
            trained = exactly and session.worker.begun
            if exactly:
                synchroniser.rewind()
            self.load_steps(shared)
            if trained:
                session.wrap()  # with the initial buckets, as at the start of a run
            # When a run resumes, ``BaseFinetuning`` or the module freezes all parameters again, and
            # may not unfreeze those of earlier epochs.
            self._thaw(shared)
            session.wrap_if_changed()
            if exactly:
                self._restore_exactly(saved)
            else:
                self._restore_elsewhere(saved, checkpoint)
            # A group of one rank uses DDP to return the residuals that were loaded.
            session.wrap_if_changed()

    def _thaw(self, shared: Mapping[str, Any]) -> None:
        """Unfreeze the parameters that the saved run had unfrozen, such as by ``BaseFinetuning``.

        A parameter that is frozen now and was trainable at the start of that run stays frozen.
        """
        unfrozen = set(shared["frozen_at_first"]) - set(shared["frozen"])
        for prefix, module in self._module.named_modules():
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if not parameter.requires_grad and name in unfrozen:
                    parameter.requires_grad_(True)
                    if isinstance(module, _BATCH_NORMS):
                        module.track_running_stats = True

    def _restore_exactly(self, saved: SavedRun) -> None:
        session, rank = self._session, self._communicators.world.position
        position, _ = self._communicators.layout.coordinates(rank)
        hook = self._settings.gradient_sync
        lost: list[str] = []
        if isinstance(hook, CommHook) and hook.state is not None:
            lost = ["the state of a CommHook is not saved: use GTC, or a hook without a state"]
        with saved.loading(rank, self._communicators.device):
            own = saved.of_rank(rank)
            # Saved by the first rank of each group for all, except if the module is divided.
            model = (own if "local_model" in own else saved.of_rank(rank - position))["local_model"]
            self.load(saved.section, model, own)
            session.averages.load(model["averages"], own["averages"])
            if own["precision"]:
                session.trainer.precision_plugin.load_state_dict(own["precision"])
            session.position.load(saved.section["loops"], own["random"], lost)
            session.accumulated_gradients = own["gradients"]

    @torch.no_grad()
    def _restore_elsewhere(self, saved: SavedRun, checkpoint: Mapping[str, Any]) -> None:
        """Start from the models, updates, optimizers and residuals of a run with other groups.

        A collective of every group. The module must hold the global model of the checkpoint, which
        has the optimizers of rank 0.
        """
        lost: list[str] = []
        self._session.position.load(saved.section["loops"])
        kinds, now = saved.section["kinds"], self.kinds()
        before, divided = kinds["mesh"], now["mesh"]
        if not divided:  # Lightning has already loaded optimizers of a divided module
            self.load_optimizers(checkpoint["optimizer_states"])
        if isinstance(self._settings.gradient_sync, GTC) and kinds["of"] in (None, now["of"]):
            self._take_residuals(saved)
            ranks = self._communicators.world.size
            lost.append(f"the residuals of {saved.ranks} ranks were redistributed to {ranks}")
        elif kinds["gradient_sync"] == GTC.__name__:
            lost.append("residuals are lost")
        outer: Iterator[Any] | None = self._outer_states(saved)
        if (before is None) != (divided is None):  # parts of flat and of whole tensors
            outer = None
            lost.append("the state of outer steps, such as block momentum, is lost")
        lost.append("local optimizers start from the state of rank 0")
        lost.append("random states and the order of the data start from the beginning")
        text = self.what_changes(saved.section, lost)
        self.load_elsewhere(saved.section, outer)
        self.subtract_residuals()
        rank_zero_warn(text)

    def _outer_states(self, saved: SavedRun) -> Iterator[dict[str, Any]]:
        """State of each block's outer steps by parameter, from the files of the first group."""
        joined: list[JoinedParts] = []
        for rank in range(saved.sizes[0]):
            blocks = [*_outer_of(saved.of_rank(rank))]
            joined = joined or [JoinedParts(self.parameters) for _ in blocks]
            for parts, buckets in zip(joined, blocks, strict=True):
                for bucket in buckets:
                    parts.add(bucket)
        for parts, buckets in zip(joined, blocks, strict=True):
            yield outer_states(buckets, parts.vectors)

    def _take_residuals(self, saved: SavedRun) -> None:
        """Give this rank its part of the saved residuals. Reads the files of their ranks."""
        world = self._communicators.world
        first = saved.of_rank(0)["memory"]
        sums = {name: torch.zeros_like(residual) for name, residual in first["residuals"].items()}
        for before in range(world.position, saved.ranks, world.size):
            residuals = (first if before == 0 else saved.of_rank(before)["memory"])["residuals"]
            for name, residual in residuals.items():
                sums[name].add_(residual, alpha=world.size / saved.ranks)
        # The ranks of a group need the same thresholds, which differ between saved groups.
        memory = {"residuals": sums, "thresholds": first["thresholds"]}
        self._worker.memory.load(memory, self.parameters)

    def _frozen(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if not parameter.requires_grad]


def _outer_of(saved: State) -> Iterator[list[State]]:
    """State of the outer steps of each block, with vectors, from the state of a rank."""
    for fragments, buckets in zip(saved["blocks"] or (), saved["outer"], strict=True):
        of_block = []
        for bucket in buckets:
            fragment, number = bucket["at"]
            state = fragments[fragment]["buckets"][number]
            vectors = {n: state[n] for n in bucket["vectors"] if state[n] is not None}
            of_block.append({**bucket, "vectors": vectors})
        yield of_block
