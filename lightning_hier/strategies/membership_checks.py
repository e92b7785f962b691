"""Checks of the settings of a strategy whose groups come and go, before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_hier.membership.torchft import TorchFT, check_torchft

if TYPE_CHECKING:
    from lightning_hier.strategies.hierarchical import HierarchicalStrategy

# Ends of the sentence "groups that come and go ...", by the name of the setting.
_REASONS = {
    "block_sync": "are synchronised by blocks, pass block_sync=DiLoCo(...) or another",
    "warmup_steps": "have no common gradients, pass warmup_steps=0 or leave it out",
    "overlap": "agree on every mean before they go on, pass overlap=False",
    "fragments": "send the whole model at once, pass fragments=1",
    "local_momentum": "apply a mean after a vote, pass local_momentum='reset' or 'keep'",
}


def check_membership(strategy: HierarchicalStrategy, settings: Any) -> None:
    """Check the arguments of a strategy whose groups come and go.

    Raises:
        ValueError: they cannot be combined.

    """
    if not isinstance(settings, TorchFT):
        raise ValueError(f"membership must be None or TorchFT(...), got {settings!r}")
    check_torchft()
    sync = strategy.block_sync
    # Keys are settings as a user writes them, with their values.
    problems = {
        "block_sync=None": sync is None,
        f"warmup_steps={strategy.warmup_steps}": strategy.warmup_steps > 0,
        f"overlap={getattr(sync, 'overlap', False)}": bool(getattr(sync, "overlap", False)),
        f"fragments={getattr(sync, 'fragments', 1)}": getattr(sync, "fragments", 1) > 1,
        # Otherwise the error of changing_groups() would name an overlap that the user has not set.
        "local_momentum='average'": getattr(sync, "local_momentum", None) == "average",
    }
    for name, is_problem in problems.items():
        if is_problem:
            raise ValueError(
                f"{name} can't be combined with membership=TorchFT(...): groups that come and go "
                f"{_REASONS[name.partition('=')[0]]}"
            )
    if sync is not None:
        sync.changing_groups()  # for its error only; blocks use what it returns
    if strategy.limit.total_seconds() < 3 * settings.join_timeout_s:
        raise ValueError(
            f"timeout must be at least three times join_timeout_s, got timeout={strategy.limit} "
            f"and join_timeout_s={settings.join_timeout_s:g}: a group waits for others up to a "
            "third of timeout"
        )
