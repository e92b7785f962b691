"""Min-rate newbob: a constant learning rate while the loss decreases, which is halved later."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class NewbobLR(LRScheduler):
    """Min-rate newbob schedule (two_tiered_bmuf_gtc, section 3.2).

    The learning rate is constant until the loss of an epoch is less than ``min_improvement``
    (relative) below the loss of the previous epoch. From this epoch on, it is multiplied by
    ``factor`` after every epoch, independently of the loss, down to ``min_lr``. Then ``finished``
    is true, and :class:`StopAtMinimumRate` stops training.

    The rule of two_stage_asgd, section 4.2, has ``absolute=True``, ``patience=3``,
    ``min_improvement=0.005`` and the frame error rate as the loss. The learning rate is halved
    after every epoch once the accuracy has increased by less than 0.5% three times.

    As with ``ReduceLROnPlateau`` of torch, :meth:`step` is called once per epoch with the monitored
    loss. A loss of NaN is no improvement.

    Args:
        optimizer: optimizer, whose ``param_groups`` are changed in place.
        min_lr: smallest learning rate of all parameter groups, at which training stops.
        min_improvement: decrease of the loss at which the learning rate stays constant, 0.05 in the
            paper.
        factor: factor of the learning rate, 0.5 in the paper.
        absolute: whether ``min_improvement`` is a difference of losses. Otherwise, it is relative
            to the previous loss.
        patience: number of epochs with a smaller decrease, consecutive or not, after which the
            learning rate starts to decrease.

    Raises:
        ValueError: ``min_lr``, ``min_improvement``, ``factor`` or ``patience`` is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        min_lr: float,
        min_improvement: float = 0.05,
        factor: float = 0.5,
        absolute: bool = False,
        patience: int = 1,
    ) -> None:
        # Without super().__init__(), which calls step() without a loss, as in ReduceLROnPlateau.
        self.optimizer = optimizer
        rates = self._current_rates()
        if not 0.0 < min_lr < min(rates):
            raise ValueError(
                f"min_lr must lie between 0 and the learning rate {min(rates)}, got {min_lr}"
            )
        if not 0.0 <= min_improvement < 1.0:
            raise ValueError(f"min_improvement must lie in [0, 1), got {min_improvement}")
        if not 0.0 < factor < 1.0:
            raise ValueError(f"factor must lie between 0 and 1, got {factor}")
        if patience < 1:
            raise ValueError(f"patience must be at least 1 epoch, got {patience}")
        self.min_lr = min_lr
        self.min_improvement = min_improvement
        self.factor = factor
        self.absolute = absolute
        self.patience = patience
        self.last_epoch = 0
        self.previous_loss: float | None = None
        self.small_falls = 0
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

        Raises:
            ValueError: there is no loss.
        """
        if metrics is None:
            raise ValueError("NewbobLR.step needs the loss of the epoch, got None")
        loss = float(metrics)
        rates = self._rates_after(loss)
        self.small_falls = self._small_falls_after(loss)
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

    def _small_falls_after(self, loss: float) -> int:
        if self.previous_loss is None:
            return self.small_falls
        decrease = self.previous_loss - loss
        required = self.min_improvement * (1.0 if self.absolute else abs(self.previous_loss))
        # Not "decrease < required", which is false for NaN.
        return self.small_falls + (not decrease >= required)

    def _rates_after(self, loss: float) -> list[float]:
        rates = self._current_rates()
        if self._small_falls_after(loss) < self.patience:
            return rates
        return [max(rate * self.factor, self.min_lr) for rate in rates]


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
