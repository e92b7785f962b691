"""Settings of groups that come and go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from urllib.parse import SplitResult, urlsplit

from lightning_hier.algorithms.arguments import NamedArguments, check_whole, is_number
from lightning_hier.comm.blocks.block_sync import BlockSync

_INSTALL = "pip install '.[elastic]' in the folder of lightning_hier"

_COMBINED = "{} can't be combined with membership=TorchFT(...): groups that come and go {}"


@dataclass(frozen=True)
class TorchFT(NamedArguments):
    """Groups that come and go, on torchft's Lighthouse and Manager (``membership`` of a strategy).

    Every group is a job of its own, under any launcher, and all ranks of a job are one group. The
    groups synchronise at the ends of blocks, through a Lighthouse that all of them reach
    (``torchft_lighthouse``). The mean is taken over the groups that are present. See
    ``docs/elastic.md``.

    Args:
        lighthouse: address of the Lighthouse, as ``"http://host:29510"``.
        group: number of this group, from 0. It determines the part of the data on which the group
            trains, and two groups that train at the same time must have different numbers.
        groups: largest number of groups, at least 2. The data are divided into as many parts.
        min_groups: least number of groups that must be there to start, and to synchronise. With
            fewer, the others wait, up to a third of ``timeout`` of the strategy.
        join_timeout_s: longest wait in seconds for one group that does not come or sends nothing.
            Then a starting group starts without it, with at least ``min_groups``, and the others
            repeat an exchange without it. ``timeout`` of the strategy must be at least three times
            as long.

    Raises:
        ValueError: a value is outside its range.

    """

    lighthouse: str
    group: int
    groups: int
    min_groups: int = 1
    join_timeout_s: float = 60.0

    @property
    def exchange_timeout(self) -> timedelta:
        """``join_timeout_s``, as the time limit of each connection and collective of groups."""
        return timedelta(seconds=self.join_timeout_s)

    def __post_init__(self) -> None:
        """Check the values."""
        check_whole("groups", self.groups, least=2)
        check_whole("group", self.group, least=0)
        check_whole("min_groups", self.min_groups)
        if self.group >= self.groups:
            raise ValueError(
                f"group must be below groups, got group={self.group} and groups={self.groups}: "
                "groups are numbered from 0"
            )
        if self.min_groups > self.groups:
            raise ValueError(
                f"min_groups must be at most groups, got min_groups={self.min_groups} and "
                f"groups={self.groups}"
            )
        if not is_number(self.join_timeout_s) or not self.join_timeout_s > 0:
            raise ValueError(f"join_timeout_s must be above 0, got {self.join_timeout_s!r}")
        address = urlsplit(str(self.lighthouse))
        if address.scheme != "http" or not address.hostname or not _has_port(address):
            raise ValueError(
                "lighthouse must be the address of torchft's Lighthouse, such as "
                f"'http://host:29510', without encryption and with a port, got {self.lighthouse!r}"
            )


def check_membership(
    settings: object, sync: BlockSync | None, *, warmup_steps: int, limit: timedelta
) -> None:
    """Check the arguments of a strategy whose groups come and go, and that torchft is installed.

    Args:
        settings: ``membership``.
        sync: ``block_sync``.
        warmup_steps: as of the strategy.
        limit: ``timeout`` of the strategy.

    Raises:
        ValueError: they cannot be combined.

    """
    if not isinstance(settings, TorchFT):
        raise ValueError(f"membership must be None or TorchFT(...), got {settings!r}")
    # Its import takes a second, so it is imported where it is needed, by Lighthouse.
    if find_spec("torchft") is None:
        raise ValueError(
            f"membership=TorchFT(...) needs torchft, which is not installed: {_INSTALL}"
        )
    if sync is None:
        rule = "are synchronised by blocks, pass block_sync=DiLoCo(...) or another"
        raise ValueError(_COMBINED.format("block_sync=None", rule))
    if warmup_steps > 0:
        rule = "have no common gradients, pass warmup_steps=0 or leave it out"
        raise ValueError(_COMBINED.format(f"warmup_steps={warmup_steps}", rule))
    check_delay(sync)
    sync.check_eta_of()
    if limit.total_seconds() < 3 * settings.join_timeout_s:
        raise ValueError(
            f"timeout must be at least three times join_timeout_s, got timeout={limit} "
            f"and join_timeout_s={settings.join_timeout_s:g}: a group waits for others up to a "
            "third of timeout"
        )


def check_one_optimizer(sync: BlockSync | None, optimizers: int) -> None:
    """Check that a delay has one optimizer.

    Raises:
        ValueError: it has several.

    """
    if sync is not None and sync.overlap and optimizers > 1:
        raise ValueError(
            f"overlap={sync.overlap} with membership=TorchFT(...) supports one optimizer, got "
            f"{optimizers}: pass overlap=False"
        )


def check_delay(sync: BlockSync) -> None:
    """Check that each fragment is applied before the next one is sent, if block_size is a number.

    Raises:
        ValueError: the delay is longer.

    """
    known = sync.block_size != "auto"
    if sync.overlap is True or (known and int(sync.overlap) >= sync.steps // sync.fragments):
        raise ValueError(
            f"overlap={sync.overlap} in blocks of block_size={sync.block_size} with "
            f"fragments={sync.fragments} can't be combined with membership=TorchFT(...): groups "
            "that come and go vote on a fragment before they send the next, pass an overlap below "
            "block_size / fragments"
        )


def _has_port(address: SplitResult) -> bool:
    # urlsplit checks the port only when it is read.
    try:
        return address.port is not None
    except ValueError:  # not a number, or out of range
        return False


def quiet_torchft() -> None:
    """Let torchft log warnings only, unless ``RUST_LOG`` says otherwise. Before its import."""
    os.environ.setdefault("RUST_LOG", "warn")
