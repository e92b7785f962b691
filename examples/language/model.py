"""The LightningModule of the language example: loss, optimizer, learning rate, bits per byte."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric

from examples.language.bits_per_byte import SumRatio
from examples.language.parallel import apply_tensor_parallel, shard_fully
from examples.language.schedules import Schedule, ScheduleName
from examples.language.shapes import SizeName, shape_of
from examples.language.transformer import Transformer
from examples.language.windows import IGNORED, Batch
from examples.sized_by_data import SizedByData


class LanguageModel(SizedByData):
    """A transformer that predicts the next token, trained by AdamW.

    Logged: ``train/loss`` of this rank's batch, in nats per token; over all windows of all ranks
    ``valid/loss``, ``test/loss`` and, where the bytes of the tokens are known,
    ``valid/bits_per_byte`` and ``test/bits_per_byte``.

    Weight decay acts on the matrices of the blocks, not on embedding and norms. Clip gradients by
    the Trainer's ``gradient_clip_val``.

    Under Lightning's ModelParallelStrategy, ``bmuf_adam_fsdp`` and ``diloco_fsdp`` the model is
    divided by tensor parallelism and FSDP2, as the strategy's sizes say. Every process creates the
    whole model in host memory first.

    Args:
        vocabulary: number of tokens; None takes it from the data. It may be larger than the data's.
        context: T, most tokens of a window; None takes it from the data.
        size: ``"tiny"``, ``"small"``, ``"gpt2"`` or ``"1b"``; with 257 bytes 0.2M and 3.2M
            parameters, with 50,304 tokens 124M and 1.0B.
        layers, heads, width: instead of those of ``size``.
        learning_rate: of AdamW, at its peak.
        beta1, beta2: of AdamW.
        weight_decay: of AdamW.
        schedule: ``"cosine"`` or ``"constant"``, see
            :class:`~examples.language.schedules.Schedule`, as the next three.
        warmup_share: share of the steps over which the rate rises.
        decay_share: share of the steps over which a constant rate falls.
        final_share: share of the rate that is left at the end.
        max_steps: length of the schedule; None takes the Trainer's number of steps.
        activation_checkpointing: less memory for more computation, see ``Transformer``.
        compile: apply ``torch.compile`` to each block.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(
        self,
        *,
        vocabulary: int | None = None,
        context: int | None = None,
        size: SizeName = "tiny",
        layers: int | None = None,
        heads: int | None = None,
        width: int | None = None,
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.95,
        weight_decay: float = 0.1,
        schedule: ScheduleName = "cosine",
        warmup_share: float = 0.05,
        decay_share: float = 0.2,
        final_share: float = 0.1,
        max_steps: int | None = None,
        activation_checkpointing: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.shape = shape_of(size, layers=layers, heads=heads, width=width)
        self.schedule = Schedule(
            kind=schedule,
            warmup_share=warmup_share,
            decay_share=decay_share,
            final_share=final_share,
        )
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.max_steps = max_steps
        self._adamw: dict[str, Any] = {
            "lr": learning_rate,
            "betas": (beta1, beta2),
            "weight_decay": weight_decay,
        }
        self._activation_checkpointing = activation_checkpointing
        self._compile = compile
        self._is_configured = False
        self.take_sizes(vocabulary=vocabulary, context=context)

    def _build(self, *, vocabulary: int, context: int) -> None:
        self.vocabulary = vocabulary
        self.context = context
        self.transformer = Transformer(
            self.shape,
            vocabulary=vocabulary,
            activation_checkpointing=self._activation_checkpointing,
        )
        names = [f"{split}/{kind}" for split in ("valid", "test") for kind in _SCORES]
        self.metrics = nn.ModuleDict({name: SumRatio() for name in names})

    def _sizes_of(self, data: Any) -> dict[str, int]:
        return {"vocabulary": data.corpus.vocabulary.size, "context": data.context}

    def configure_model(self) -> None:
        """Create what is missing, divide it where the strategy has a mesh, and compile it.

        Raises:
            ValueError: the data have more tokens, or longer windows, than the model.
        """
        super().configure_model()
        self._check_data()
        if self._is_configured:
            return
        self._is_configured = True
        mesh = self.device_mesh  # None but under ModelParallelStrategy
        if mesh is not None and mesh["tensor_parallel"].size() > 1:
            apply_tensor_parallel(self.transformer, mesh["tensor_parallel"], context=self.context)
        if self._compile:
            for block in self.transformer.blocks:
                block.compile()  # in place: the names in checkpoints stay
        if mesh is not None and mesh["data_parallel"].size() > 1:
            shard_fully(self.transformer, mesh["data_parallel"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, vocabulary) of the next token, for tokens (B, T)."""
        logits: Tensor = self.transformer(tokens)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean cross entropy of the batch's targets."""
        loss = self._losses(batch, "mean")
        # Only this rank's value: a reduction here would make all ranks wait for each other.
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.inputs))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count nats, tokens and bytes."""
        self._score(batch, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count nats, tokens and bytes."""
        self._score(batch, "test")

    def configure_optimizers(self) -> Any:
        """AdamW, with a schedule that is advanced at every step.

        Raises:
            ValueError: neither ``max_steps`` nor the Trainer says how long the run is.
        """
        decayed = [p for p in self.transformer.blocks.parameters() if p.dim() == 2]
        chosen = {id(p) for p in decayed}
        others = [p for p in self.transformer.parameters() if id(p) not in chosen]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": others, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, **self._adamw)
        steps = self._schedule_steps()
        rates = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.schedule.factor(step, steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": rates, "interval": "step"},
        }

    def _schedule_steps(self) -> int:
        steps = self.max_steps or self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ValueError(
                "the schedule needs the length of the run: set max_epochs or max_steps of the "
                "Trainer, or max_steps of the model"
            )
        return int(steps)

    def _losses(self, batch: Batch, reduction: str) -> Tensor:
        logits = self(batch.inputs).flatten(0, 1)
        # In 32 bits under mixed precision, where the sum over a large vocabulary needs them.
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return functional.cross_entropy(
            wide, batch.targets.flatten(), ignore_index=IGNORED, reduction=reduction
        )

    def _score(self, batch: Batch, split: str) -> None:
        nats = self._losses(batch, "none").double().sum()
        tokens = (batch.targets != IGNORED).sum()
        counts = {"loss": (nats, tokens)}
        if batch.bytes is not None:
            counts["bits_per_byte"] = (nats / math.log(2), batch.bytes.sum())
        for name, values in counts.items():
            metric = self.metrics[f"{split}/{name}"]
            assert isinstance(metric, Metric)
            metric.update(*values)
            self.log(f"{split}/{name}", metric, prog_bar=True, batch_size=len(batch.inputs))

    def _check_data(self) -> None:
        data = getattr(self._trainer, "datamodule", None)
        # A checkpoint that is evaluated says how its data are made, and is read after this.
        if data is None or not data.is_fitting:
            return
        for name, size in self._sizes_of(data).items():
            if size > getattr(self, name):
                raise ValueError(
                    f"{name} of the model must be at least the data's {size}, got "
                    f"{getattr(self, name)}; leave it out and it is taken from the data"
                )


_SCORES = ("loss", "bits_per_byte")
