"""Length of the chunks in which groups exchange their models.

Synchronisations and the planner use it. The planner does not import torch.
"""

from __future__ import annotations

# Elements of a chunk: short enough that transfer and computation of chunks overlap, and long enough
# for the overhead of a message. Quantised chunks are twice as long, because their messages are
# shorter.
CHUNK = 1 << 19

# Ranks of one host have no link to keep busy. Every message wakes another rank: with chunks of half
# a million elements, this took a third of a synchronisation (docs/reports/performance.md).
ONE_HOST_CHUNK = 1 << 21

# On an accelerator, chunks are longer, so that a kernel runs longer than its launch takes (measured
# in docs/reports/cuda.md).
ACCELERATOR_CHUNK = 1 << 25


def chunk_elements(*, on_cpu: bool, quantised: bool, one_host: bool) -> int:
    """Number of elements in a chunk.

    Args:
        on_cpu: whether the model is in the memory of the host.
        quantised: whether updates are quantised.
        one_host: whether all ranks are on one host.

    """
    if not on_cpu:
        return ACCELERATOR_CHUNK
    # The same on one host and on several, so that a resumed run keeps all errors of quantisation.
    if quantised:
        return 2 * CHUNK
    return ONE_HOST_CHUNK if one_host else CHUNK
