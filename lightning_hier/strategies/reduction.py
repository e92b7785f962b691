"""How the gradients of one rank are reduced while one Trainer fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_hook import GradientHook, gradient_hook
from lightning_hier.comm.gradients.gradient_sync import CommHook, GradientSync
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.ready_order import ReadyOrder, rehearse
from lightning_hier.comm.gradients.reducers import build_hook
from lightning_hier.comm.gradients.worker_gradients import WorkerGradients
from lightning_hier.comm.worker import Worker


class Reduction:
    """The hook in DDP, or, where this rank plays several workers, what hands it their gradients.

    Args:
        communicators: channels of this rank.
        workers: that this rank plays.

    """

    def __init__(self, communicators: Communicators, workers: Sequence[Worker]) -> None:
        self._communicators = communicators
        self._workers = workers
        self._hook: GradientHook | None = None
        self._wrapped: DistributedDataParallel | None = None
        self._needs_hook = False
        self._in_turns: WorkerGradients | None = None
        self._reached: ReachedParameters | None = None
        self._reduced: set[Parameter] = set()

    @property
    def ready_order(self) -> list[Parameter]:
        """Parameters in the order in which the first step has made their gradients."""
        return [] if self._hook is None else self._hook.ready_order.parameters

    @property
    def in_turns(self) -> WorkerGradients:
        """Reduces what the workers of this rank make one after the other."""
        if self._in_turns is None:
            raise RuntimeError("gradients are reduced from the moment when DDP wraps the module")
        return self._in_turns

    def attach(
        self,
        model: DistributedDataParallel,
        config: GradientSync,
        *,
        warming: bool,
        grad_scale: Callable[[], float],
        find_unused: bool,
    ) -> None:
        """Register the hook with a module that DDP has just wrapped, perhaps anew."""
        self.close()
        reduced = [own for own in model.parameters() if own.requires_grad]
        self._reduced = set(reduced)
        self._reached = ReachedParameters(reduced) if find_unused else None
        self._hook = build_hook(
            config,
            self._communicators,
            self._workers,
            warming=warming,
            grad_scale=grad_scale,
            ready_order=ReadyOrder(reduced),
            reached=self._reached,
        )
        model.register_comm_hook(self._hook, gradient_hook)
        self._in_turns = WorkerGradients(reduced, self._hook, self._in_turns)
        self._wrapped, self._needs_hook = model, isinstance(config, CommHook)
        self.spare_ddp()

    def covers(self, parameters: Iterable[Parameter]) -> bool:
        """Whether all of them that are trainable are reduced."""
        return all(own in self._reduced for own in parameters if own.requires_grad)

    def take_compressed(self) -> set[Parameter]:
        """Parameters of the last pass that have a residual; nothing where none can be unused."""
        reached = set() if self._reached is None else self._reached.take_last()
        return reached & self._workers[0].memory.tensors.keys()

    def rehearse(self, model: DistributedDataParallel, order: list[Parameter]) -> None:
        """Have DDP form its buckets as a run had them whose gradients came in ``order``.

        Where parameters may be unused, it keeps those that it has made at first.
        """
        if self._hook is None or model.find_unused_parameters:
            return
        if not order or set(order) != self._reduced:
            return
        self._hook.rehearsing = True
        rehearse(model, order)
        self._hook.rehearsing = False
        self._hook.ready_order.parameters = list(order)

    def spare_ddp(self) -> None:
        """Have DDP reduce gradients only where it is what reduces them, and with somebody.

        In a group of one rank its reducer would copy every gradient twice at every step for
        nothing. A hook of the user's runs all the same; so does ours while it has residuals of a
        run of larger groups to hand back.
        """
        if self._wrapped is None or self._hook is None:
            return
        alone = self._hook.channel.size == 1
        idle = alone and not self._needs_hook and not self._workers[0].memory.tensors
        self._wrapped.require_backward_grad_sync = len(self._workers) == 1 and not idle

    def end_warm_up(self) -> None:
        """Reduce in the group from the next step on."""
        if self._hook is not None:
            self._hook.end_warm_up()
            self.spare_ddp()

    def metrics(self) -> dict[str, float]:
        """What the hook has to log, by name."""
        return {} if self._hook is None else self._hook.metrics()

    def close(self) -> None:
        """Take back what was attached to parameters."""
        if self._hook is not None:
            self._hook.close()
