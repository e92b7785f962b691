"""Memory of the rank that needs most, without activations."""

from __future__ import annotations

from lightning_hier.planning.gradients import BITMAP_DENSITY, WORD_BYTES
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.network import Network
from lightning_hier.planning.prediction import Settings
from lightning_hier.planning.workload import Workload


def training_memory_bytes(workload: Workload, settings: Settings) -> float:
    """Model, gradients, state of the optimizer, and what the exchange of gradients adds.

    DDP adds its buckets, and GTC also the residual and the payload of all ranks.
    """
    model, size = workload.gradient_bytes, settings.group_size
    held: float = 2 * model + workload.state_bytes
    if settings.across == "divided":
        held /= size
    elif size > 1 and settings.density is None:
        held += model
    elif size > 1 and settings.density is not None:
        sent = WORD_BYTES * min(settings.density, BITMAP_DENSITY) * workload.parameters
        held += 2 * model + size * sent
    return held + workload.model_bytes - model  # buffers are not divided


def synchronisation_memory_bytes(workload: Workload, network: Network, settings: Settings) -> float:
    """Transfer buffer, global model, state of the outer step, and what the settings add.

    The table is in docs/architecture.md, "The life of one step".
    """
    layout = Layout(network, settings)
    if layout.models == 1:
        return 0.0
    # W; Delta or the momentum of DiLoCo; block-start weights and update in flight; both moments at
    # the start of a block and, with a delay, when they were sent and in flight.
    late = bool(settings.overlap)
    vectors = 1.0 + (settings.block_sync != "model_averaging") + 2.0 * late
    vectors += 2.0 * settings.moments * (1.0 + 2.0 * late)
    # Error feedback, in float32 or wider, of own values, and of the sums that a rank computes.
    sparse, dense = settings.across_density < 1.0, settings.across_dtype != "same"
    errors = 1.0 if sparse else dense * (1 + 1 / layout.between_hosts.size)
    vectors += errors * max(4 / workload.element_bytes, 1.0)
    buffer = workload.model_bytes + 2 * settings.moments * workload.gradient_bytes
    share = 1.0 if settings.across == "leader" else 1 / settings.group_size
    # The buffer of other modules holds all tensors, of which shards are handed out in the group.
    buffer_share = share if settings.across == "divided" else 1.0
    return buffer_share * buffer + share * vectors * workload.gradient_bytes
