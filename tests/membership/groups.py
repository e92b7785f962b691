"""Training runs whose groups join, die and return, each group in processes of its own.

Every rank logs its steps and synchronisations as JSON lines.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import Tensor, nn
from torch.distributed import TCPStore
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.fragment import Fragment
from lightning_hier.comm.blocks.health import NonFiniteModelError
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership.group_exchange import GroupExchange
from lightning_hier.membership.lighthouse import Quorum
from lightning_hier.membership.quorums import Quorums
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from tests.ranks import RankOutcome, rank_outcomes
from tests.waiting import leave_mark, wait_for_marks

SAMPLES, BATCH = 288, 6


@dataclass(frozen=True)
class Life:
    """The processes of one group, from their start to their end.

    Attributes:
        group: number of the group.
        after: mark of another life, such as "died", after which this one starts.
        stands_at: step at which the group pauses until the mark `until`.
        until: mark of another life, such as "returning".
        stops: whether the group pauses as a stopped process (SIGSTOP) instead of waiting.
        saves: name of the checkpoint that is saved at the end.
        resumes: name of the checkpoint from which training resumes.
        dies_at: step before which the process ends itself with SIGKILL, or a method and the number
            of completed synchronisations, such as ("send", 2).
        diverges_at: step in which the loss is NaN.

    """

    group: int
    after: str = ""
    stands_at: int = -1
    until: str = ""
    stops: bool = False
    saves: str = ""
    resumes: str = ""
    dies_at: int | tuple[str, int] = -1
    diverges_at: int = -1


@dataclass(frozen=True)
class Run:
    """Settings that all lives share."""

    folder: str
    lighthouse: str
    sync: BlockSync
    groups: int = 3
    steps: int = 40
    ranks: int = 1
    optimizer: str = "SGD"
    optimizers: int = 1
    min_groups: int = 1
    join_timeout_s: float = 20.0
    in_background: bool = False  # whether checkpoints are written in the background


class _SlowWriter(AtomicCheckpointIO):
    """Writes slowly, as a busy disk does."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        time.sleep(0.5)
        super().save_checkpoint(checkpoint, path, storage_options)


