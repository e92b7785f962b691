"""Tests of the text line example's model and its command line."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from examples.ocr.alphabet import encode
from examples.ocr.lines import Batch
from examples.ocr.model import LineRecogniser, best_paths, ctc_losses
from tests.examples import command_lines
from tests.examples.command_lines import EXAMPLES, TrainingCLI, run
from tests.examples.line_images import save
from tests.examples.manifests import write_manifest


def batch_of(widths: list[int], texts: list[str], height: int = 24) -> Batch:
    """Lines of noise, padded with ink, which must not affect outputs."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(len(widths), 1, height, max(widths), generator=generator)
    for row, width in enumerate(widths):
        images[row, :, :, width:] = 0.7
    targets = [torch.tensor(encode(text)) for text in texts]
    return Batch(
        images,
        torch.tensor(widths),
        nn.utils.rnn.pad_sequence(targets, batch_first=True),
        torch.tensor([len(text) for text in texts]),
    )


def test_outputs_of_a_line_do_not_depend_on_padding() -> None:
    torch.manual_seed(0)
    model = LineRecogniser(height=24, cells=8)
    with torch.no_grad():
        for _ in range(5):  # so that BatchNorm has statistics, as after training
            model(torch.rand(2, 1, 24, 64), torch.tensor([64, 40]))
    model.eval()
    widths = [83, 41, 64, 16]
    batch = batch_of(widths, ["a", "bb", "c", "d"])
    together, frames = model(batch.images, batch.widths)
    assert together.shape == (21, 4, 96)
    losses = ctc_losses(together, frames, batch)
    for row, width in enumerate(widths):
        assert frames[row] == -(-width // 4)
        alone, _ = model(batch.images[row : row + 1, :, :, :width], torch.tensor([width]))
        torch.testing.assert_close(alone[:, 0], together[: frames[row], row], atol=1e-5, rtol=1e-4)
        one = Batch(*(values[row : row + 1] for values in batch))
        torch.testing.assert_close(ctc_losses(alone, frames[row : row + 1], one)[0], losses[row])


def test_best_path_merges_repeated_outputs_and_removes_blanks() -> None:
    path = [*encode("aab"), 0, *encode("bbc")]
    scores = nn.functional.one_hot(torch.tensor([path, path]).t(), 96).float()
    assert best_paths(scores, torch.tensor([7, 3])) == ["abbc", "ab"]


def small_run(config: str, directory: Path, *more: str, command: str = "fit") -> list[str]:
    """Arguments of a run that takes a second or two."""
    return command_lines.small_run(
        EXAMPLES / "ocr" / "configs" / config,
        directory,
        "--data.height=16",
        "--model.height=16",
        "--data.batch_lines=4",
        "--model.channels=[4,4,8]",
        "--model.cells=8",
        *more,
        command=command,
    )


def test_a_checkpoint_is_tested_on_other_lines(tmp_path: Path) -> None:
    splits = {"train": ["ab ba", "abc"], "valid": ["ab"], "test": ["cab", "ba ab"]}
    for folder, kept in (("whole", tuple(splits)), ("alone", ("test",))):
        entries = [
            {"path": f"{split}{i}.png", "text": text, "split": split}
            for split in kept
            for i, text in enumerate(splits[split])
        ]
        for entry in entries:
            save(tmp_path / folder / entry["path"], width=80, height=20)
        write_manifest(tmp_path / folder, entries)

    def scores(folder: str, *more: str, command: str = "test") -> TrainingCLI:
        path = f"--data.corpus_args={{path: {tmp_path / folder}}}"
        return run(small_run("oldbooks_small.yaml", tmp_path, path, *more, command=command))

    fit = scores("whole", command="fit")
    names = {"train/loss", "valid/loss", "valid/cer", "valid/wer"}
    assert names <= set(fit.trainer.callback_metrics)
    checkpoint = f"--ckpt_path={fit.trainer.checkpoint_callback.best_model_path}"
    alone = scores("alone", checkpoint).trainer.callback_metrics
    assert dict(scores("whole", checkpoint).trainer.callback_metrics) == dict(alone)
    assert {"test/loss", "test/cer", "test/wer"} <= set(alone)
