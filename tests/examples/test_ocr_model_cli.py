"""Tests of the text line example's command line: sizes from data, small runs, error rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from examples.ocr.model import DarkNetDBLSTM
from tests.examples import command_lines
from tests.examples.command_lines import EXAMPLES, TrainingCLI, run
from tests.examples.line_images import save
from tests.examples.manifests import write_manifest

CONFIGS = EXAMPLES / "ocr" / "configs"


BEAM_SEARCH = "--trainer.callbacks+=examples.ocr.decode_lines.DecodeLines"


def small_run(directory: Path, *more: str, command: str = "fit") -> list[str]:
    """Arguments of a run of the synthetic config that takes a second or two."""
    return command_lines.small_run(
        CONFIGS / "synthetic_small.yaml",
        directory,
        "--data.height=16",
        "--data.corpus_args.train_lines=24",
        "--data.corpus_args.valid_lines=9",
        "--data.corpus_args.test_lines=9",
        "--data.corpus_args.max_characters=16",
        f"--data.cache_dir={directory / 'cache'}",
        "--data.batch_lines=4",
        "--model.channels=[4,4,8]",
        "--model.cells=8",
        *more,
        command=command,
    )


def test_fit_takes_sizes_from_the_data_and_test_gives_error_rates(tmp_path: Path) -> None:
    cli = run(small_run(tmp_path, "--data.alphabet=corpus"))
    assert isinstance(cli.model, DarkNetDBLSTM)
    assert cli.model.height == 16
    assert cli.model.num_classes == len(cli.datamodule.alphabet) < 96
    assert {"train/loss", "valid/loss", "valid/cer", "valid/wer"} <= set(
        cli.trainer.callback_metrics
    )
    checkpoint = cli.trainer.checkpoint_callback.best_model_path
    loaded = DarkNetDBLSTM.load_from_checkpoint(checkpoint, weights_only=True)
    assert loaded.alphabet == cli.datamodule.alphabet
    tested = run(
        small_run(
            tmp_path,
            "--data.alphabet=corpus",
            f"--ckpt_path={checkpoint}",
            BEAM_SEARCH,
            "--trainer.callbacks.language_model=words",
            command="test",
        )
    )
    names = {"test/loss", "test/cer", "test/wer", "test/cer_lm", "test/wer_lm"}
    assert names <= set(tested.trainer.callback_metrics)
    assert torch.equal(tested.model.affine.weight, cli.model.affine.weight)


def test_a_checkpoint_is_tested_on_a_manifest_of_test_lines_alone(tmp_path: Path) -> None:
    """Uses the alphabet and the language model of the training texts."""
    entries = [
        {"path": f"{split}{i}.png", "text": text, "split": split}
        for split, texts in {
            "train": ["ab ba", "abc", "cab", "bé"],
            "valid": ["ab", "abc"],
            "test": ["cab", "ba ab"],
        }.items()
        for i, text in enumerate(texts)
    ]
    for i, entry in enumerate(entries):
        save(tmp_path / entry["path"], width=80, height=20, seed=i)
    write_manifest(tmp_path, entries)
    (tmp_path / "alone.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in entries if entry["split"] == "test")
    )

    def tested(manifest: str, *more: str, command: str = "test") -> TrainingCLI:
        corpus = f"--data.corpus_args={{path: {tmp_path / manifest}}}"
        return run(
            command_lines.small_run(
                CONFIGS / "oldbooks_small.yaml",
                tmp_path,
                "--model.channels=[4,4,8]",
                "--model.cells=8",
                "--data.height=16",
                "--data.alphabet=corpus",
                "--data.on_unreadable=error",
                f"--data.cache_dir={tmp_path / 'cache'}",
                corpus,
                *more,
                command=command,
            )
        )

    fit = tested("manifest.jsonl", command="fit")
    checkpoint = f"--ckpt_path={fit.trainer.checkpoint_callback.best_model_path}"
    whole = tested("manifest.jsonl", checkpoint, BEAM_SEARCH).trainer.callback_metrics
    alone = tested("alone.jsonl", checkpoint, BEAM_SEARCH).trainer.callback_metrics
    assert "test/cer_lm" in whole and dict(whole) == dict(alone)
    with pytest.raises(ValueError, match=r"no valid split; its lines in the manifest.*\"valid\""):
        tested("alone.jsonl", checkpoint, command="validate")
    with pytest.raises(ValueError, match=r"no train split.*--ckpt_path"):
        tested("alone.jsonl")


def test_data_with_narrower_frames_than_the_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least the model's 4, got 2"):
        run(small_run(tmp_path, "--data.pixels_per_frame=2"))
