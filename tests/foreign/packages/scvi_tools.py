"""SCVI of scvi-tools: its training plan, its loaders, and its Trainer."""

from __future__ import annotations

import lightning.pytorch as pl
import scvi

from tests.foreign.task import Task


def task() -> Task:
    """Return a variational autoencoder of cells, with BatchNorm, and synthetic cells."""
    cells = scvi.data.synthetic_iid(batch_size=400, n_genes=60, n_proteins=0, n_labels=3)
    scvi.model.SCVI.setup_anndata(cells, batch_key="batch", labels_key="labels")
    model = scvi.model.SCVI(cells, n_hidden=32, n_latent=4)
    data = scvi.dataloaders.DataSplitter(
        model.adata_manager, train_size=0.8, batch_size=16, distributed_sampler=False
    )
    data.setup()

    def plan() -> pl.LightningModule:
        return scvi.train.TrainingPlan(model.module, lr=5e-3, n_steps_kl_warmup=40)

    def load(path: str) -> pl.LightningModule:
        # The plan does not save the network that it was given.
        return scvi.train.TrainingPlan.load_from_checkpoint(
            path, module=model.module, lr=5e-3, n_steps_kl_warmup=40
        )

    return Task(
        module=plan(),
        train=data.train_dataloader(),
        val=data.val_dataloader(),
        metric="elbo_validation",
        load=load,
    )
