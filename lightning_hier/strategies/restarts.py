"""Tells users of torchrun, before a fault, that restarts would fail as it is set."""

from __future__ import annotations

import os

from lightning_utilities.core.rank_zero import rank_zero_warn


def warn_of_shared_store() -> None:
    """Warn if torchrun may start ranks again, and they would meet at the store of those before.

    Of its own accord torchrun (2.11) keeps one store for all starts. The new ranks find addresses
    of the dead there, and try to connect to them until a time limit ends that start too.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        rank_zero_warn(
            f"torchrun may start the ranks again (--max-restarts {restarts}), but they would find "
            "the addresses of those before and fail to connect: set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun"
        )
