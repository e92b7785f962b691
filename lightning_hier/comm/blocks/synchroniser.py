"""When models are synchronised: counts steps, ends blocks, shows the global model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_log import BlockLog
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.carriers import Carrier, make_carrier
from lightning_hier.comm.blocks.health import OnNonfinite
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.model_block import Agreement, BlockReport, ModelBlock
from lightning_hier.comm.blocks.one_model import OneModel
from lightning_hier.comm.blocks.shown_model import ShownModel
from lightning_hier.comm.blocks.status import Place
from lightning_hier.comm.blocks.status_exchange import StatusExchange
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.blocks.written import go_on_from
from lightning_hier.comm.broadcast import average_tensors_
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import Worker

# Steps between two checks of all ranks where blocks have not begun or there are none.
_CHECK_EVERY = 50


class Synchroniser:
    """Runs the blocks of all optimizers of one rank.

    A step is one call of ``optimizer_step`` of one optimizer. Every rank counts calls, not updates,
    so a step that loss scaling skips on one rank does not put ranks out of step.

    Args:
        module: the model. Only its trainable parameters and its buffers are used.
        optimizers: each has its own block.
        config: when and how; None synchronises no models, but still checks that all ranks are in
            step.
        communicators: channels of this rank.
        worker: counts of the worker that this rank plays.
        models: local models that this rank trains in turns; None is one.
        warmup_steps: steps before the first block, in which gradients are averaged over the world.
        cards: as in :func:`~lightning_hier.comm.blocks.carriers.make_carrier`.
        on_nonfinite: what becomes of groups whose models are not finite.

    Attributes:
        log: what the synchronisations of each optimizer's block have to log.
        on_warm: called when the warm-up ends.
        on_block: called after each synchronisation at a block's end, with its report.
        trained: which tensors are synchronised.
        statuses: what this rank tells the others at synchronisations, and learns from them.

    Raises:
        ValueError: the settings do not suit the number of groups.

    """

    def __init__(
        self,
        module: Module,
        optimizers: Sequence[Optimizer],
        config: BlockSync | None,
        *,
        communicators: Communicators,
        worker: Worker,
        models: LocalModels | None = None,
        warmup_steps: int = 0,
        cards: int | None = None,
        on_nonfinite: OnNonfinite = "error",
    ) -> None:
        self._module = module
        self._optimizers = list(optimizers)
        self.trained = TrainedTensors(module, self._optimizers)
        self._config = config
        self._communicators = communicators
        self._worker = worker
        self._models = models or LocalModels(module, optimizers)
        self._buffers = self._models.buffers
        self._warmup_steps = warmup_steps
        self.carrier: Carrier = make_carrier(
            config.across if config else "auto", communicators.group, cards=cards
        )
        self._blocks: list[ModelBlock] | None = None
        self._aside = ShownModel()
        self.log = BlockLog(len(self._optimizers))
        self._finished = False
        self._settled = False
        self.statuses = StatusExchange(communicators, worker, on_nonfinite, self._buffers)
        self._one_model = OneModel(
            module, self.trained, self._buffers, self.statuses, communicators
        )
        self.on_warm: Callable[[], None] = lambda: None
        self.on_block: Callable[[BlockReport], None] = lambda report: None

    @property
    def warming(self) -> bool:
        """Whether some optimizer has not yet taken its warm-up steps."""
        return any(count.total < self._warmup_steps for count in self._worker.steps)

    @property
    def shown(self) -> bool:
        """Whether the module holds the global model, its local one put aside."""
        return self._aside.used

    def local_values(self) -> dict[Tensor, Tensor]:
        """Trainable parameters and buffers, each with its local value, which is not copied."""
