"""Tests that neither messages nor checkpoints are unpickled, also in calls of Lightning.

Also tests that ``strategy.broadcast`` is exact, or an error.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import RunningStage

from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("an object would be unpickled")


def _train(strategy: str, folder: Path) -> tuple[str, str]:
    """Train with features for which Lightning broadcasts objects.

    They are folders, file names, and the decision to stop.
    """
    dist.broadcast_object_list = _refuse
    dist.all_gather_object = _refuse
    dist.distributed_c10d._tensor_to_object = _refuse
    pickle.loads = _refuse
    trainer = make_trainer(
        strategy,
        logger=CSVLogger(folder / f"logs{os.environ['RANK']}"),
        callbacks=[ModelCheckpoint(monitor="val_loss", save_last=True)],
        enable_checkpointing=True,
        max_epochs=2,
    )
    trainer.fit(Net(), loader(4), loader(2))
    trainer.validate(Net(), loader(2), verbose=False)
    assert trainer.log_dir is not None and trainer.checkpoint_callback is not None
    return trainer.log_dir, trainer.checkpoint_callback.dirpath


@pytest.mark.parametrize("strategy", ["bmuf", "psp"])
def test_nothing_is_unpickled_from_start_to_end(strategy: str, tmp_path: Path) -> None:
    """All ranks get the folders of rank 0, although each has another one."""
    for folders in run_ranks(_train, 2, strategy, tmp_path):
        assert all(text.startswith(str(tmp_path / "logs0")) for text in folders)


class _Code:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def _load(strategy: str, folder: Path, from_the_network: bool) -> None:
    torch.hub.set_dir(folder / "downloads")
    serve = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        path = f"{address if from_the_network else folder}/evil.ckpt"
        try:
            make_trainer(strategy).fit(Net(), loader(2), ckpt_path=path)
        finally:
            server.shutdown()


@pytest.mark.parametrize(("strategy", "from_the_network"), [("bmuf", False), ("psp", True)])
def test_code_in_a_checkpoint_is_not_run(
    strategy: str, from_the_network: bool, tmp_path: Path
) -> None:
    """Without the strategies, Lightning runs the code of a checkpoint from the network."""
    mark = tmp_path / "run"
    state = {"state_dict": {}, "epoch": 0, "global_step": 0, "evil": _Code(mark)}
    torch.save(state, tmp_path / "evil.ckpt")
    (error,) = run_ranks(_load, 1, strategy, tmp_path, from_the_network, expect_failure=True)
    refusal = "Weights only load failed" if from_the_network else "is whole, but holds"
    assert refusal in error
    assert not mark.exists()


_REFUSED: list[tuple[Any, str]] = [
    (object(), "object: <object object at"),
    ({0: 1}, "int: 0 at a key"),
    ({"a": [(1, 2)]}, r"tuple: \(1, 2\) at \['a'\]\[0\]"),
    ({1, 2}, r"set: \{1, 2\}"),
    (np.float64(0.5), "float64: np.float64"),
    ([np.int64(1)], "int64: np.int64"),
    (torch.ones(2), r"Tensor: tensor\(\[1"),
    (RunningStage.TRAINING, "RunningStage: "),
    (b"bytes", "bytes: b'bytes'"),
    (Counter("a"), "Counter: Counter"),
]


def _broadcast(strategy: str, trains: bool) -> list[Any]:
    """Broadcast before training, or during training with servers."""
    trainer = make_trainer(strategy)
    if not trains:
        trainer.strategy.setup_environment()
        return _exchange(trainer)
    model = _Broadcasts()
    trainer.fit(model, loader(2))
    return model.received


class _Broadcasts(Net):
    received: list[Any]

    def on_train_epoch_end(self) -> None:
        self.received = _exchange(self.trainer)


def _exchange(trainer: Any) -> list[Any]:
    rank, broadcast = int(os.environ["RANK"]), trainer.strategy.broadcast
    values = [None, 3, f"from {rank}", {"a": [1.5, rank]}, Path("/tmp") / str(rank), 1e-320, 2**70]
    received = [broadcast(value, src=1) for value in values]
    assert str(broadcast([float("nan"), -float("inf"), -0.0])) == "[nan, -inf, -0.0]"
    for value, message in _REFUSED:
        wanted = rf"rank 1 .* can't represent exactly \({message}.*JSON and not as pickles.*list\("
        with pytest.raises(TypeError, match=wanted):
            broadcast(value if rank == 1 else None, src=1)
    return [*received, broadcast("last")]


@pytest.mark.parametrize(("strategy", "trains"), [("bmuf", False), ("psp", True)])
def test_broadcast_is_exact_or_one_error(strategy: str, trains: bool) -> None:
    wanted = [None, 3, "from 1", {"a": [1.5, 1]}, "/tmp/1", 1e-320, 2**70, "last"]
    assert run_ranks(_broadcast, 2, strategy, trains) == [wanted] * 2
