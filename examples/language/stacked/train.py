"""Train many small workers as one batch of models. ``RunStore`` documents the command line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from examples.language.stacked.block_update import BlockUpdate
from examples.language.stacked.draws import Draws, valid_windows
from examples.language.stacked.local_optimizers import SGD, AdamW, LocalOptimizer
from examples.language.stacked.model import StackedTransformer, initial_weights
from examples.language.stacked.outer_update import OuterUpdate
from examples.language.stacked.settings import CLIP, CONTEXT, VOCABULARY, Result, Settings
from examples.run_store import run_job

Observer = Callable[[int, float, Tensor], None]

_VALID_BATCH = 512
_CURVE_POINTS, _CURVE_WINDOWS = 20, 512


def run(settings: Settings) -> Result:
    """Train, and compute the loss of the global model."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    curve: list[tuple[int, float, float]] = []
    if settings.engine == "trainer":
        from examples.language.stacked.by_trainer import train_by_trainer

        weights, blocks = train_by_trainer(settings)
    else:
        every = max(1, settings.steps // _CURVE_POINTS)

        def observe(step: int, synchronised: float, model: Tensor) -> None:
            if step % every == 0 or step == settings.steps:
                curve.append((step, synchronised, _bounded_loss(model, _CURVE_WINDOWS)))

        weights, blocks = train(settings, observe=observe)
    seconds = time.perf_counter() - begun
    return Result(
        settings=settings.portable_settings(),
        loss=_bounded_loss(weights),
        blocks=blocks,
        seconds=seconds,
        curve=curve,
    )


def train(
    settings: Settings, dtype: torch.dtype = torch.float32, *, observe: Observer | None = None
) -> tuple[Tensor, int]:
    """Return the global model (P,) after training, and the number of synchronisations of models.

    Args:
        settings: settings of the run.
        dtype: dtype of the weights.
        observe: function that is called after each step. Its arguments are the step, counted from
            1, the number of synchronisations of whole models so far, and the global model.

    """
    network = StackedTransformer(dtype)
    draws = Draws(settings)
    weights = initial_weights(settings.seed).to(dtype).unsqueeze(0)
    optimizer = _optimizer(settings, weights, network)
    synchronous_steps = settings.warmup_steps if settings.averages else settings.steps
    for step in range(synchronous_steps):
        _step(network, weights, draws.batch(step), optimizer, settings.rate(step))
        if observe is not None:
            observe(step + 1, 0.0, weights[0])
    if not settings.averages:
        return weights[0], 0
    optimizer.repeat(settings.models)
    update = _update(settings, weights[0], optimizer, network)
    weights = weights.repeat(settings.models, 1)
    blocks, step_in_block, block_size = 0, 0, 0
    for step in range(synchronous_steps, settings.steps):
        block_size = block_size if step_in_block else settings.block_at(step)
        _step(network, weights, draws.batch(step), optimizer, settings.rate(step))
        step_in_block += 1
        update.after_step(weights, step_in_block, block_size)
        if step_in_block == block_size:
            blocks, step_in_block = blocks + 1, 0
        if step + 1 == settings.steps:
            update.finish(weights)
        if observe is not None:
            observe(step + 1, update.synchronised, update.model)
    return update.model, blocks + (step_in_block > 0)


@torch.no_grad()
def score(weights: Tensor, windows: int | None = None) -> float:
    """Return the mean loss of one model (P,) on the valid split, or on some windows of it."""
    network = StackedTransformer(weights.dtype)
    valid = [
        tokens if windows is None else tokens[:: len(tokens) // windows]
        for tokens in valid_windows()
    ]
    batches = zip(*(tokens.split(_VALID_BATCH) for tokens in valid), strict=True)
    losses = [
        network.losses(weights.unsqueeze(0), inputs.unsqueeze(0), targets.unsqueeze(0))
        for inputs, targets in batches
    ]
    return float(torch.cat(losses).mean())


def _bounded_loss(weights: Tensor, windows: int | None = None) -> float:
    """Return the loss, or that of a uniform distribution if the loss is larger or not finite."""
    loss, uniform_loss = score(weights, windows), math.log(VOCABULARY)
    return min(loss, uniform_loss) if math.isfinite(loss) else uniform_loss


def _step(
    network: StackedTransformer,
    weights: Tensor,
    batch: tuple[Tensor, Tensor],
    optimizer: LocalOptimizer,
    rate: float,
) -> None:
    """Take one step with every model, in place. The batches of its workers are concatenated."""
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


def _update(
    settings: Settings, start: Tensor, optimizer: LocalOptimizer, network: StackedTransformer
) -> BlockUpdate | OuterUpdate:
    if settings.system == "diloco":
        return OuterUpdate(settings, start, network.sizes)
    return BlockUpdate(settings, start, optimizer)


def main() -> None:
    """Do the runs of the command-line argument."""
    # For the whole process, because second moments of rare tokens become subnormal, which is slow.
    torch.set_flush_denormal(True)
    run_job(run, Settings)


if __name__ == "__main__":
    main()
