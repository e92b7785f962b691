"""Tests that progress bars show the position in the block and the cost of communication."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any

from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar

import lightning_hier as lh
from lightning_hier.callbacks import progress
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF, BMUF_GTC, GTC, Net, loader, make_trainer
from tests.trainer.test_metric_names import Keeps

TIMEOUT = timedelta(seconds=120)
STRATEGIES: dict[str, Any] = {
    "bmuf_gtc": partial(BMUF_GTC, block_size=3),
    "gtc": GTC,
    "psp": partial(lh.PSPStrategy, timeout=TIMEOUT),
    "two_stage_asgd": partial(lh.TwoStageASGDStrategy, group_size=2, timeout=TIMEOUT),
}


class _Tqdm(TQDMProgressBar):
    """Keeps its entries, and draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[dict[str, Any]] = []

    def init_train_tqdm(self) -> Any:
        bar = super().init_train_tqdm()
        bar.file = bar.fp = StringIO()
        bar.set_postfix = lambda entries: self.shown.append(dict(entries))
        return bar


class _Logs(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        return loss


def _show() -> Any:
    progress._SHORTEST_SPAN_S = 0.0  # numbers from the first batch on
    results = {}
    for name, build in STRATEGIES.items():
        bar, logger = _Tqdm(), Keeps()
        settings = {"callbacks": [bar], "enable_progress_bar": True, "logger": logger}
        trainer = make_trainer(build(), log_every_n_steps=1, **settings)
        trainer.fit(_Logs(), loader(4))
        results[name] = bar.shown, logger.names | set(trainer.callback_metrics), vars(bar)
    return {
        name: (shown, names, "get_metrics" in attributes)
        for name, (shown, names, attributes) in results.items()
    }


def test_tqdm() -> None:
    for name, (postfixes, logged, is_left) in run_ranks(_show, 4)[0].items():
        assert len(postfixes) >= 4
        for entries in postfixes:
            assert "loss" in entries
            assert entries["comm"].endswith("%")
            assert float(entries["MB/s"]) >= 0
        assert any(float(entries["MB/s"]) > 0 for entries in postfixes)
        blocks = [entries.get("block") for entries in postfixes[:4]]
        expected = ["1 1/3", "1 2/3", "2 0/3", "2 1/3"] if name == "bmuf_gtc" else [None] * 4
        assert blocks == expected
        assert not {"block", "comm", "MB/s"} & logged
        assert not is_left


def _show_rich() -> str:
    progress._SHORTEST_SPAN_S = 0.0
    screen = StringIO()
    bar = RichProgressBar(
        console_kwargs={"file": screen, "force_terminal": True, "width": 160, "color_system": None}
    )
    trainer = make_trainer(BMUF(block_size=3), enable_progress_bar=True, callbacks=[bar])
    trainer.fit(Net(), loader(4))
    return screen.getvalue()


def test_rich() -> None:
    text = run_ranks(_show_rich, 2)[0]
    assert "block: 2 1/3" in text
    assert "comm: " in text
    assert "MB/s: " in text
