"""Settings of two-stage ASGD."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.algorithms.arguments import check_flag, check_whole
from lightning_hier.parameter_server.server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class TwoStageSettings(ServerSettings):
    """Settings of one run of two-stage ASGD.

    Attributes:
        push_period: N, mini-batches of all devices of a node between two of its pushes.
        order_locking: apply the nodes' pushes in the order of their first ones (3.1).
        double_buffering: devices continue while the node exchanges with the master (3.2).
        hierarchical_lr: gamma = eta / n at the master (eq. 5); False: gamma = eta.
        refresh_period: mini-batches of a device after which it copies the replica (N_c in the
            paper, there in samples). It also copies a replica with a new answer of the master.
        warmup_steps: first steps of every device that all make together: the master applies the
            mean of all devices' gradients, and the devices wait for it.
        timeout_s: see :class:`ServerSettings`.

    Raises:
        ValueError: a value is outside its range.

    """

    push_period: int = 4
    order_locking: bool = True
    double_buffering: bool = True
    hierarchical_lr: bool = True
    refresh_period: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        for name, least in (("push_period", 1), ("refresh_period", 1), ("warmup_steps", 0)):
            check_whole(name, getattr(self, name), least=least)
        for name in ("order_locking", "double_buffering", "hierarchical_lr"):
            check_flag(name, getattr(self, name))
        if not self.timeout_s > 0:  # NaN is refused too
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s}")
