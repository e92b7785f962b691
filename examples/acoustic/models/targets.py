"""Check before evaluation whether a split has targets or can be decoded."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

_LOG = logging.getLogger(__name__)


def has_targets(trainer: Trainer, corpus: Any, split: str, *, decodes: bool) -> bool:
    """Return whether a split has targets on all ranks. Every rank must call it.

    Args:
        trainer: Trainer of the evaluation.
        corpus: corpus of its data module.
        split: ``"valid"`` or ``"test"``.
        decodes: whether word errors are computed.

    Raises:
        ValueError: there are no targets, and word errors are not computed.
    """
    has_targets_here = any(utterance.senones is not None for utterance in getattr(corpus, split))
    # All ranks must log the same values, even if only some hosts have alignments in their cache.
    if trainer.strategy.reduce_boolean_decision(has_targets_here):
        return True
    if not decodes:
        raise ValueError(
            f"the {split} split has no alignments for frame errors, and no decoder for word "
            "errors: add alignments, or the callback DecodeWords"
        )
    rank_zero_only(_LOG.warning)(
        "the %s split has no alignments: word errors are scored, loss and frame errors are not",
        split,
    )
    return False
