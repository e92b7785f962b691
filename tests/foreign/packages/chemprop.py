"""A message-passing network of chemprop, with its loaders, metrics and learning rate schedule."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from chemprop import data, models, nn

from tests.foreign.task import Task

CHAINS = ("C", "CC", "CO", "CCO", "C(=O)C", "CN", "C(C)C", "CC(=O)O")
RINGS = ("c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCOC1", "c1ccsc1", "C1CC1")


def loader(molecules: Iterable[str], shuffle: bool) -> object:
    """Return chemprop's loader of molecules. The target counts oxygen, nitrogen and carbon."""
    points = [
        data.MoleculeDatapoint.from_smi(
            text, [text.count("O") - text.upper().count("N") + 0.1 * text.upper().count("C")]
        )
        for text in molecules
    ]
    dataset = data.MoleculeDataset(points)
    return data.build_dataloader(dataset, batch_size=8, shuffle=shuffle, drop_last=shuffle)


def task() -> Task:
    """Return a small network with BatchNorm, and molecules made of chains and rings."""
    molecules = ["".join(parts) for parts in itertools.product(CHAINS, RINGS, CHAINS)]
    module = models.MPNN(
        nn.BondMessagePassing(d_h=32),
        nn.MeanAggregation(),
        nn.RegressionFFN(input_dim=32, hidden_dim=32),
        batch_norm=True,
        metrics=[nn.metrics.RMSE(), nn.metrics.MAE()],
        warmup_epochs=1,
        init_lr=1e-3,
        max_lr=1e-2,
        final_lr=1e-3,
    )
    return Task(
        module=module,
        train=loader([m for i, m in enumerate(molecules) if i % 5], shuffle=True),
        val=loader(molecules[::5], shuffle=False),
        metric="val_loss",
        load=models.MPNN.load_from_checkpoint,
        pickles=True,
    )
