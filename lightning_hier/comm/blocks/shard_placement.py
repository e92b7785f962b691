"""Assignment of the shards of a flat vector to the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from typing_extensions import override

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.channel import Channel

Across = Literal["auto", "leader", "sharded"]
"""Ranks of a group that exchange its model with other groups."""

# Each kind has a bucket: a flat buffer has one dtype, and sums of squares over a group are divided
# by the number of ranks that exchange an element.
Kind = tuple[str, int]
"""Dtype of tensors, and number of ranks of a group that exchange the same elements of them."""

_Tensor = TypeVar("_Tensor", bound=Tensor)


class ShardPlacement:
    """Division of a flat model among the ranks of a group.

    Args:
        group: ranks of the group.
        sharded: whether every rank exchanges an equal shard. Otherwise the first rank, the leader,
            exchanges the whole model (two_tiered_bmuf_gtc 2.3).

    Attributes:
        group, sharded: see above.
        distributes: whether ranks of the group need what other ranks have exchanged.

    """

    def __init__(self, group: Channel, *, sharded: bool) -> None:
        self.group = group
        self.sharded = sharded
        self.distributes = group.size > 1
        # Shards of a flat vector, and the number of this rank's. Other ranks than a leader have one
        # behind the last, which is empty.
        self._shards, self._number = group.size if sharded else 1, group.position

    @property
    def across(self) -> Across:
        """The setting of this placement."""
        return "sharded" if self.sharded else "leader"

    def holders(self, tensor: Tensor) -> int:
        """Number of ranks of the group that exchange the same elements of ``tensor``."""
        return 1

    def kind(self, tensor: Tensor) -> Kind:
        """Dtype of ``tensor``, and number of its :meth:`holders`."""
        return str(tensor.dtype), self.holders(tensor)

    def by_kind(self, tensors: Sequence[_Tensor]) -> dict[Kind, list[_Tensor]]:
        """Tensors grouped by :meth:`kind`."""
        groups: dict[Kind, list[_Tensor]] = {}
        for tensor in tensors:
            groups.setdefault(self.kind(tensor), []).append(tensor)
        return groups

    def shard(self, numel: int) -> slice:
        """Elements that this rank exchanges. The last ranks may have fewer or none."""
        each = self.longest(numel)
        start = min(self._number * each, numel)
        return slice(start, min(start + each, numel))

    def padded(self, numel: int) -> int:
        """Length of the transfer buffer. An all-gather needs shards of equal length."""
        return self.longest(numel) * self._shards

    def longest(self, numel: int) -> int:
        """Elements of the longest shard in the group, which is that of the first rank."""
        # Rounded up, as an all-gather needs shards of one length. The last ones are padded.
        return -(-numel // self._shards)

    def starts(self, numel: int) -> list[int]:
        """Position in the flat model of the first element of every shard."""
        return [number * self.longest(numel) for number in range(self._shards)]


class OwnShards(ShardPlacement):
    """Placement of a module that FSDP2 or tensor parallelism divides among the ranks of a group.

    Every rank exchanges all that it holds with the ranks at its position in the other groups.

    Args:
        group: ranks of the group.

    """

    def __init__(self, group: Channel) -> None:
        super().__init__(group, sharded=True)
        self.distributes = False
        self._shards, self._number = 1, 0

    @override
    def holders(self, tensor: Tensor) -> int:
        # Dimensions of the mesh over which the tensor is replicated do not divide it.
        shards = 1
        if isinstance(tensor, DTensor):
            for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
                shards *= 1 if placement.is_replicate() else size
        return self.group.size // shards


def make_placement(across: Across, group: Channel, *, nics: int | None) -> ShardPlacement:
    """Placement for a setting.

    ``"auto"`` is sharded if all ranks of a group can send at the same time, that is, if all groups
    are on one host or each rank has a NIC. If ranks share a NIC, a leader is faster, because it
    sends each element once.

    Args:
        across: setting of the user.
        group: ranks of this group.
        nics: smallest number of NICs of any host, equal on all ranks. None: there is one host.

    """
    can_send_together = nics is None or nics >= group.size
    return ShardPlacement(
        group, sharded=can_send_together if across == "auto" else across == "sharded"
    )


def fewest_nics(device: torch.device) -> int:
    """The smallest number of NICs of any host. A collective of the world."""
    return min(int(nics) for nics in gather_json(count_nics(), device))


def count_nics(root: Path = Path("/sys/class")) -> int:
    """Hardware NICs of this host that are up, InfiniBand ports included."""
    ethernet = [
        nic
        for nic in root.glob("net/*")
        if (nic / "device").exists() and _text(nic / "operstate") == "up"
    ]
    infiniband = [
        port for port in root.glob("infiniband/*/ports/*") if "ACTIVE" in _text(port / "state")
    ]
    # With IP over InfiniBand, a port is also a network interface, and must not be counted twice.
    # At least one, because containers and virtual machines may show none.
    return max(len(ethernet), len(infiniband), 1)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
