"""How many elements of a tensor are worked on at a time."""

from __future__ import annotations

from torch import Tensor

# On an accelerator starting a kernel costs as much as a pass over a million elements.
_ON_ACCELERATOR = 128


def chunk_length(values: Tensor, in_cache: int) -> int:
    """As many as bound what is computed of them, without costing time.

    Args:
        values: what is worked on.
        in_cache: elements that stay in a processor's cache, with what is computed of them; by
            measurement. An accelerator takes many times as many.

    """
    return in_cache if values.device.type == "cpu" else _ON_ACCELERATOR * in_cache
