"""Min-rate newbob: hold the learning rate while the loss falls well, then halve it every epoch."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class NewbobLR(LRScheduler):
    """Learning rate by min-rate newbob (two_tiered_bmuf_gtc, section 3.2).

    The rate stays as it is until, for the first time, the loss of an epoch is less than
    ``min_improvement`` (relative) below the loss of the epoch before. From that epoch on it is
    multiplied by ``factor`` after every epoch, whatever the loss does, down to ``min_lr``.
    ``finished`` is then true, and :class:`StopAtMinimumRate` ends the training.

    The rule of two_stage_asgd, section 4.2, is the same with ``absolute=True``, ``patience=3``,
    ``min_improvement=0.005`` and the frame error rate as the loss: halve after each epoch once the
    accuracy has risen by less than 0.5% three times.

    Like torch's ``ReduceLROnPlateau`` it is stepped once per epoch with the monitored loss. A loss
    that is not a number counts as no improvement.

    Args:
        optimizer: its ``param_groups`` are changed in place.
        min_lr: the rate at which training stops; no group's rate falls below it.
        min_improvement: fall of the loss that keeps the rate, 0.05 in the paper.
        factor: what the rate is multiplied by, 0.5 in the paper.
        absolute: whether ``min_improvement`` is a difference of losses; else it is a share of the
            loss before.
        patience: epochs with a smaller fall, in a row or not, that start the ramp.

    Raises:
        ValueError: for a ``min_lr``, ``min_improvement``, ``factor`` or ``patience`` out of range.
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
        # The base constructor would call step() without a loss, so it is left out, as torch's own
        # loss-driven scheduler does.
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
        """Whether every parameter group has reached the minimum rate."""
        return self._at_minimum(self._current_rates())

    def finishes_with(self, loss: float) -> bool:
        """Whether ``step(loss)`` would bring every group to the minimum rate; changes nothing."""
        return self._at_minimum(self._rates_after(loss))

    def step(self, metrics: Any = None, epoch: int | None = None) -> None:  # type: ignore[override]
        """Take the loss of the epoch that has just ended and set the rates of the next one.

        Args:
            metrics: the loss, a number or a tensor of one element.
            epoch: ignored; present because torch's schedulers have it.

        Raises:
            ValueError: when called without a loss.
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
        """Everything but the optimizer, as plain numbers (loads with ``weights_only=True``)."""
        return {
            key: list(value) if isinstance(value, list) else value
            for key, value in self.__dict__.items()
            if key != "optimizer"
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; the rates themselves come with the optimizer's state."""
        self.__dict__.update(state_dict)

    def _current_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _at_minimum(self, rates: list[float]) -> bool:
        return all(rate <= self.min_lr for rate in rates)

    def _small_falls_after(self, loss: float) -> int:
        if self.previous_loss is None:
            return self.small_falls
        fall = self.previous_loss - loss
        wanted = self.min_improvement * (1.0 if self.absolute else abs(self.previous_loss))
        # Written so that a loss that is not a number counts as a small fall.
        return self.small_falls + (not fall >= wanted)

    def _rates_after(self, loss: float) -> list[float]:
        rates = self._current_rates()
        if self._small_falls_after(loss) < self.patience:
            return rates
        return [max(rate * self.factor, self.min_lr) for rate in rates]


class StopAtMinimumRate(Callback):
    """Stop the fit after the epoch whose loss brings a :class:`NewbobLR` to its minimum rate.

    Lightning steps loss-driven schedulers after the last callback of an epoch, too late to keep the
    next one from starting. So the callback asks the scheduler beforehand. The monitored loss is
    reduced over all ranks, hence every rank decides the same without a message of its own.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End at once a fit that resumes from a finished one."""
        if any(scheduler.finished for scheduler, _ in _newbob_schedulers(trainer)):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set ``trainer.should_stop`` when this epoch is the last."""
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
