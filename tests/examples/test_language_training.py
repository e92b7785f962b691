"""Tests of training the language model: learning, meshes, command line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy

from examples.language.model import LanguageModel
from examples.quiet import quiet_trainer
from tests.examples import command_lines
from tests.examples.command_lines import EXAMPLES, run
from tests.examples.language_texts import small_data, small_model, write_texts
from tests.ranks import run_ranks

CONFIGS = EXAMPLES / "language" / "configs"


def steps_on_this_rank(folder: str, data_parallel: int, tensor_parallel: int) -> dict[str, float]:
    """Scores after a few steps on a mesh, on the CPU."""
    torch.manual_seed(0)
    ranks = data_parallel * tensor_parallel
    strategy: Any = "auto"
    if ranks > 1:
        strategy = ModelParallelStrategy(
            data_parallel_size=data_parallel, tensor_parallel_size=tensor_parallel
        )
    trainer = quiet_trainer(
        strategy, devices=ranks, max_epochs=1, limit_train_batches=3, gradient_clip_val=0.5
    )
    # A batch has 8 windows, on one rank or divided among two.
    data = small_data(Path(folder), batch_windows=8 // data_parallel)
    trainer.fit(small_model(vocabulary=258, learning_rate=1e-3), data)
    return {
        name: float(trainer.callback_metrics[name])
        for name in ("valid/loss", "valid/bits_per_byte")
    }


def test_a_mesh_trains_the_same_model(tmp_path: Path) -> None:
    """Each step has the same windows on one rank and on several."""
    folder = str(write_texts(tmp_path / "texts"))
    (alone,) = run_ranks(steps_on_this_rank, 1, folder, 1, 1)
    scores = run_ranks(steps_on_this_rank, 4, folder, 2, 2)
    assert all(each == scores[0] for each in scores)
    assert scores[0] == pytest.approx(alone, rel=1e-5)


def weights_on_this_rank(folder: str) -> list[float]:
    model = small_model()
    trainer = quiet_trainer("psp", devices=2, max_steps=3)
    trainer.fit(model, small_data(Path(folder), batch_windows=4))
    return [float(each.detach().double().sum()) for each in model.parameters()]


def test_servers_hold_a_model_that_was_sized_by_the_data(tmp_path: Path) -> None:
    """Synchronous strategies are tested below, and with the other examples."""
    first, second = run_ranks(weights_on_this_rank, 2, str(write_texts(tmp_path / "texts")))
    assert first == second and len(first) > 4


def test_data_with_more_tokens_than_the_model_are_refused(tmp_path: Path) -> None:
    data = small_data(write_texts(tmp_path / "texts"))
    with pytest.raises(ValueError, match="vocabulary of the model must be at least the data's 257"):
        quiet_trainer(max_steps=1).fit(small_model(vocabulary=99), data)
    with pytest.raises(ValueError, match="context of the model must be at least the data's 16"):
        quiet_trainer(max_steps=1).fit(small_model(context=8), data)


def small_run(folder: Path, *more: str, command: str = "fit") -> list[str]:
    """Arguments of a run of the tiny config that takes a second or two."""
    return command_lines.small_run(
        CONFIGS / "tiny_stdlib.yaml",
        folder,
        "--trainer.max_steps=12",
        "--trainer.val_check_interval=null",
        "--trainer.limit_train_batches=12",
        "--trainer.callbacks=[]",
        "--trainer.devices=1",
        "--trainer.strategy.init_args.warmup_steps=2",
        "--data.corpus=folder",
        "--data.context=16",
        f"--data.cache_dir={folder / 'cache'}",
        "--model.layers=1",
        "--model.width=16",
        *more,
        command=command,
    )


def test_other_text_is_tested(tmp_path: Path) -> None:
    """``fit`` takes sizes from the data, and a checkpoint holds the tokenizer."""
    texts = write_texts(tmp_path / "texts")
    tokens = ["--data.tokenizer=bpe", "--data.vocabulary_size=280"]
    cli = run(small_run(tmp_path, f"--data.corpus_args.path={texts}", *tokens))
    assert isinstance(cli.model, LanguageModel)
    assert (cli.model.vocabulary, cli.model.context) == (280, 16)
    metrics = cli.trainer.callback_metrics
    assert {"train/loss", "valid/loss", "valid/bits_per_byte"} <= set(metrics)
    assert float(metrics["valid/bits_per_byte"]) < math.log2(257)
    checkpoint = cli.trainer.checkpoint_callback.best_model_path
    loaded = LanguageModel.load_from_checkpoint(checkpoint, weights_only=True)
    for name, value in cli.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    # Another folder, with test data only.
    others = write_texts(tmp_path / "others", files=9, seed=1)
    tested = run(
        small_run(
            tmp_path,
            f"--data.corpus_args.test_path={others}",
            f"--ckpt_path={checkpoint}",
            *tokens,
            command="test",
        )
    )
    assert {"test/loss", "test/bits_per_byte"} <= set(tested.trainer.callback_metrics)
