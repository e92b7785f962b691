"""SCVI of scvi-tools: its training plan, its data module, and its sampler for several ranks."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import scvi
from scvi.train import TrainingPlan

from tests.foreign.task import Task


def task() -> Task:
    """Return a variational autoencoder of cells, with BatchNorm, and synthetic cells."""
    cells = scvi.data.synthetic_iid(batch_size=400, n_genes=60, n_proteins=0, n_labels=3)
    scvi.model.SCVI.setup_anndata(cells, batch_key="batch", labels_key="labels")
    model = scvi.model.SCVI(cells, n_hidden=32, n_latent=4)
    data = scvi.dataloaders.DataSplitter(
        model.adata_manager,
        train_size=0.8,
        batch_size=8,
        shuffle_set_split=False,
        # As SCVI.train does it for strategies with "ddp" in their names.
        distributed_sampler="WORLD_SIZE" in os.environ,
    )
    # The plan does not save the network that it was given.
    settings: dict[str, Any] = {
        "module": model.module,
        "lr": 5e-3,
        "n_steps_kl_warmup": 40,
        "n_epochs_kl_warmup": None,
    }
    return Task(
        module=TrainingPlan(**settings),
        train=data,
        val=None,
        unused=True,
        metric="elbo_validation",
        load=partial(TrainingPlan.load_from_checkpoint, **settings),
    )
