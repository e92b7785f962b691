"""Models of `benchmarks.training_cuda`: an LSTM, and the models of the language example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from examples.language.model import LanguageModel, flops_per_token
from examples.language.windows import Batch

_FRAMES, _SEQUENCES, _FEATURES, _SENONES = 20, 64, 192, 3183


class LSTM(pl.LightningModule):
    """The papers' acoustic model, 24.3M parameters, with random frames created on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(_FEATURES, 768, 5)
        self.senones = nn.Linear(768, _SENONES)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        frames = torch.randn(_FRAMES, _SEQUENCES, _FEATURES, device=self.device)
        labels = torch.randint(_SENONES, (_FRAMES * _SEQUENCES,), device=self.device)
        hidden, _ = self.lstm(frames)
        return cross_entropy(self.senones(hidden).flatten(0, 1), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model and its batches.

    Attributes:
        module: function that creates the module.
        batch: batch of all steps, in host memory.
        trainer: settings of the Trainer.
        tokens: number of tokens in a step, or 0 if the module is not a language model.
        with_moments: whether the optimizer is AdamW.

    """

    module: Callable[[], pl.LightningModule]
    batch: Any
    trainer: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0

    @property
    def with_moments(self) -> bool:
        return self.tokens > 0

    def mfu(self, step_s: float, peak: float) -> float:
        """Return the model FLOPs utilisation, from the peak FLOPs of the GPU."""
        with torch.device("meta"):
            module = self.module()
        assert isinstance(module, LanguageModel)
        return self.tokens * flops_per_token(module) / step_s / peak


def _language(size: Any, vocabulary: int, context: int, windows: int, **settings: Any) -> Work:
    inputs, targets = torch.randint(vocabulary, (2, windows, context))
    return Work(
        module=lambda: LanguageModel(
            size=size, vocabulary=vocabulary, context=context, max_steps=10_000, beta1=0.5,
            **settings,
        ),
        batch=Batch(inputs, targets, torch.zeros(windows)),
        trainer={"precision": "bf16-mixed", "gradient_clip_val": 1.0},
        tokens=inputs.numel(),
    )  # fmt: skip


WORKS: dict[str, Callable[[], Work]] = {
    "lstm": lambda: Work(module=LSTM, batch=torch.zeros(1)),
    # As in examples/language/configs, except `compile`.
    "small": lambda: _language("small", 4096, 256, 16),
    "gpt2": lambda: _language("gpt2", 50304, 1024, 16),
    "1b": lambda: _language("1b", 50304, 2048, 8, activation_checkpointing=True),
}
