"""Parameter servers: PSP-SGD (psp_sgd, Algorithm 1) and two-stage ASGD (two_stage_asgd).

Workers push gradients to servers, whose replies have the new parameters. PSP-SGD waits for the
replies at every step, two-stage ASGD after N mini-batches, or not at all with double buffering.
"""

from __future__ import annotations

import math

from lightning_hier.planning.collectives import Load
from lightning_hier.planning.inputs import Network, Workload
from lightning_hier.planning.prediction import Prediction, Settings

# Copies that take as long as one end needs to encrypt or to decrypt a message to another host
# (docs/reports/transport.md).
_ENCRYPTION_COPIES = 4.0
# Copies of a gradient within a host. PSP: a worker copies its gradient out and the parameters in, a
# server adds. Two-stage ASGD: a copy, the update of the replica, the addition to the sum, the copy
# back into the module.
_COPIES = {"psp": 3.0, "two_stage_asgd": 4.0}
# Models of a rank besides module and gradient: docs/reports/stragglers.md, "Memory of a rank", and
# docs/reports/two_stage_asgd.md, "Memory" (transfer buffer, shared memory, the node's exchange).
_HELD = {"psp": 1 + 2.7, "two_stage_asgd": 1 + 1 + 2.6}
_MASTER_HELD = 3.0


def predict_servers(
    strategy: str, workload: Workload, network: Network, settings: Settings
) -> Prediction:
    """Step, and push with its reply, if every server waits for all workers and none is late.

    The gradient of PSP-SGD is pushed when it is complete, so pushes do not overlap with the
    backward pass. With double buffering, devices of two-stage ASGD never wait: gradients computed
    during a push are part of the next one, and a period that is too short for the network makes
    pushes larger. Without it, a period is the sum of T_calc (eq. 7) and T_trans (eq. 6).
    """
    model, devices = workload.gradient_bytes, network.devices
    push, step_s = _push(strategy, workload, network), _local_s(strategy, workload, network)
    waited_s, steps = push.seconds(network), 1.0
    shown: dict[str, float] = {}
    held, states = 2 + _HELD[strategy], 1 / network.ranks
    if strategy == "two_stage_asgd":
        steps = settings.push_period / devices
        if settings.double_buffering:
            steps = max(steps, waited_s / step_s)
            waited_s = push.processor_s(network) if workload.on_cores else 0.0
        shown = {
            "push_period": settings.push_period,
            "gradients_a_push": round(steps * devices, 1),
        }
        held, states = held + _MASTER_HELD * (network.hosts > 1), 2.0
    return Prediction(
        strategy=strategy,
        settings=shown,
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=step_s + waited_s / steps,
        host_bytes=_sent(strategy, network) * model / steps,
        memory_bytes=held * model + states * workload.state_bytes,
    )


def best_push_period(workload: Workload, network: Network) -> int:
    """Smallest N with T_calc >= T_trans, for which double buffering hides a push (eq. 6 and 7)."""
    strategy = "two_stage_asgd"
    push_s = _push(strategy, workload, network).seconds(network)
    return max(math.ceil(network.devices * push_s / _local_s(strategy, workload, network)), 1)


def _local_s(strategy: str, workload: Workload, network: Network) -> float:
    """One mini-batch of each device, and the copies of their gradients within the host."""
    copied = _COPIES[strategy] * network.devices * workload.gradient_bytes
    return workload.step_s + Load(copied_bytes=copied).processor_s(network)


def _sent(strategy: str, network: Network) -> float:
    """Models that the busiest host sends to other hosts in a push and its reply.

    PSP-SGD sends a gradient to all servers and a shard to all workers, 2 D (N - D) / N models. The
    master of two-stage ASGD replies to all other hosts: its own node does not use the NIC.
    """
    if strategy == "two_stage_asgd":
        return network.hosts - 1.0
    return 2 * network.devices * (network.ranks - network.devices) / network.ranks


def _push(strategy: str, workload: Workload, network: Network) -> Load:
    """A push of every worker and its reply, at the busiest host."""
    psp, model, sent = strategy == "psp", workload.gradient_bytes, _sent(strategy, network)
    inside = 2 * (network.devices - 1) / network.ranks if psp else 0.0
    link = network.between if sent else network.within
    return Load(
        latency_s=2 * link.latency_s if sent or inside else 0.0,
        # The servers of PSP-SGD send and receive at the same time. The master replies to a push
        # after it has received it: T_trans = 2 N_e M / B (eq. 6).
        nic_bytes=(1 if psp else 2) * sent * model,
        inner_bytes=inside * model,
        # As much is received as sent.
        copied_bytes=2 * sent * _ENCRYPTION_COPIES * model,
        socket_bytes=2 * (sent + network.devices * inside) * model,
    )
