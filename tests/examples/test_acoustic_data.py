"""Tests of the speech example's data: AN4, synthesis and its cache, and batches in a Trainer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn

from examples.acoustic.corpora import synthesis
from examples.acoustic.corpora.an4 import build_an4_corpus
from examples.acoustic.corpora.synthesis import SynthesisConfig, build_synthetic_corpus
from examples.acoustic.corpus import Batch, Corpus
from examples.acoustic.data_module import AcousticDataModule
from examples.quiet import quiet_trainer
from tests.examples.manifests import SPLITS, write_manifest
from tests.ranks import run_ranks

SMALL = {"sentences": 30, "valid_fraction": 0.2, "test_fraction": 0.2}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build_synthetic_corpus(**SMALL)


def _small_an4(folder: Path) -> Path:
    folder.mkdir()
    draw = np.random.default_rng(0)
    entries = [
        {"path": f"u{n}", "text": "YES NO", "split": SPLITS[n % 3], "speaker": f"s{n % 2}"}
        for n in range(6)
    ]
    np.savez(
        folder / "an4_mfcc.npz",
        **{e["path"]: draw.normal(3, 2, (90, 13)).astype(np.float16) for e in entries},
    )
    write_manifest(folder, entries)
    (folder / "an4.dic").write_text("YES  Y EH S\nNO  N OW\n")
    return folder


def test_an4_dimensions_and_normalisation(tmp_path: Path) -> None:
    folder = _small_an4(tmp_path / "an4")
    plain = build_an4_corpus(path=folder)
    assert plain.feature_dim == 39 and plain.train[0].senones is None
    deltas = build_an4_corpus(path=folder, delta_orders=2)
    assert deltas.feature_dim == 3 * 39
    assert deltas.train[0].words == ("YES", "NO") and deltas.train[0].features.shape == (30, 117)
    # Features are normalised for each speaker, whose frames then have mean 0.
    keys = [u.key for split in plain.splits.values() for u in split if u.speaker == "s1"]
    frames = torch.cat([plain.recorded[key] for key in keys])
    torch.testing.assert_close(frames.mean(0), torch.zeros(13), atol=1e-3, rtol=0)


def test_a_wrong_line_of_the_manifest_is_named(tmp_path: Path) -> None:
    folder = _small_an4(tmp_path / "an4")
    with (folder / "manifest.jsonl").open("a") as file:
        file.write('{"path": "a", "text": "b", "split": "dev"}\n')
    with pytest.raises(ValueError, match="manifest.jsonl:7: a line gives path, text and split"):
        build_an4_corpus(path=folder)


def test_cache_gives_the_same_corpus_without_synthesis(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_synthetic_corpus(**SMALL, cache_dir=tmp_path)

    def refuse(config: SynthesisConfig) -> Iterator[None]:
        raise AssertionError("the corpus should have come from the cache")

    monkeypatch.setattr(synthesis, "synthesise", refuse)
    cached = build_synthetic_corpus(**SMALL, cache_dir=tmp_path)
    for first, second in zip(corpus.test, cached.test, strict=True):
        assert (first.key, first.speaker, first.words) == (
            second.key,
            second.speaker,
            second.words,
        )
        assert torch.equal(first.features, second.features)
        assert torch.equal(first.senones, second.senones)
    with pytest.raises(AssertionError, match="from the cache"):
        build_synthetic_corpus(**{**SMALL, "seed": 9}, cache_dir=tmp_path)
    assert not list(tmp_path.glob("*.partial"))


class Collector(LightningModule):
    """A frame classifier that records the utterances of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(192, 400)
        self.seen: list[list[int]] = []

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        if len(self.seen) <= self.current_epoch:
            self.seen.append([])
        self.seen[self.current_epoch] += batch.index.tolist()
        return nn.functional.cross_entropy(self.output(batch.features).mT, batch.targets)

    def validation_step(self, batch: Batch, _: int) -> None:
        self.log("valid_frames", float(batch.lengths.sum()), batch_size=len(batch.lengths))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fit(cache_dir: str) -> list[list[int]]:
    data = AcousticDataModule(
        "synthetic", dict(SMALL), batch_frames=300, seed=2, cache_dir=cache_dir
    )
    model = Collector()
    trainer = quiet_trainer("ddp", devices=2, max_epochs=2, use_distributed_sampler=True)
    trainer.fit(model, datamodule=data)
    assert trainer.num_training_batches * 2 == trainer.global_step
    return model.seen


def test_ranks_share_the_utterances_anew_each_epoch(tmp_path: Path) -> None:
    per_rank = run_ranks(_fit, 2, str(tmp_path))
    for epoch in range(2):
        seen = [position for rank in per_rank for position in rank[epoch]]
        assert sorted(seen) == list(range(18))
    assert set(per_rank[0][0]) != set(per_rank[0][1])
    assert len(list(tmp_path.glob("*.npz"))) == 1


def _data(corpus: Corpus) -> AcousticDataModule:
    data = AcousticDataModule(batch_frames=400)
    data._corpus = corpus
    return data


def test_training_leaves_out_utterances_without_targets(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    train = [replace(u, senones=None) if i % 3 == 0 else u for i, u in enumerate(corpus.train)]
    data = _data(replace(corpus, train=train))
    with caplog.at_level(logging.WARNING):
        batches = list(data.train_dataloader())
    seen = [position for batch in batches for position in batch.index.tolist()]
    assert sorted(seen) == [i for i in range(len(train)) if i % 3]
    assert all((batch.targets >= 0).any(1).all() for batch in batches)
    assert f"{len(train) - len(seen)} of {len(train)} train utterances" in caplog.text
