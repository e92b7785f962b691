"""Two-stage ASGD: a node's gradients through shared memory, nodes through one master."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.algorithms.arguments import check_whole
from lightning_hier.algorithms.planning.load import Load
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.workload import Workload
from lightning_hier.algorithms.sizing import Cluster

# A gradient's way through stage 1: a copy of it, the update of the replica, the addition to the
# sum, and the copy back into the module.
_STAGE_COPIES = 4.0
# An end of the network encrypts or decrypts at about so many copies of what goes through it
# (docs/reports/transport.md), and a node takes the sum and installs the answer.
_CURVE_COPIES, _NODE_COPIES = 4.0, 3.0
# Models held besides that of the module and its gradient (docs/reports/two_stage_asgd.md,
# "Memory"): for the transfer on every rank, for the exchange on a node's first, on the master.
_TRANSFER, _EXCHANGE, _MASTER, _SHARED = 1.0, 2.6, 3.0, 1.0


@dataclass(frozen=True, kw_only=True)
class TwoStageSettings:
    """How nodes exchange with the master.

    Attributes:
        push_period: N, mini-batches of a node between two pushes.
        double_buffering: whether devices compute while a push is under way.
        waits: whether devices then wait where the network is slower than a period, as eq. 6 and 7
            have it, so that no push carries more than N gradients. The strategy's do not.

    Raises:
        ValueError: a value outside its range.

    """

    push_period: int = 4
    double_buffering: bool = True
    waits: bool = False

    def __post_init__(self) -> None:
        """Check the value."""
        check_whole("push_period", self.push_period)


def cluster_of(workload: Workload, network: Network) -> Cluster:
    """What the sizing equations ask (eq. 6 and 7), one mini-batch as one sample.

    The master's own node does not cross its link, so one host fewer shares it.
    """
    return Cluster(
        nodes=max(network.hosts - 1, 1),
        devices=network.devices,
        model_bytes=workload.gradient_bytes,
        bandwidth=network.between.bytes_per_second,
        batch_samples=1,
        device_speed=1 / _device_step_s(workload, network),
    )


def exchange_s(workload: Workload, network: Network) -> float:
    """From a push to its answer, when the other nodes push at the same pace.

    T_trans of eq. 6, and what the equations leave out: latency, and encryption at both ends.
    """
    if network.hosts == 1:
        return 0.0
    wire = cluster_of(workload, network).transmission_seconds()
    ends = Load(copied_bytes=2 * _CURVE_COPIES * 2 * workload.gradient_bytes)
    return wire + 2 * network.between.latency_s + ends.processor_s(network)


def node_s(workload: Workload, network: Network) -> float:
    """For which a node's cores are busy with an exchange."""
    if network.hosts == 1:
        return 0.0
    nbytes = 2.0 * workload.gradient_bytes
    own = Load(copied_bytes=(_CURVE_COPIES + _NODE_COPIES / 2) * nbytes, socket_bytes=nbytes)
    return own.processor_s(network)


def predict_two_stage_asgd(
    workload: Workload, network: Network, settings: TwoStageSettings | None = None
) -> Prediction:
    """`two_stage_asgd` with one node for each host.

    With double buffering a device never waits, unless ``waits``: while a push is under way it goes
    on, and what it adds goes with the next push. A period too short for the network makes pushes
    larger (``gradients_a_push``), not devices idle. Without it, a period is eq. 7 and eq. 6 one
    after the other.
    """
    settings = settings or TwoStageSettings()
    device_s = _device_step_s(workload, network)
    steps = settings.push_period / network.devices  # of each device, between two pushes
    exchanged = exchange_s(workload, network)
    if not settings.double_buffering:
        step_s = device_s + exchanged / steps
    elif settings.waits:
        step_s = max(device_s, exchanged / steps)
    else:
        # A push carries what was added since the one before it.
        step_s, steps = device_s, max(steps, exchanged / device_s)
    if settings.double_buffering and workload.on_cores:
        step_s += node_s(workload, network) / steps
    return Prediction(
        strategy="two_stage_asgd",
        settings={
            "push_period": settings.push_period,
            "gradients_a_push": round(steps * network.devices, 1),
            **({} if settings.double_buffering else {"double_buffering": False}),
        },
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=step_s,
        host_bytes=_master_bytes(workload, network) / steps,
        memory_bytes=_memory_bytes(workload, network),
    )


def _device_step_s(workload: Workload, network: Network) -> float:
    """One mini-batch of one device, its way through the node's shared memory included."""
    passes = Load(copied_bytes=_STAGE_COPIES * network.devices * workload.gradient_bytes)
    return workload.disturbed_step_s + passes.seconds(network)


def _master_bytes(workload: Workload, network: Network) -> float:
    """What the busiest host, the master's, answers to all others in a period."""
    return float((network.hosts - 1) * workload.gradient_bytes)


def _memory_bytes(workload: Workload, network: Network) -> float:
    """Of rank 0: device, first of its node, and master."""
    models = 2 + _TRANSFER + _SHARED + _EXCHANGE + _MASTER * (network.hosts > 1)
    return models * workload.gradient_bytes + 2 * workload.state_bytes
