"""Saves before a SLURM job is requeued; the job finds the checkpoint whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from lightning_hier.strategies.checkpoints.saving import finish_writing

_LIGHTNINGS = "hpc_ckpt_"
_OURS = "requeue_"


def requeue(trainer: pl.Trainer) -> None:
    """Save where Lightning looks when the job starts again, and ask SLURM to requeue the job.

    A collective of the world: every rank must call it at the same place.

    Lightning resumes from the file ``hpc_ckpt_N.ckpt`` with the highest number in
    ``default_root_dir``, and takes a number from anything that is called so. What is left of a
    save that was cut off would then end the resumed job with an error. So the save has a name of
    its own, and gets Lightning's, as a link, once it is complete.
    """
    save = trainer.save_checkpoint

    def save_and_link(path: str | Path, *args: Any, **kwargs: Any) -> None:
        filesystem, local = url_to_fs(str(path))
        if not isinstance(filesystem, LocalFileSystem):
            save(path, *args, **kwargs)
            return
        link = Path(local)
        own = link.with_name(link.name.replace(_LIGHTNINGS, _OURS))
        save(own, *args, **kwargs)
        finish_writing(trainer.strategy.checkpoint_io)
        # Part of the save: parameter servers' ranks save by themselves, and skip it.
        trainer.strategy.barrier("Trainer.save_checkpoint")
        if trainer.is_global_zero and own.exists():  # else its writer says at the end what failed
            os.symlink(own.name, link)

    connector: Any = trainer._signal_connector
    trainer.save_checkpoint = save_and_link  # type: ignore[method-assign, assignment]
    try:
        type(connector)._slurm_sigusr_handler_fn(connector, _requeue_signal(trainer), None)
    finally:
        del trainer.save_checkpoint


def _requeue_signal(trainer: pl.Trainer) -> Any:
    environment = trainer._accelerator_connector.cluster_environment
    return getattr(environment, "requeue_signal", None)
