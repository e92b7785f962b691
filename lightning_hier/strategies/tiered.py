"""What all strategies share: ranks in groups, and settings on which all ranks agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import DoublePrecision
from torch.distributed.constants import default_pg_timeout
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.algorithms.arguments import check_whole
from lightning_hier.callbacks.metrics import HierarchyMetrics
from lightning_hier.callbacks.tensorboard_layout import TensorBoardLayout
from lightning_hier.comm.agreement import gather_json, raise_everywhere, require_same
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.process_groups import SHARED, destroy_groups_at_exit
from lightning_hier.comm.tiers import GroupSize, RankLayout, WorkerLayout, workers_per_group
from lightning_hier.comm.traffic import Traffic
from lightning_hier.strategies import checks
from lightning_hier.strategies.batch_counts import uneven_problem
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from lightning_hier.strategies.checkpoints.same_checkpoint import read_nothing, read_same
from lightning_hier.strategies.description import comparable, described
from lightning_hier.strategies.placement import PlacedStrategy
from lightning_hier.strategies.private_names import private_names_problem, require_names
from lightning_hier.strategies.restarts import warn_of_shared_store
from lightning_hier.strategies.shuffle_seeds import require_same_shuffle


class TieredStrategy(PlacedStrategy, ABC):
    """A strategy whose ranks make up groups.

    Args:
        group_size: workers of one group: a number, ``"node"`` (those of one host) or ``"world"``.
            It must divide the number of workers.
        warmup_steps: first so many steps of every optimizer average gradients exactly over all
            ranks.
        virtual_workers: workers that every rank plays in turns.
        timeout: limit of every wait, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Lightning's ``DDPStrategy``.

    Raises:
        ValueError: a value outside its range, or a combination that can't work.

    """

    strategy_name = "tiered"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        warmup_steps: int = 0,
        virtual_workers: int = 1,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        # The command line's parser follows **ddp_kwargs only where the name itself is passed on.
        ddp_kwargs = checks.without_taken(type(self), ddp_kwargs)
        checks.check_timeout(timeout)
        super().__init__(timeout=timeout, **ddp_kwargs)
        require_names(self)
        checks.check_group_size(group_size)
        check_whole("warmup_steps", warmup_steps, least=0)
        check_whole("virtual_workers", virtual_workers)
        self.group_size: GroupSize = group_size
        self.warmup_steps = warmup_steps
        self.virtual_workers = virtual_workers
        self.traffic = Traffic()
        self._layout: TensorBoardLayout | None = None
        self._communicators: Communicators | None = None
        self._generation = 0
        self._start_compared = False

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """What else must be the same on all ranks, by name."""

    @property
    @abstractmethod
    def _families(self) -> Sequence[str]:
        """What is logged besides the tiers, as in ``callbacks.tensorboard_layout``."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Everything that is counted, under the names by which it is logged.

        Of this rank; no communication.
        """

    def describe(self) -> dict[str, Any]:
        """Name, ranks and settings, as JSON can say them; there once the environment is set up."""
        return {
            "strategy": self.strategy_name,
            "class": type(self).__name__,
            "ranks": self.world_size,
            "hosts": self.world_size // self.num_processes,
            "groups": self.worker_layout.sizes[1],
            "ranks_per_group": self.layout.sizes[0],
            "warmup_steps": self.warmup_steps,
            "virtual_workers": self.virtual_workers,
            **described(self._settings()),
        }

    def _watching(self) -> list[Callback]:
        """Callbacks that show what is counted, for one fit."""
        if self._layout is None:
            self._layout = TensorBoardLayout(self._families)
        return [HierarchyMetrics(self), self._layout]

    def _problem(self) -> str | None:
        """What can't work with this number of ranks, which groups divide, or None."""
        return None

    @property
    def communicators(self) -> Communicators:
        """Process groups and rank layout; there once the environment has been set up."""
        if self._communicators is None:
            raise RuntimeError("the process groups are made when the Trainer starts to run")
        return self._communicators

    @property
    def layout(self) -> RankLayout:
        """Which rank is in which group."""
        return self.communicators.layout

    @property
    def worker_layout(self) -> RankLayout:
        """Which worker is in which group: that of the ranks, if each plays one."""
        of = "ranks" if self.virtual_workers == 1 else "workers"
        return RankLayout.two_tiers(self._group_size(), self._all_workers, of)

    @property
    def _workers(self) -> range:
        """Numbers of the workers that this rank plays."""
        first = self.global_rank * self.virtual_workers
        return range(first, first + self.virtual_workers)

    @override
    def setup_environment(self) -> None:
        destroy_groups_at_exit(self)
        warn_of_shared_store()
        super().setup_environment()
        self._start_compared = False
        generation = SHARED.renew(self.root_device)
        if self._communicators is not None and self._generation == generation:
            return  # a Trainer that validates or tests after fitting keeps its process groups
        raise_everywhere(
            private_names_problem(self.lightning_module, self.virtual_workers)
            or self._division_problem()
            or self._problem(),
            self.root_device,
        )
        own = {
            "strategy": type(self).__name__,
            "group_size": self._group_size(),
            "warmup_steps": self.warmup_steps,
            "virtual_workers": self.virtual_workers,
            "timeout": str(self._limit),
        }
        require_same(own | comparable(self._settings()), self.root_device)
        self._generation = generation
        self._communicators = Communicators.build(
            RankLayout.two_tiers(self._worker_counts.ranks_per_group, self.world_size),
            device=self.root_device,
            timeout=self._limit,
            traffic=self.traffic,
            host_of=self._host_of_ranks(),
            models_per_rank=self._worker_counts.models_per_rank,
            process_groups=SHARED,
        )

    @property
    @override
    def checkpoint_io(self) -> CheckpointIO:
        """What writes checkpoints; a file is whole or absent unless the user has set another."""
        io: Any = self._checkpoint_io
        if io is None:
            self._checkpoint_io = io = AtomicCheckpointIO()
        elif hasattr(type(io), "checkpoint_io"):  # a wrapper of another one, as AsyncCheckpointIO
            io.checkpoint_io = AtomicCheckpointIO()
        made: CheckpointIO = io
        return made

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @override
    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, with ``weights_only=True`` unless the Trainer is told otherwise.

        A collective of the world: every rank must call it.

        Raises:
            OSError: on every rank, if none can read it.
            ValueError: on every rank, if the ranks resume from different checkpoints.

        """
        safe = True if weights_only is None else weights_only
        self._start_compared = True
        return read_same(
            lambda: super(TieredStrategy, self).load_checkpoint(checkpoint_path, safe),
            checkpoint_path,
            self.root_device,
        )

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the module's state, in the precision in which it will be trained."""
        if isinstance(self.precision_plugin, DoublePrecision):
            # Lightning converts the module afterwards, so that values would be rounded to 32 bits.
            self._module.double()
        super().load_model_state_dict(checkpoint, strict)

    def _require_same_start(self) -> None:
        """Check, at the begin of ``setup``, that no rank resumes where this one begins anew."""
        if not self._start_compared:
            self._start_compared = True
            read_nothing(self.root_device)

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        require_same_shuffle(self._module.trainer)
        place = "the comparison of batch counts"
        counts = gather_json(self._batch_counts(), self.root_device, place=place)
        problem = self._batches_problem([one for of_rank in counts for one in of_rank])
        if problem is not None:
            raise ValueError(problem)

    def _batch_counts(self) -> list[float]:
        """Training batches of each worker of this rank."""
        return [self._module.trainer.num_training_batches]

    def _batches_problem(self, counts: Sequence[float]) -> str | None:
        """What about the numbers of batches of all workers can't be trained, or None."""
        return uneven_problem(counts, "rank" if self.virtual_workers == 1 else "worker")

    def forget_groups(self) -> None:
        """Drop every reference to a process group, at the end of the process."""
        self._communicators = None

    def _division_problem(self) -> str | None:
        # On every rank, before they are known to agree on the size: under Ray it is a collective.
        uneven_hosts = self._node_groups_problem()
        if self.group_size == "node" and uneven_hosts is not None:
            return uneven_hosts
        try:
            _ = self.worker_layout, self._worker_counts
        except ValueError as error:
            return str(error)
        return None

    def _group_size(self) -> int:
        """Workers of one group."""
        per_host = self.num_processes * self.virtual_workers
        return workers_per_group(self.group_size, per_host, self._all_workers)

    @property
    def _all_workers(self) -> int:
        return self.world_size * self.virtual_workers

    @property
    def _worker_counts(self) -> WorkerLayout:
        """How ranks play the workers of groups."""
        return WorkerLayout(self._group_size(), self.virtual_workers)

    def _index(self, optimizer: Optimizer) -> int:
        """Place of an optimizer, as the module or as Lightning holds it, among the strategy's."""
        inner = getattr(optimizer, "_optimizer", optimizer)
        return next(i for i, own in enumerate(self.optimizers) if own in (inner, optimizer))

    @property
    def _module(self) -> pl.LightningModule:
        if self.lightning_module is None:
            raise RuntimeError("the strategy has not been connected with a module")
        return self.lightning_module

    @property
    def _limit(self) -> timedelta:
        return self._timeout or default_pg_timeout
