"""When models are synchronised: counts steps, ends blocks, shows the global model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.carriers import Carrier, make_carrier
from lightning_hier.comm.blocks.members import divide
from lightning_hier.comm.blocks.model_block import BlockReport, ModelBlock
from lightning_hier.comm.blocks.status import Place, Status, exchange
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import StepCount, Worker

# Steps between two checks of all ranks where there is no block synchronisation.
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
        warmup_steps: steps before the first block, in which gradients are averaged over the world.
        cards: as in :func:`~lightning_hier.comm.blocks.carriers.make_carrier`.

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
        warmup_steps: int = 0,
        cards: int | None = None,
    ) -> None:
        self._module = module
        self._trainable = {p for p in module.parameters() if p.requires_grad}
        self._optimizers = list(optimizers)
        self._config = config
        self._communicators = communicators
        self._worker = worker
        self._warmup_steps = warmup_steps
        self.carrier: Carrier = make_carrier(
            config.across if config else "auto", communicators.group, cards=cards
        )
        self._blocks: list[ModelBlock] | None = None
        self._shown: list[tuple[Tensor, Tensor]] | None = None
        self.reports: dict[int, BlockReport] = {}
        self._finished = False
        self.terminate = False
        self.agreed_to_terminate = False
        self.on_warm: Callable[[], None] = lambda: None

    @property
    def warming(self) -> bool:
        """Whether some optimizer has not yet taken its warm-up steps."""
        return any(count.total < self._warmup_steps for count in self._worker.steps)

    @property
    def shown(self) -> bool:
        """Whether the module holds the global model, its local one put aside."""
        return self._shown is not None

    def note_signal(self) -> None:
        """Remember that this rank got a signal; all learn of it at the next synchronisation."""
        self.terminate = True

    def take_signal(self) -> bool:
        """Whether all ranks have learnt since the last call that some rank got a signal."""
        agreed = self.agreed_to_terminate
        if agreed:
            self.terminate = self.agreed_to_terminate = False
        return agreed

    def metrics(self) -> dict[str, float]:
        """What the last synchronisation of each optimizer's block did, by name."""
        found: dict[str, float] = {}
        for index, report in self.reports.items():
            prefix = "hier/block" if len(self._optimizers) == 1 else f"hier/block/{index}"
            found[f"{prefix}/update_norm"] = report.update_norm
            found[f"{prefix}/model_distance"] = report.model_distance
            found[f"{prefix}/blocks"] = self._worker.steps[index].blocks
        return found

    def local_values(self) -> dict[Tensor, Tensor]:
        """Trainable parameters and buffers, each with its local value, which is not copied."""
        aside = {tensor: saved for tensor, saved in self._shown or []}
        tensors = [p for p in self._module.parameters() if p in self._trainable]
        every: list[Tensor] = [*tensors, *self._module.buffers()]
        return {tensor: aside.get(tensor, tensor.detach()) for tensor in every}

    @property
    def blocks(self) -> Sequence[ModelBlock] | None:
        """One for each optimizer; None before the first step after the warm-up."""
        return self._blocks

    def open_blocks(self, trainable: Collection[Parameter]) -> Sequence[ModelBlock]:
        """Begin blocks with the present model, before training goes on where it was stopped.

        Args:
            trainable: parameters that have been trainable until then.

        Returns:
            None of them where models are not synchronised.

        """
        self._trainable |= set(trainable)
        self._blocks = self._new_blocks()
        return self._blocks or ()

    def admit_trainable(self) -> bool:
        """Take in parameters that have been unfrozen since the last call.

        A parameter that has been trainable once stays in the global model. A collective of the
        group where there are such parameters and blocks have begun.

        Returns:
            Whether there were any.

        """
        new = {p for p in self._module.parameters() if p.requires_grad} - self._trainable
        self._trainable |= new
        if new and self._blocks is not None:
            members = divide(self._module, self._optimizers, self._trainable)
            self._blocks = [
                block if len(own.tensors) == len(block.members.tensors) else block.regrown(own)
                for block, own in zip(self._blocks, members, strict=True)
            ]
        return bool(new)

    def before_step(self) -> None:
        """Prepare for a step of any optimizer. The first one after the warm-up opens the blocks."""
        if self._blocks is None and not self.warming:
            self._blocks = self._new_blocks()

    def after_step(self, optimizer: int) -> None:
        """Count a step, and end the block if it was the last of it.

        A collective of the world at the end of a block, and of nobody before.
        """
        count = self._worker.steps[optimizer]
        was_warming = self.warming
        count.total += 1
        if was_warming:
            if not self.warming:
                self._end_warm_up()
            return
        count.in_block += 1
        # More than a block, where a run goes on with a smaller block_size.
        if count.in_block >= (self._config.block_size if self._config else _CHECK_EVERY):
            self._end_block(optimizer, count)

    def show(self) -> None:
        """Put the local model aside and write the global model into the module, in place.

        A collective of the world. Does nothing where the global model is already shown, and after
        :meth:`finish`.
        """
        if not self.shown:
            self._look(Place.LOOK)

    def hide(self) -> None:
        """Put the local model back, bit for bit. Does nothing where it is not aside for a look."""
        if self._shown is not None and not self._finished:
            targets = [tensor.detach() for tensor, _ in self._shown]
            if targets:
                torch._foreach_copy_(targets, [saved for _, saved in self._shown])
            self._shown = None

    def finish(self) -> None:
        """End the last, short blocks and leave the global model in the module.

        The local model stays aside, for a checkpoint that is saved after training. A collective of
        the world.
        """
        self.hide()
        self._look(Place.END)
        self._finished = True

    def _look(self, place: Place) -> None:
        """Put aside what a look changes, and write the global model. A collective of the world."""
        blocks = self._present_blocks()
        if blocks:
            tensors = [tensor for block in blocks for tensor in block.members.tensors]
        else:
            tensors = list(self._module.buffers())
        self._shown = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._write_global(place, blocks)

    def _present_blocks(self) -> list[ModelBlock] | None:
        """The blocks, or, between the warm-up and the first step, what they would be."""
        return self._new_blocks() if self._blocks is None and not self.warming else self._blocks

    def _write_global(self, place: Place, blocks: list[ModelBlock] | None) -> None:
        """Write the global model into the module, in place. A collective of the world."""
        with self._communicators.roll_call.at(place.text), torch.no_grad():
            if not blocks:
                # One model trains, so parameters are equal on all ranks; buffers are not.
                self._agree(place, -1, 0.0)
                buffers = list(self._module.buffers())
                broadcast_tensors_(buffers, self._communicators.world, "buffers")
                return
            for index, block in enumerate(blocks):
                pending = self._worker.steps[index].in_block > 0
                block.look(self._agreement(place, index), pending=pending)

    def _new_blocks(self) -> list[ModelBlock] | None:
        if self._config is None:
            return None
        return [
            ModelBlock(
                members,
                optimizer,
                config=self._config,
                carrier=self.carrier,
                communicators=self._communicators,
            )
            for members, optimizer in zip(
                divide(self._module, self._optimizers, self._trainable),
                self._optimizers,
                strict=True,
            )
        ]

    def _end_warm_up(self) -> None:
        """Make the groups' models equal to the last bit, buffers included, and begin blocks."""
        with self._communicators.roll_call.at("the end of the warm-up"), torch.no_grad():
            self._agree(Place.CHECK, -1, 0.0)
            everything = [*self._module.parameters(), *self._module.buffers()]
            for block in self._new_blocks() or []:
                everything += block.optimizer_tensors
            broadcast_tensors_(everything, self._communicators.world, "initial_model")
        self.on_warm()

    def _end_block(self, optimizer: int, count: StepCount) -> None:
        count.in_block = 0
        if self._blocks is None:
            with self._communicators.roll_call.at(Place.CHECK.text):
                self._agree(Place.CHECK, optimizer, 0.0)
            return
        count.blocks += 1
        with self._communicators.roll_call.at(Place.BLOCK.text), torch.no_grad():
            agreement = self._agreement(Place.BLOCK, optimizer)
            self.reports[optimizer] = self._blocks[optimizer].synchronise(agreement)

    def _agreement(self, place: Place, optimizer: int) -> Callable[[float], float]:
        return lambda squares: self._agree(place, optimizer, squares)

    def _agree(self, place: Place, optimizer: int, squares: float) -> float:
        counts = self._worker.steps
        steps = counts[optimizer].total if optimizer >= 0 else sum(c.total for c in counts)
        own = Status(place, optimizer, steps, squares, int(self.terminate))
        statuses = exchange(own, self._communicators.world, self._communicators.device)
        self.agreed_to_terminate |= any(status.terminate for status in statuses)
        return sum(status.squares for status in statuses)