class Module(pl.LightningModule):
    """Two layers and a buffer. Logs the samples of every step at every synchronisation."""

    def __init__(self, run: Run, life: Life, number: int) -> None:
        super().__init__()
        torch.manual_seed(7 + life.group)  # all groups start from the model of the first one
        self.run, self.life, self.number = run, life, number
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        self.count: Tensor
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.used: list[list[int]] = []
        self.automatic_optimization = run.optimizers == 1

    @property
    def step(self) -> int:
        """Steps of each optimizer, of which Lightning counts the sum."""
        return self.global_step // self.run.optimizers

    def on_train_start(self) -> None:
        torch.manual_seed(self.life.group)  # as users do it for other numbers on each rank

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.step == self.life.dies_at:
            self.die()
        if self.step == self.life.stands_at and self.life.stops:
            leave_mark(Path(self.run.folder), "stopped", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.step == self.life.stands_at:
            if self.global_rank == 0:
                leave_mark(Path(self.run.folder), f"standing-{self.life.group}")
            wait_for_marks(Path(self.run.folder), self.life.until)
        features, targets, numbers = batch
        self.used.append(numbers.tolist())
        self.count.add_(1)
        factor = torch.nan if self.step == self.life.diverges_at else 1.0
        loss: Tensor = factor * (self.net(features) - targets).square().mean()
        if not self.automatic_optimization:
            self.zero_grad()
            self.manual_backward(loss)
            for optimizer in cast("list[torch.optim.Optimizer]", self.optimizers()):
                optimizer.step()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        strategy: Any = self.trainer.strategy
        exchange, sync = strategy._elastic.exchange, self.run.sync
        if self.step % (sync.steps // sync.fragments) == 0:
            whole = sync.fragments == 1 and not sync.overlap
            model = weights(self) if whole else global_models(strategy._fit_session)
            self.write(
                commits=exchange.commits, present=list(exchange.present), used=self.used,
                epoch=self.trainer.current_epoch, step=self.step, model=model,
                seed=torch.initial_seed(),
            )  # fmt: skip
            self.used = []

    def die(self) -> None:
        if self.run.ranks > 1:
            torch.distributed.barrier()  # so that all ranks of the group end at the same step
        if self.global_rank == 0:
            leave_mark(Path(self.run.folder), "died")
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, **values: Any) -> None:
        with (Path(self.run.folder) / f"{self.number}.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        kind, parameters = getattr(torch.optim, self.run.optimizer), [*self.parameters()]
        parts = [parameters] if self.run.optimizers == 1 else [parameters[:4], parameters[4:]]
        return [kind(part, lr=0.05) for part in parts]


def data() -> TensorDataset:
    """The samples: features, targets and sample numbers."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)
    return TensorDataset(features, targets, torch.arange(SAMPLES))


def weights(module: nn.Module) -> list[float]:
    """All parameters and buffers as one list."""
    tensors = [*module.parameters(), *module.buffers()]
    return torch.cat([t.detach().double().reshape(-1) for t in tensors]).tolist()


def global_models(session: Any) -> list[float]:
    """W of every fragment on this rank, which groups change at the same synchronisations."""
    buckets = [b for own in session.synchroniser.blocks for f in own._fragments for b in f.buckets]
    return torch.cat([bucket.outer.vectors["global_model"] for bucket in buckets]).tolist()


def live(run: Run, lives: Sequence[Life], ports: Sequence[int]) -> list[float]:
    """Train as one rank of one life, and return the final model."""
    rank = int(os.environ["RANK"])
    life, number = lives[rank // run.ranks], rank % run.ranks
    # Every life is a separate job with its own store.
    os.environ.update(
        MASTER_PORT=str(ports[rank // run.ranks]),
        WORLD_SIZE=str(run.ranks),
        LOCAL_WORLD_SIZE=str(run.ranks),
        RANK=str(number),
        LOCAL_RANK=str(number),
        PL_GLOBAL_SEED="1",
        RUST_LOG="error",
    )
    if life.after:
        wait_for_marks(Path(run.folder), life.after)
    start = Quorums.start

    def starting(self: Quorums) -> Quorum | None:
        if number == 0:
            leave_mark(Path(run.folder), f"starting-{life.group}")
            if life.after:
                leave_mark(Path(run.folder), "returning")
        return start(self)

    Quorums.start = starting  # type: ignore[method-assign]
    module = Module(run, life, rank)
    if isinstance(life.dies_at, tuple):
        _die_in(module, *life.dies_at)
    settings = {"min_groups": run.min_groups, "join_timeout_s": run.join_timeout_s}
    strategy = lh.HierarchicalStrategy(
        block_sync=run.sync,
        membership=lh.TorchFT(run.lighthouse, life.group, run.groups, **settings),
    )
    trainer = pl.Trainer(
        accelerator="cpu", devices=run.ranks, max_steps=run.steps * run.optimizers,
        strategy=strategy, logger=False, precision="64-true", enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
        plugins=[AsyncCheckpointIO(_SlowWriter())] if run.in_background else [],
    )  # fmt: skip
    path = Path(run.folder) / life.resumes if life.resumes else None
    try:
        trainer.fit(module, DataLoader(data(), batch_size=BATCH, shuffle=True), ckpt_path=path)
    except (PeerError, NonFiniteModelError):
        leave_mark(Path(run.folder), f"restarts-{life.group}")
        raise
    if life.saves:
        trainer.save_checkpoint(Path(run.folder) / life.saves)
    return weights(module)


def _die_in(module: Module, place: str, commits: int) -> None:
    """End the process before the groups connect, or in a method of `Fragment`."""
    # Groups connect once and stay connected. GroupExchange calls this method at every attempt.
    owner, name = (GroupExchange, "_attempted") if place == "connect" else (Fragment, place)
    method: Callable[..., Any] = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if module.step // module.run.sync.steps == commits:
            # In `send`, the other groups wait for data that this process does not send any more.
            module.die()
        return method(*args, **kwargs)

    setattr(owner, name, dying)


@contextmanager
def lighthouse(port: int = 0, *, heartbeat_timeout_s: float = 3.0) -> Iterator[str]:
    """A Lighthouse in this process, and its address."""
    os.environ.setdefault("RUST_LOG", "error")
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind=f"127.0.0.1:{port}", min_replicas=1, join_timeout_ms=20_000, quorum_tick_ms=20,
        heartbeat_timeout_ms=round(1000 * heartbeat_timeout_s),
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{server.address().rpartition(':')[2]}"
    finally:
        server.shutdown()


def live_all(run: Run, lives: Sequence[Life]) -> list[RankOutcome]:
    """Run all lives at the same time, and return the outcome of every rank."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in lives]
    ports = [store.port for store in stores]
    return rank_outcomes(live, len(lives) * run.ranks, run, lives, ports, timeout_s=100.0)


def log(run: Run, number: int) -> list[dict[str, Any]]:
    """The log of a rank, empty if the rank has logged nothing."""
    path = Path(run.folder) / f"{number}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_equal_models(logs: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Check that groups that took part in a synchronisation have the same model after it."""
    by_commit: dict[int, list[float]] = {}
    for entries in logs:
        for entry in entries:
            assert by_commit.setdefault(entry["commits"], entry["model"]) == entry["model"]
