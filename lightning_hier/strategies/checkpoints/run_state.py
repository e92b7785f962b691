"""State of a synchronous run: what is equal on all ranks, and the state of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm
from typing_extensions import override

from lightning_hier.comm.gradients.reached import reach
from lightning_hier.comm.sharded_tensors import local_tensor, sharded_like
from lightning_hier.loop.engine_state import EngineState, State
from lightning_hier.loop.outer_state import outer_state
from lightning_hier.loop.settings import automatic_values

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession

_BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm)


class RunState(EngineState):
    """State of the engine in a fit, with that of the Trainer. Does not communicate.

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
            "outer": [[_without_values(bucket) for bucket in block] for block in outer],
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
        # With manual optimization, DDP has reduced each backward pass.
        if self._session.trainer.lightning_module.automatic_optimization:
            reach(self.parameters[name] for name in gradients)  # first, as it sets them to zero
        for name, gradient in gradients.items():
            parameter = self.parameters[name]
            parameter.grad = sharded_like(gradient.to(parameter.device, copy=True), parameter)

    def thaw(self, shared: Mapping[str, Any]) -> None:
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

    def _frozen(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if not parameter.requires_grad]


def _without_values(bucket: State) -> State:
    """State of an outer step with the names of its vectors, which the state of the block has."""
    return {**bucket, "vectors": [*bucket["vectors"]]}


def outer_of(saved: State) -> Iterator[list[State]]:
    """State of the outer steps of each block, with vectors, from the state of a rank."""
    for fragments, buckets in zip(saved["blocks"] or (), saved["outer"], strict=True):
        of_block = []
        for bucket in buckets:
            fragment, number = bucket["at"]
            state = fragments[fragment]["buckets"][number]
            vectors = {n: state[n] for n in bucket["vectors"] if state[n] is not None}
            of_block.append({**bucket, "vectors": vectors})
        yield of_block
