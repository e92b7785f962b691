"""Generated text for TensorBoard, after each validation."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from examples.language.model import LanguageModel


class TextSamples(Callback):
    """Log text that the model continues by itself as ``valid/samples``.

    Only global rank 0 generates, and nothing is sent, so that a model divided by tensor parallelism
    or FSDP2, which needs all ranks for a token, gives no samples. The draws come from a generator
    of their own: training draws what it would draw without samples. Loggers without ``add_text``
    on their experiment get nothing.

    Args:
        prompts: texts to continue; an empty one begins a document.
        tokens: generated after each prompt.
        temperature: logits are divided by it.
        seed: of the draws, the same after each validation.

    Raises:
        ValueError: no prompts, or a number out of range.
    """

    def __init__(
        self,
        *,
        prompts: tuple[str, ...] = ("", "def ", "import "),
        tokens: int = 200,
        temperature: float = 0.8,
        seed: int = 0,
    ) -> None:
        if not prompts or tokens < 1 or temperature <= 0:
            raise ValueError(
                "prompts must not be empty, tokens at least 1 and temperature above 0, got "
                f"{prompts!r}, {tokens} and {temperature}"
            )
        self.prompts = tuple(prompts)
        self.tokens = tokens
        self.temperature = temperature
        self.seed = seed

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate and log."""
        assert isinstance(pl_module, LanguageModel)
        experiments = _experiments(trainer)
        divided = pl_module.device_mesh is not None
        if trainer.sanity_checking or divided or not trainer.is_global_zero or not experiments:
            return
        vocabulary = trainer.datamodule.corpus.vocabulary  # type: ignore[attr-defined]
        texts = []
        for prompt in self.prompts:
            start = [vocabulary.end, *(vocabulary.encode(prompt).tolist() if prompt else ())]
            made = generate(
                pl_module,
                torch.tensor(start, device=pl_module.device),
                tokens=self.tokens,
                temperature=self.temperature,
                seed=self.seed,
            )
            texts.append(prompt + vocabulary.decode(made.tolist()))
        for experiment in experiments:
            experiment.add_text("valid/samples", _as_markdown(texts), trainer.global_step)


@torch.no_grad()
def generate(
    model: LanguageModel, start: Tensor, *, tokens: int, temperature: float, seed: int
) -> Tensor:
    """Draw tokens (N,) one by one, each given the last ``model.context`` before it.

    The module's mode is left as it is, and so is PyTorch's global random state.

    Args:
        model: on the device of ``start``.
        start: (M,) tokens, at least one.
        tokens: N.
        temperature: logits are divided by it.
        seed: of the draws.
    """
    # On the CPU, so that the draws are the same on every device.
    generator = torch.Generator().manual_seed(seed)
    known = start.clone()
    for _ in range(tokens):
        logits = model(known[None, -model.context :])[0, -1].float().cpu()
        chances = torch.softmax(logits / temperature, dim=0)
        drawn = torch.multinomial(chances, 1, generator=generator)
        known = torch.cat([known, drawn.to(known.device)])
    return known[len(start) :]


def _experiments(trainer: Trainer) -> list[Any]:
    experiments = (getattr(logger, "experiment", None) for logger in trainer.loggers)
    return [each for each in experiments if callable(getattr(each, "add_text", None))]


def _as_markdown(texts: list[str]) -> str:
    """Blocks of code, since TensorBoard reads Markdown: every line is indented by four spaces."""
    blocks = ("\n".join(f"    {line}" for line in text.splitlines() or [""]) for text in texts)
    return "\n\n---\n\n".join(blocks)
