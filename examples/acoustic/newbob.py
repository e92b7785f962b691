"""Min-rate newbob: a constant learning rate while the loss decreases, which is halved later."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# Decrease of the loss, relative to the loss, at which the learning rate stays constant.
_MIN_IMPROVEMENT = 0.05
_FACTOR = 0.5


class NewbobLR(LRScheduler):
    """Min-rate newbob schedule (two_tiered_bmuf_gtc, section 3.2).

    The learning rate is constant until the loss of an epoch is less than 5% below the loss of the
    previous epoch. From this epoch on, it is halved after every epoch, independently of the loss,
    down to ``min_lr``. Then ``finished`` is true, and :class:`StopAtMinimumRate` stops training.

    As with ``ReduceLROnPlateau`` of torch, :meth:`step` is called once per epoch with the monitored
    loss. A loss of NaN is no improvement.

    Args:
        optimizer: optimizer, whose ``param_groups`` are changed in place.
        min_lr: smallest learning rate of all parameter groups, at which training stops.

    Raises:
        ValueError: ``min_lr`` is not between 0 and the learning rate.
    """

    def __init__(self, optimizer: Optimizer, *, min_lr: float) -> None:
        # Without super().__init__(), which calls step() without a loss, as in ReduceLROnPlateau.
        self.optimizer = optimizer
        rates = self._current_rates()
        if not 0.0 < min_lr < min(rates):
            raise ValueError(
                f"min_lr must lie between 0 and the learning rate {min(rates)}, got {min_lr}"
            )
        self.min_lr = min_lr
        self.last_epoch = 0
        self.previous_loss: float | None = None
        self.halves = False
        self.base_lrs = [*rates]
        self._last_lr = [*rates]

    @property
    def finished(self) -> bool:
        """Whether every parameter group has the minimum learning rate."""
        return self._at_minimum(self._current_rates())

    def finishes_with(self, loss: float) -> bool:
        """Return whether ``step(loss)`` would finish the schedule, without changing anything."""
        return self._at_minimum(self._rates_after(loss))

    def step(self, metrics: Any = None, epoch: int | None = None) -> None:  # type: ignore[override]
        """Set the learning rates of the next epoch.

        Args:
            metrics: loss of the last epoch, a number or a tensor of one element.
            epoch: ignored. The schedulers of torch have this argument.

        """
        loss = float(metrics)
        rates = self._rates_after(loss)
        self.halves = self._halves_after(loss)
        self.previous_loss = loss
        self.last_epoch += 1
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = [*rates]

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the optimizer, as numbers (for ``weights_only=True``)."""
        return {
            key: list(value) if isinstance(value, list) else value
            for key, value in self.__dict__.items()
            if key != "optimizer"
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state. The learning rates are in the state of the optimizer."""
        self.__dict__.update(state_dict)

    def _current_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _at_minimum(self, rates: list[float]) -> bool:
        return all(rate <= self.min_lr for rate in rates)

    def _halves_after(self, loss: float) -> bool:
        if self.halves or self.previous_loss is None:
            return self.halves
        required = _MIN_IMPROVEMENT * abs(self.previous_loss)
        # Not "decrease < required", which is false for NaN.
        return not self.previous_loss - loss >= required

    def _rates_after(self, loss: float) -> list[float]:
        rates = self._current_rates()
        if not self._halves_after(loss):
            return rates
        return [max(rate * _FACTOR, self.min_lr) for rate in rates]


class StopAtMinimumRate(Callback):
    """Stop training after the epoch in which a :class:`NewbobLR` reaches its minimum rate.

    Lightning steps schedulers with a monitored loss after the last callback of an epoch, when the
    next epoch cannot be stopped. So the callback evaluates the schedule before. All ranks stop
    together without communication, because the monitored loss is reduced over all ranks.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop at once if training resumes from a finished schedule."""
        if any(scheduler.finished for scheduler, _ in _newbob_schedulers(trainer)):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set ``trainer.should_stop`` if this epoch is the last one."""
        for scheduler, monitor in _newbob_schedulers(trainer):
            loss = trainer.callback_metrics.get(monitor)
            if loss is not None and scheduler.finishes_with(float(loss)):
                trainer.should_stop = True


def _newbob_schedulers(trainer: Trainer) -> list[tuple[NewbobLR, str]]:
    return [
        (config.scheduler, config.monitor or "")
        for config in trainer.lr_scheduler_configs
        if isinstance(config.scheduler, NewbobLR)
    ]
