"""Parameter servers: PSP-SGD (psp_sgd, Algorithm 1) and two-stage ASGD (two_stage_asgd).

A push sends gradients to servers, and its reply has the new parameters. A step of PSP-SGD waits for
both. Two-stage ASGD pushes every N mini-batches, and with double buffering it does not wait.
"""

from __future__ import annotations

import math

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
# A gradient within a node of two-stage ASGD: a copy, the update of the replica, the addition to the
# sum, the copy back into the module. For a push, a node reads the sum and installs the reply.
_STAGE_COPIES, _NODE_COPIES = 4.0, 3.0
# Models of a rank besides module and gradient: docs/reports/stragglers.md, "Memory of a rank", and
# docs/reports/two_stage_asgd.md, "Memory" (transfer buffer, shared memory, the node's exchange; the
# master).
_PSP_HELD, _NODE_HELD, _MASTER_HELD = 1 + 2.7, 1 + 1 + 2.6, 3.0


def predict_psp(workload: Workload, network: Network) -> Prediction:
    """Step plus pushes and replies, if every server waits for all workers and none is late.

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
        memory_bytes=(2 + _PSP_HELD) * model + workload.state_bytes / ranks,
    )


def predict_two_stage_asgd(workload: Workload, network: Network, settings: Settings) -> Prediction:
    """One node for each host, N mini-batches of G devices between two pushes.

    With double buffering, devices never wait: gradients computed during a push are part of the next
    one, and a period that is too short for the network makes pushes larger. Without it, a period is
    the sum of T_calc (eq. 7) and T_trans (eq. 6).
    """
    device_s, push = _device_step_s(workload, network), push_load(workload, network)
    push_s, steps = push.seconds(network), settings.push_period / network.devices
    if settings.double_buffering:
        steps = max(steps, push_s / device_s)
        push_s = push.processor_s(network) if workload.on_cores else 0.0
    models = 2 + _NODE_HELD + _MASTER_HELD * (network.hosts > 1)
    return Prediction(
        strategy="two_stage_asgd",
        settings={
            "push_period": settings.push_period,
            "gradients_a_push": round(steps * network.devices, 1),
        },
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=device_s + push_s / steps,
        host_bytes=(network.hosts - 1) * workload.gradient_bytes / steps,
        memory_bytes=models * workload.gradient_bytes + 2 * workload.state_bytes,
    )


def push_load(workload: Workload, network: Network) -> Load:
    """A push of every node and its reply: T_trans = 2 N_e M / B (eq. 6), and a node's processor.

    The master's own node does not use its NIC, so N_e is one less than the number of hosts.
    """
    if network.hosts == 1:
        return Load()
    nbytes = 2.0 * workload.gradient_bytes
    return Load(
        latency_s=2 * network.between.latency_s,
        nic_bytes=(network.hosts - 1) * nbytes,
        copied_bytes=(_ENCRYPTION_COPIES + _NODE_COPIES / 2) * nbytes,
        socket_bytes=nbytes,
    )


def best_push_period(workload: Workload, network: Network) -> int:
    """Smallest N with T_calc >= T_trans, for which double buffering hides a push (eq. 6 and 7)."""
    steps = push_load(workload, network).seconds(network) / _device_step_s(workload, network)
    return max(math.ceil(network.devices * steps), 1)


def _device_step_s(workload: Workload, network: Network) -> float:
    """One mini-batch of one device, and the copies of its gradient within the node."""
    copies = Load(copied_bytes=_STAGE_COPIES * network.devices * workload.gradient_bytes)
    return workload.step_s + copies.seconds(network)
