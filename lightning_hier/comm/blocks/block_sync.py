"""What a user can choose for the models of the groups, at the end of every block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from lightning_hier.algorithms.block_momentum import (
    BlockFilter,
    UpdateFrom,
    auto_block_momentum,
)

LocalMomentum = Literal["reset", "keep", "average"]
Across = Literal["auto", "leader", "sharded"]


class BlockSync:
    """Base of the choices for ``HierarchicalStrategy(block_sync=...)``.

    Attributes:
        block_size: tau, steps between two synchronisations of models.
        local_momentum: what happens to the momentum of the local SGD at the start of a block.
        across: who carries the model between groups.

    """

    block_size: int
    local_momentum: LocalMomentum
    across: Across

    def filter_for(self, num_models: int) -> BlockFilter:
        """The arithmetic for ``num_models`` averaged models.

        Raises:
            ValueError: the settings do not suit that number of models.

        """
        raise NotImplementedError

    def _check(self) -> None:
        if not isinstance(self.block_size, int) or self.block_size < 1:
            raise ValueError(
                f"block_size must be a whole number of at least 1, got {self.block_size!r}"
            )
        _check_choice("local_momentum", self.local_momentum, get_args(LocalMomentum))
        _check_choice("across", self.across, get_args(Across))


@dataclass(frozen=True, kw_only=True)
class ModelAveraging(BlockSync):
    """Replace the models of the groups by their mean after every block (MA).

    Attributes:
        block_size: tau, steps between two synchronisations.
        local_momentum: ``"reset"`` truncates the momentum of the local SGD at the start of each
            block (bmuf eq. 8), ``"keep"`` leaves each group its own, ``"average"`` averages it
            with the models.
        across: ``"leader"``: one rank of each group exchanges the model and hands it round inside;
            ``"sharded"``: each rank of a group exchanges 1/P of it; ``"auto"`` chooses by the
            network cards that the hosts have.

    Raises:
        ValueError: a value outside its range.

    """

    block_size: int = 50
    local_momentum: LocalMomentum = "reset"
    across: Across = "auto"

    def __post_init__(self) -> None:
        """Check the values."""
        self._check()

    def filter_for(self, num_models: int) -> BlockFilter:
        """No block momentum, whatever the number of models."""
        return BlockFilter(eta=0.0)


@dataclass(frozen=True, kw_only=True)
class BMUF(BlockSync):
    """Blockwise model update filtering over the groups (bmuf 2.1.3).

    The equations are at :class:`~lightning_hier.algorithms.block_momentum.BlockFilter`.

    Attributes:
        block_size: tau, steps between two synchronisations.
        block_momentum: eta in [0, 1), or ``"auto"``: from the number of averaged models,
            ``block_lr`` and ``c`` (bmuf eq. 10).
        block_lr: zeta, above 0.
        c: C of bmuf eq. 10, at least 1; used by ``block_momentum="auto"`` alone.
        nesterov: Nesterov block momentum (NBM); False is classical (CBM).
        local_momentum: as in :class:`ModelAveraging`.
        across: as in :class:`ModelAveraging`.
        update_from: ``"global"`` as in bmuf; ``"start"`` reproduces toolkits that add the update to
            the look-ahead, see :class:`~lightning_hier.algorithms.block_momentum.BlockFilter`.

    Raises:
        ValueError: a value outside its range.

    """

    block_size: int = 50
    block_momentum: float | Literal["auto"] = "auto"
    block_lr: float = 1.0
    c: float = 1.0
    nesterov: bool = True
    local_momentum: LocalMomentum = "reset"
    across: Across = "auto"
    update_from: UpdateFrom = "global"

    def __post_init__(self) -> None:
        """Check the values."""
        self._check()
        if self.block_momentum != "auto" and not (
            isinstance(self.block_momentum, (int, float)) and 0.0 <= self.block_momentum < 1.0
        ):
            raise ValueError(
                f"block_momentum must be 'auto' or lie in [0, 1), got {self.block_momentum!r}"
            )
        if not (isinstance(self.block_lr, (int, float)) and 0.0 < self.block_lr < math.inf):
            raise ValueError(f"block_lr must be a finite number above 0, got {self.block_lr!r}")
        if not (isinstance(self.c, (int, float)) and 1.0 <= self.c < math.inf):
            raise ValueError(f"c must be a finite number of at least 1, got {self.c!r}")
        _check_choice("update_from", self.update_from, get_args(UpdateFrom))

    def filter_for(self, num_models: int) -> BlockFilter:
        """Eta as set, or from the number of averaged models."""
        eta = (
            auto_block_momentum(num_models, block_lr=self.block_lr, c=self.c)
            if self.block_momentum == "auto"
            else self.block_momentum
        )
        return BlockFilter(
            eta=eta, zeta=self.block_lr, nesterov=self.nesterov, update_from=self.update_from
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        said = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {said}, got {value!r}")
