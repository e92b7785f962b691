"""Tests of the speech example's data module with a Trainer, on one rank and on several."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning import LightningModule
from torch import nn

from examples.acoustic.corpora.synthesis import build_synthetic_corpus
from examples.acoustic.corpus import Corpus, CorpusDataModule
from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.utterance import Batch
from examples.quiet import quiet_trainer
from tests.ranks import run_ranks

SMALL = {"sentences": 30, "valid_fraction": 0.2, "test_fraction": 0.2}


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


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build_synthetic_corpus(**SMALL)


def test_loaders_give_batches_of_their_splits(corpus: Corpus) -> None:
    data = CorpusDataModule(lambda: corpus, batch_frames=400)
    for loader, split in (
        (data.train_dataloader(), corpus.train),
        (data.val_dataloader(), corpus.valid),
        (data.test_dataloader(), corpus.test),
    ):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch in batches:
            assert isinstance(batch, Batch)
            for row, position in enumerate(batch.index.tolist()):
                frames = int(batch.lengths[row])
                assert torch.equal(batch.features[row, :frames], split[position].features)
                assert torch.equal(batch.targets[row, :frames], split[position].senones)
        assert sorted(i for b in batches for i in b.index.tolist()) == list(range(len(split)))


def test_training_leaves_out_utterances_without_targets(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    train = [replace(u, senones=None) if i % 3 == 0 else u for i, u in enumerate(corpus.train)]
    data = CorpusDataModule(lambda: replace(corpus, train=train), batch_frames=400)
    with caplog.at_level(logging.WARNING):
        batches = list(data.train_dataloader())
    seen = [position for batch in batches for position in batch.index.tolist()]
    assert sorted(seen) == [i for i in range(len(train)) if i % 3]
    assert all((batch.targets >= 0).any(1).all() for batch in batches)
    assert f"{len(train) - len(seen)} of {len(train)} train utterances" in caplog.text

    bare = replace(corpus, train=[replace(u, senones=None) for u in corpus.train])
    data = CorpusDataModule(lambda: bare)
    with pytest.raises(ValueError, match="no train utterance of corpus synthetic has targets"):
        data.train_dataloader()
