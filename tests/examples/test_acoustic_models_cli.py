"""Tests of the speech example's checkpoints, which are tested on data without a train split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.acoustic import flat_start
from examples.acoustic.corpora.synthesis import build_synthetic_corpus
from examples.acoustic.fitted import Fitted
from examples.acoustic.lexicon import Lexicon, SenoneMap
from tests.examples import command_lines
from tests.examples.command_lines import EXAMPLES, TrainingCLI, run
from tests.examples.manifests import write_manifest

CONFIGS = EXAMPLES / "acoustic" / "configs"
SENTENCES = 20


def an4(folder: Path) -> tuple[str, str]:
    """A folder of random cepstra in AN4's layout, and one with its test utterances only."""
    lines = ["A  AH", "B  B IY", "C  S IY"]
    draw = np.random.default_rng(0)
    entries = [
        {"path": f"{split}-{i}", "text": text, "split": split, "speaker": f"{split}-{i % 2}"}
        for split in ("train", "valid", "test")
        for i, text in enumerate(["A B", "B C A", "C", "A A B", "B A", "C B"])
    ]
    cepstra = {entry["path"]: draw.normal(size=(60, 13)) for entry in entries}
    for name, chosen in (
        ("whole", entries),
        ("alone", [entry for entry in entries if entry["split"] == "test"]),
    ):
        (folder / name).mkdir()
        (folder / name / "an4.dic").write_text("\n".join(lines))
        write_manifest(folder / name, chosen)
        arrays = {entry["path"]: cepstra[entry["path"]] for entry in chosen}
        np.savez(folder / name / "an4_mfcc.npz", **arrays)
    return str(folder / "whole"), str(folder / "alone")


def test_a_checkpoint_is_tested_on_a_folder_of_test_utterances_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Uses the normalisation, words and transcripts of the training, and aligns nothing."""
    whole, alone = an4(tmp_path)

    def one(folder: str, *more: str, command: str = "test") -> TrainingCLI:
        return run(
            command_lines.small_run(
                CONFIGS / "an4_lstm.yaml",
                tmp_path,
                "--model.init_args.hidden_dim=8",
                f"--data.corpus_args={{path: {folder}, normalisation: global}}",
                f"--data.cache_dir={tmp_path / 'cache'}",
                *more,
                command=command,
            )
        )

    fit = one(whole, command="fit")
    # Sizes come from the data.
    assert fit.model.lstm.input_size == fit.datamodule.corpus.feature_dim == 39
    assert fit.model.num_senones == len(fit.datamodule.corpus.senones)
    checkpoint = f"--ckpt_path={fit.trainer.checkpoint_callback.best_model_path}"

    def not_again(*_: Any) -> None:
        raise AssertionError("nothing is aligned in test")

    monkeypatch.setattr(flat_start, "align_corpus", not_again)
    expected = dict(one(whole, checkpoint).trainer.callback_metrics)
    assert set(expected) == {"test/loss", "test/frame_error_rate", "test/word_error_rate"}
    metrics = dict(one(alone, checkpoint).trainer.callback_metrics)
    assert metrics == {"test/word_error_rate": expected["test/word_error_rate"]}
    assert "the test split has no alignments: word errors are scored" in caplog.text
    with pytest.raises(ValueError, match="nor a checkpoint of a model"):
        one(alone)
    with pytest.raises(ValueError, match="no valid split"):
        one(alone, checkpoint, command="validate")


def test_a_corpus_to_test_on_keeps_the_numbering_of_the_training() -> None:
    fitted = build_synthetic_corpus(sentences=SENTENCES).fitted
    restored = Fitted.from_state_dict(fitted.state_dict())
    assert restored.senones == fitted.senones
    words = fitted.lexicon.words
    assert restored.lexicon.words == words
    for word in words:
        assert restored.lexicon.pronunciations(word) == fitted.lexicon.pronunciations(word)
    assert restored.transcripts == fitted.transcripts
    other = replace(restored, senones=SenoneMap(("sil", *reversed(restored.senones.phones[1:]))))
    with pytest.raises(ValueError, match="must be numbered by the phones"):
        build_synthetic_corpus(sentences=SENTENCES, fitted=other)
    fewer = replace(restored, lexicon=Lexicon({"a": [("q",)]}), senones=SenoneMap(("sil", "q")))
    with pytest.raises(ValueError, match="words have phones that the model was not trained on"):
        fewer.lexicon_with(fitted.lexicon)
