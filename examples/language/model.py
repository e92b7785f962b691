"""The LightningModule of the language example: loss, optimizer, learning rate, bits per byte."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric

from examples.language.parallel import apply_tensor_parallel, shard_fully
from examples.language.transformer import SizeName, Transformer, shape_of
from examples.language.windows import IGNORED, Batch
from examples.sized_by_data import SizedByData

_WARMUP_SHARE = 0.05
_DECAY_SHARE = 0.2
_FINAL_SHARE = 0.1


class LanguageModel(SizedByData):
    """A decoder-only transformer that predicts the next token, trained with AdamW.

    The model logs ``train/loss`` of this rank's batch in nats per token. Over all windows of all
    ranks, it logs ``valid/loss``, ``valid/bits_per_byte``, ``test/loss`` and
    ``test/bits_per_byte``.

    Weight decay applies to the matrices of the transformer blocks, not to the embedding and the
    norms. To clip gradients, set ``gradient_clip_val`` of the Trainer.

    With Lightning's ModelParallelStrategy, ``bmuf_adam_fsdp`` and ``diloco_fsdp``, the model is
    divided by tensor parallelism and FSDP2, with the sizes of the strategy's device mesh. Every
    process first creates the whole model in host memory.

    Args:
        vocabulary: number of tokens, at least that of the data. None: that of the data.
        context: T, maximum number of tokens of a window. None: that of the data.
        size: name of the shape: ``"tiny"``, ``"small"``, ``"gpt2"`` or ``"1b"``. The first two have
            0.2M and 3.2M parameters with 257 tokens, the others 124M and 1.0B with 50,304 tokens.
        layers, heads, width: values that replace those of ``size``.
        learning_rate: peak learning rate.
        beta1, beta2: betas of AdamW.
        weight_decay: weight decay of AdamW.
        schedule: schedule of the learning rate, which rises over the first 5% of the steps. Then it
            falls along half a cosine (``"cosine"``), or stays and falls linearly over the last 20%
            (``"constant"``), to a tenth.
        max_steps: length of the schedule in steps. None: the Trainer's number of steps.
        activation_checkpointing: whether to recompute activations in the backward pass, which
            saves memory. See :class:`~examples.language.transformer.Transformer`.
        compile: whether to apply ``torch.compile`` to each transformer block.

    Raises:
        ValueError: a value is out of range.

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
        schedule: Literal["cosine", "constant"] = "cosine",
        max_steps: int | None = None,
        activation_checkpointing: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.shape = shape_of(size, layers=layers, heads=heads, width=width)
        if schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule must be 'cosine' or 'constant', got {schedule!r}")
        self.schedule = schedule
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
        kinds = ("loss", "bits_per_byte")
        names = [f"{split}/{kind}" for split in ("valid", "test") for kind in kinds]
        self.metrics = nn.ModuleDict({name: SumRatio() for name in names})

    def _sizes_of(self, data: Any) -> dict[str, int]:
        return {"vocabulary": data.corpus.vocabulary.size, "context": data.context}

    def configure_model(self) -> None:
        """Create missing layers, divide the model over the device mesh if any, and compile it.

        Raises:
            ValueError: the data have more tokens, or longer windows, than the model.

        """
        super().configure_model()
        self._check_data()
        if self._is_configured:
            return
        self._is_configured = True
        mesh = self.device_mesh  # None except with a ModelParallelStrategy
        if mesh is not None and mesh["tensor_parallel"].size() > 1:
            apply_tensor_parallel(self.transformer, mesh["tensor_parallel"], context=self.context)
        if self._compile:
            for block in self.transformer.blocks:
                block.compile()  # in place, so that the names in checkpoints do not change
        if mesh is not None and mesh["data_parallel"].size() > 1:
            shard_fully(self.transformer, mesh["data_parallel"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, vocabulary) of the next token, for tokens (B, T)."""
        logits: Tensor = self.transformer(tokens)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean cross entropy of the targets."""
        loss = self._losses(batch, "mean")
        # Only this rank's value, because a reduction would synchronise all ranks at every step.
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.inputs))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Update the metrics of the valid split."""
        self._score(batch, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Update the metrics of the test split."""
        self._score(batch, "test")

    def configure_optimizers(self) -> Any:
        """Return AdamW and the schedule of the learning rate, which advances at every step.

        Raises:
            ValueError: neither ``max_steps`` nor the Trainer defines the length of the run.

        """
        decayed = [p for p in self.transformer.blocks.parameters() if p.dim() == 2]
        decayed_ids = {id(p) for p in decayed}
        others = [p for p in self.transformer.parameters() if id(p) not in decayed_ids]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": others, "weight_decay": 0.0},
        ]
        return self.with_schedule(torch.optim.AdamW(groups, **self._adamw))

    def with_schedule(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return an optimizer, and the schedule of its learning rate."""
        steps = self._schedule_steps()
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: rate_factor(self.schedule, step, steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
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
        # float32 under mixed precision, because the sum runs over a large vocabulary.
        if logits.dtype != torch.float64:
            logits = logits.float()
        return functional.cross_entropy(
            logits, batch.targets.flatten(), ignore_index=IGNORED, reduction=reduction
        )

    def _score(self, batch: Batch, split: str) -> None:
        nats = self._losses(batch, "none").double().sum()
        tokens = (batch.targets != IGNORED).sum()
        counts = {
            "loss": (nats, tokens),
            "bits_per_byte": (nats / math.log(2), batch.bytes.sum()),
        }
        for name, values in counts.items():
            metric = self.metrics[f"{split}/{name}"]
            assert isinstance(metric, Metric)
            metric.update(*values)
            self.log(f"{split}/{name}", metric, prog_bar=True, batch_size=len(batch.inputs))

    def _check_data(self) -> None:
        data = getattr(self._trainer, "datamodule", None)
        # In evaluation, the checkpoint defines the data, and Lightning reads it after this call.
        if data is None or not data.is_fitting:
            return
        for name, size in self._sizes_of(data).items():
            if size > getattr(self, name):
                raise ValueError(
                    f"{name} of the model must be at least the data's {size}, got "
                    f"{getattr(self, name)}; omit it to take it from the data"
                )


class SumRatio(Metric):
    """Sum of numerators divided by sum of denominators, in float64.

    Batches are weighted by their denominators. The value does not depend on the division of windows
    among batches and ranks, except for rounding.
    """

    is_differentiable = False
    full_state_update = False
    numerator: Tensor
    denominator: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("numerator", "denominator"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, numerator: Tensor, denominator: Tensor) -> None:
        """Add the sums of a batch."""
        self.numerator += numerator.to(self.numerator)
        self.denominator += denominator.to(self.denominator)

    def compute(self) -> Tensor:
        """Return the ratio, or NaN if both sums are empty."""
        return self.numerator / self.denominator


def rate_factor(schedule: str, step: int, steps: int) -> float:
    """Return the learning rate at a step, counted from 0, relative to its peak.

    Args:
        schedule: ``"cosine"`` or ``"constant"``, see :class:`LanguageModel`.
        step: step. After the end of the run, the factor is a tenth.
        steps: number of steps of the run.

    """
    warmup = round(_WARMUP_SHARE * steps)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "cosine":
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return _FINAL_SHARE + (1 - _FINAL_SHARE) * (1 + math.cos(math.pi * done)) / 2
    decay = max(1, round(_DECAY_SHARE * steps))
    left = min(1.0, max(0.0, (steps - step) / decay))
    return _FINAL_SHARE + (1 - _FINAL_SHARE) * left


def flops_per_token(model: LanguageModel) -> int:
    """Return the floating-point operations of one token: ``6 N + 12 L d T``.

    N is the number of elements of all matrices. The tied embedding counts once, for the logits. The
    second term is attention over T positions. By convention, it includes the half that a causal
    mask can skip.
    """
    shape = model.shape
    matrices = sum(p.numel() for p in model.transformer.parameters() if p.dim() == 2)
    return 6 * matrices + 12 * shape.layers * shape.width * model.context
