"""Whether a split can be scored by frames, by words, or not at all."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

_LOG = logging.getLogger(__name__)


def has_targets(trainer: Trainer, corpus: Any, split: str, *, decodes: bool) -> bool:
    """Whether a split that is evaluated has targets. Every rank must call it.

    Args:
        trainer: that evaluates.
        corpus: of its data module.
        split: ``"valid"`` or ``"test"``.
        decodes: whether words are scored.

    Raises:
        ValueError: there are neither targets nor words to score.
    """
    found = any(each.senones is not None for each in getattr(corpus, split))
    # All ranks log the same values, also where only some hosts have alignments in their cache.
    if trainer.strategy.reduce_boolean_decision(found):
        return True
    if not decodes:
        raise ValueError(
            f"the {split} split has no alignments for frame errors, and no decoder for word errors "
            "(callback DecodeWords): nothing can be scored"
        )
    rank_zero_only(_LOG.warning)(
        "the %s split has no alignments: word errors are scored, loss and frame errors are not",
        split,
    )
    return False
