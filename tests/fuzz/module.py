"""The module that cases train, its data, and its optimizers."""

from __future__ import annotations

import os
import signal
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from tests.fuzz.case import Case
from tests.trainer.fitting import weights


class FuzzNet(pl.LightningModule):
    """Three layers of one or two dtypes, with records for the properties.

    Attributes:
        seen: the weights after every batch.
        validated: the weights in every validation.
        local: the weights after the last step of their optimizer, before the synchronisation.

    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(case.seed)
        self.case = case
        self.automatic_optimization = not case.by_hand
        first = torch.float32 if case.dtype == "two" else getattr(torch, case.dtype)
        last = torch.float64 if case.dtype == "two" else first
        self.first = nn.Linear(4, 7, dtype=first)
        self.first.requires_grad_(not case.unfreezes)
        self.norm = nn.BatchNorm1d(7, dtype=first) if case.batchnorm else nn.Tanh()
        self.middle = nn.Linear(7, 7, dtype=first)
        self.last = nn.Linear(7, 2, dtype=last)
        self.seen: list[Tensor] = []
        self.validated: list[Tensor] = []
        self.local: dict[str, Tensor] = {}
        self.batches_seen = 0

    def forward(self, rows: Tensor) -> Tensor:
        values = self.norm(self.first(rows.to(self.first.weight.dtype)))
        values = nn.functional.dropout(values, self.case.dropout, self.training)
        # The batch decides, so that the decision is the same after a resume.
        if not (self.case.skips and self.training and rows.sum() > 1):
            values = values + self.middle(values).tanh()
        result: Tensor = self.last(values.to(self.last.weight.dtype))
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        self._fault()
        loss = None if self.case.by_hand else self.loss(batch)
        if self.case.by_hand:
            self._train_by_hand(batch, batch_idx)
        # Hooks of callbacks run before those of the module, so a later hook would count too late
        # for their checkpoints.
        self.batches_seen += 1
        return loss

    def _train_by_hand(self, batch: list[Tensor], batch_idx: int) -> None:
        all_optimizers = self.optimizers()
        optimizers = all_optimizers if isinstance(all_optimizers, list) else [all_optimizers]
        for one in optimizers:
            if batch_idx % self.case.accumulate == 0:
                one.zero_grad()  # GTC would send the old gradients again
        for one in optimizers:
            if batch_idx % self.case.accumulate == 0:
                one.zero_grad()
            self.manual_backward(self.loss(batch) / self.case.accumulate)
            if (batch_idx + 1) % self.case.accumulate == 0:
                one.step()
        if self.case.scheduler is not None:
            schedulers: Any = self.lr_schedulers()
            for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
                scheduler.step()

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = (self(batch[0]).float() - batch[1]).square().mean()
        return loss * float("nan") if self._fault_is("nan") else loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        torch.randn(3)  # validation must not change the random numbers of training
        if batch_idx == 0 and not self.trainer.sanity_checking:
            self.validated.append(weights(self))
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def on_validation_model_zero_grad(self) -> None:
        # Lightning would clear the gradients that manual optimization accumulates.
        if not self.case.by_hand:
            super().on_validation_model_zero_grad()

    def on_train_epoch_start(self) -> None:
        if self.case.unfreezes:
            self.first.requires_grad_(self.current_epoch > 0)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(weights(self))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["batches_seen"] = self.batches_seen

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.batches_seen = checkpoint["batches_seen"]

    def configure_optimizers(self) -> Any:
        case = self.case
        layers = [*self.parameters()]
        shares = [layers] if len(case.optimizers) == 1 else [layers[:2], layers[2:]]
        optimizers = [
            getattr(torch.optim, name)(share, **arguments)
            for share, (name, arguments) in zip(shares, case.optimizers, strict=True)
        ]
        for one in optimizers:
            one.register_step_post_hook(lambda stepped, *_: self._stepped(stepped))
        if case.scheduler is None:
            return optimizers
        schedulers = [
            {"scheduler": StepLR(own, 2, 0.7), "interval": case.scheduler} for own in optimizers
        ]
        return optimizers, schedulers

    def _stepped(self, optimizer: Optimizer) -> None:
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for name, parameter in self.named_parameters():
            if id(parameter) in own:
                self.local[name] = parameter.detach().clone()

    def _fault(self) -> None:
        if self._fault_is("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault_is("raise"):
            raise ValueError("this rank's own mistake, planted by the fuzzer")

    def _fault_is(self, kind: str) -> bool:
        fault = self.case.fault
        here = int(os.environ["RANK"]), self.batches_seen
        return fault is not None and fault.kind == kind and (fault.rank, fault.step) == here
