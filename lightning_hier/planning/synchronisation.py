"""Cost of the synchronisations of a block: time, bytes and memory."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.planning.fragment_load import FragmentLoad
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.network import Network
from lightning_hier.planning.prediction import Settings
from lightning_hier.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """Cost of the synchronisations of a mean block, one for each of n fragments.

    With ``moments_every``, blocks differ. The mean is that of all blocks.

    Attributes:
        blocking_s: seconds in which no rank trains, in all synchronisations of a block.
        in_flight_s: seconds of the exchange of one fragment, if it may overlap with steps.
        host_bytes: bytes of models that a host sends to other hosts in a block, as `Traffic` counts
            them.
        pause_s: seconds in which no rank trains, in the largest synchronisation.
        peak_bytes: bytes of models that a host sends to other hosts in the largest one.

    """

    blocking_s: float = 0.0
    in_flight_s: float = 0.0
    host_bytes: float = 0.0
    pause_s: float = 0.0
    peak_bytes: float = 0.0

    def outlasting_s(self, step_s: float, settings: Settings) -> float:
        """Seconds of the exchange of a fragment that steps do not hide.

        A fragment is in flight during ``overlap`` steps, and the link has tau / n steps for each.
        """
        steps = min(settings.delay, settings.block_size / settings.fragments)
        return max(self.in_flight_s - steps * step_s, 0.0)

    def mean_step_s(self, step_s: float, settings: Settings) -> float:
        """(tau step + synchronisations + parts of their exchanges that are not hidden) / tau."""
        outlasting_s = settings.fragments * self.outlasting_s(step_s, settings)
        return step_s + (self.blocking_s + outlasting_s) / settings.block_size


def synchronise(workload: Workload, network: Network, settings: Settings) -> Synchronisation:
    """Predict the synchronisations of a block.

    Raises:
        ValueError: the groups do not fit the hosts.

    """
    layout = Layout(network, settings)
    if layout.models == 1:
        return Synchronisation()
    # Synchronisations with the moments, and without them.
    largest, others = (
        _of_fragment(workload, layout, moments=moments) for moments in (settings.moments, False)
    )
    share = 1 / settings.moments_every
    blocking_s, host_bytes = (
        settings.fragments * (share * getattr(largest, name) + (1 - share) * getattr(others, name))
        for name in ("blocking_s", "host_bytes")
    )
    return Synchronisation(
        blocking_s=blocking_s,
        in_flight_s=largest.in_flight_s,
        host_bytes=host_bytes,
        pause_s=largest.blocking_s,
        peak_bytes=largest.host_bytes,
    )


def _of_fragment(workload: Workload, layout: Layout, *, moments: bool) -> Synchronisation:
    """One synchronisation."""
    network = layout.network
    fragment = FragmentLoad(workload, layout, moments=moments)
    reading_s = fragment.report().seconds(network) + fragment.read().processor_s(network)
    exchanged, handed_out = fragment.exchange(), fragment.hand_out()
    local = fragment.encode() + fragment.apply() + handed_out
    if layout.settings.overlap:
        blocking_s = local.seconds(network, pieces=fragment.chunks)
        in_flight_s = exchanged.seconds(network, pieces=fragment.chunks)
        if workload.on_cores:
            # The exchange uses the same cores as the steps, so its processor time is not hidden.
            blocking_s += exchanged.processor_s(network)
    else:
        blocking_s = (exchanged + local).seconds(network, pieces=fragment.chunks)
        in_flight_s = 0.0
    return Synchronisation(
        blocking_s=reading_s + blocking_s,
        in_flight_s=in_flight_s,
        host_bytes=exchanged.nic_bytes + handed_out.nic_bytes,
    )


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
    share = 1 / settings.group_size if settings.sharded else 1.0
    # The buffer of other modules holds all tensors, of which shards are handed out in the group.
    buffer_share = share if settings.divided else 1.0
    return buffer_share * buffer + share * vectors * workload.gradient_bytes
