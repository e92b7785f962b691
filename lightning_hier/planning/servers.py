"""Parameter servers: PSP-SGD (psp_sgd, Algorithm 1) and two-stage ASGD (two_stage_asgd)."""

from __future__ import annotations

from lightning_hier.algorithms.sizing import Cluster
from lightning_hier.planning.collectives import Load
from lightning_hier.planning.network import Network
from lightning_hier.planning.prediction import Prediction, Settings
from lightning_hier.planning.workload import Workload

# Copies that take as long as one end needs to encrypt or to decrypt a message to another host
# (docs/reports/transport.md).
_ENCRYPTION_COPIES = 4.0
# A PSP server adds the gradients of all workers for its shard, in total one model. A worker copies
# its gradient out and the new parameters in.
_PSP_COPIES = 3.0
# Models in addition to those of synchronous SGD: docs/reports/stragglers.md, "Memory of a rank".
_PSP_HELD = 2.7
# A gradient within a node of two-stage ASGD: a copy, the update of the replica, the addition to the
# sum, the copy back into the module. For a push, a node reads the sum and installs the reply.
_STAGE_COPIES, _NODE_COPIES = 4.0, 3.0
# Models on rank 0 besides module and gradient (docs/reports/two_stage_asgd.md, "Memory"): transfer
# buffer, shared memory and the node's exchange; the master.
_NODE_HELD, _MASTER_HELD = 1.0 + 1.0 + 2.6, 3.0


def predict_psp(workload: Workload, network: Network) -> Prediction:
    """Step plus pushes and pulls, if every server waits for all workers and none is late.

    A gradient goes to all servers and a shard to all workers: 2 D (N - D) / N models per host. The
    gradient is pushed when it is complete, so pushes do not overlap with the backward pass.
    """
    ranks, devices, model = network.ranks, network.devices, workload.gradient_bytes
    outside, inside = (ranks - devices) / ranks, (devices - 1) / ranks
    link = network.between if network.hosts > 1 else network.within
    load = Load(
        latency_s=2 * link.latency_s if ranks > 1 else 0.0,
        nic_bytes=2 * devices * outside * model,
        inner_bytes=2 * inside * model,
        copied_bytes=devices * model * (_PSP_COPIES + _ENCRYPTION_COPIES * outside),
        socket_bytes=4 * devices * (outside + inside) * model,
    )
    return Prediction(
        strategy="psp",
        ranks=ranks,
        alone_s=workload.step_s,
        step_s=workload.step_s + load.seconds(network, pieces=ranks),
        host_bytes=load.nic_bytes,
        memory_bytes=(3 + _PSP_HELD) * model + workload.state_bytes / ranks,
    )


def cluster_of(workload: Workload, network: Network) -> Cluster:
    """Arguments of eq. 6 and 7, with one mini-batch as one sample.

    The master's own node does not use its NIC, so one host fewer shares it.
    """
    return Cluster(
        nodes=max(network.hosts - 1, 1),
        devices=network.devices,
        model_bytes=workload.gradient_bytes,
        bandwidth=network.between.bytes_per_second,
        batch_samples=1,
        device_speed=1 / _device_step_s(workload, network),
    )


def predict_two_stage_asgd(workload: Workload, network: Network, settings: Settings) -> Prediction:
    """One node for each host.

    With double buffering, devices never wait: gradients computed during a push are part of the next
    one, and a period that is too short for the network makes pushes larger. Without it, a period is
    the sum of T_calc (eq. 7) and T_trans (eq. 6).
    """
    device_s, push_s = _device_step_s(workload, network), _push_s(workload, network)
    steps = settings.push_period / network.devices
    if settings.double_buffering:
        steps = max(steps, push_s / device_s)
        step_s = device_s + (_node_s(workload, network) / steps if workload.on_cores else 0.0)
    else:
        step_s = device_s + push_s / steps
    models = 2 + _NODE_HELD + _MASTER_HELD * (network.hosts > 1)
    return Prediction(
        strategy="two_stage_asgd",
        settings={
            "push_period": settings.push_period,
            "gradients_a_push": round(steps * network.devices, 1),
        },
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=step_s,
        host_bytes=(network.hosts - 1) * workload.gradient_bytes / steps,
        memory_bytes=models * workload.gradient_bytes + 2 * workload.state_bytes,
    )


def _device_step_s(workload: Workload, network: Network) -> float:
    """One mini-batch of one device, and the copies of its gradient within the node."""
    copies = Load(copied_bytes=_STAGE_COPIES * network.devices * workload.gradient_bytes)
    return workload.step_s + copies.seconds(network)


def _push_s(workload: Workload, network: Network) -> float:
    """From a push to its reply: T_trans of eq. 6, latency, and encryption at both ends."""
    if network.hosts == 1:
        return 0.0
    # A push and its reply, each encrypted at one end and decrypted at the other.
    ends = Load(copied_bytes=4 * _ENCRYPTION_COPIES * workload.gradient_bytes)
    transmission_s = cluster_of(workload, network).transmission_seconds()
    return transmission_s + 2 * network.between.latency_s + ends.processor_s(network)


def _node_s(workload: Workload, network: Network) -> float:
    """Processor seconds of a node for one push and its reply."""
    if network.hosts == 1:
        return 0.0
    nbytes = 2.0 * workload.gradient_bytes
    copies = (_ENCRYPTION_COPIES + _NODE_COPIES / 2) * nbytes
    return Load(copied_bytes=copies, socket_bytes=nbytes).processor_s(network)
