"""Train many small workers as one batch of models; see ``RunStore`` for the command line."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from examples.language.schedules import Schedule
from examples.language.stacked.block_update import BlockUpdate
from examples.language.stacked.draws import Draws, valid_windows
from examples.language.stacked.local_optimizers import SGD, AdamW, LocalOptimizer
from examples.language.stacked.model import StackedTransformer, initial_weights
from examples.language.stacked.settings import CLIP, CONTEXT, VOCABULARY, Result, Settings
from examples.run_store import carry_out

SCHEDULE = Schedule(kind="constant")

_VALID_BATCH = 512


def run(settings: Settings) -> Result:
    """Train and score."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    if settings.engine == "trainer":
        from examples.language.stacked.by_trainer import train_by_trainer

        weights, blocks = train_by_trainer(settings)
    else:
        weights, blocks = train(settings)
    seconds = time.perf_counter() - begun
    found = score(weights)
    nothing = math.log(VOCABULARY)
    loss = min(found, nothing) if math.isfinite(found) else nothing
    return Result(settings=settings.anywhere(), loss=loss, blocks=blocks, seconds=seconds)


def train(settings: Settings, dtype: torch.dtype = torch.float32) -> tuple[Tensor, int]:
    """The global model (P,) after training, and the number of synchronisations of models."""
    network = StackedTransformer(dtype)
    draws = Draws(settings)
    weights = initial_weights(settings.seed).to(dtype).unsqueeze(0)
    optimizer = _optimizer(settings, weights, network)
    together = settings.warmup_steps if settings.averages else settings.steps
    for step in range(together):
        _step(network, weights, draws.batch(step), optimizer, _rate(settings, step))
    if not settings.averages:
        return weights[0], 0
    optimizer.repeat(settings.models)
    update = BlockUpdate(settings, weights[0], optimizer)
    weights = weights.repeat(settings.models, 1)
    blocks, since = 0, 0
    for step in range(together, settings.steps):
        _step(network, weights, draws.batch(step), optimizer, _rate(settings, step))
        since += 1
        if since == settings.block_size or step + 1 == settings.steps:
            update.synchronise(weights, since)
            blocks, since = blocks + 1, 0
    return update.model, blocks


@torch.no_grad()
def score(weights: Tensor) -> float:
    """Mean loss of one model (P,) on the valid split."""
    network = StackedTransformer(weights.dtype)
    parts = zip(*(tokens.split(_VALID_BATCH) for tokens in valid_windows()), strict=True)
    losses = [
        network.losses(weights.unsqueeze(0), inputs.unsqueeze(0), targets.unsqueeze(0))
        for inputs, targets in parts
    ]
    return float(torch.cat(losses).mean())


def _step(
    network: StackedTransformer,
    weights: Tensor,
    batch: tuple[Tensor, Tensor],
    optimizer: LocalOptimizer,
    rate: float,
) -> None:
    """One step of every model, in place; workers that share one have their batches in one."""
    inputs, targets = (tokens.reshape(len(weights), -1, CONTEXT) for tokens in batch)
    tracked = weights.detach().requires_grad_()
    (gradients,) = torch.autograd.grad(network.losses(tracked, inputs, targets).sum(), tracked)
    norms = gradients.norm(dim=1, keepdim=True)
    gradients.mul_((CLIP / (norms + 1e-6)).clamp_(max=1.0))
    optimizer.step(weights, gradients, rate)


def _optimizer(settings: Settings, weights: Tensor, network: StackedTransformer) -> LocalOptimizer:
    if settings.optimizer == "sgd":
        return SGD(weights)
    return AdamW(weights, network.decayed, (settings.beta1, settings.beta2))


def _rate(settings: Settings, step: int) -> float:
    return settings.learning_rate * SCHEDULE.factor(step, settings.steps)


def main() -> None:
    """Do the runs that the argument names."""
    # Second moments of rare tokens fall below 1e-38 and slow down. It holds for the whole process.
    torch.set_flush_denormal(True)
    carry_out(run, Settings)


if __name__ == "__main__":
    main()
