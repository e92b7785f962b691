"""The transformer of the language example for a stack of models with different weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from examples.language.stacked.settings import CONTEXT, SHAPE, VOCABULARY
from examples.language.transformer import Transformer, rotary_angles, rotate


class StackedTransformer:
    """M models of the same shape, whose weights are the rows of one matrix (M, P).

    Args:
        dtype: dtype of the weights.

    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self._shapes = {
            name: parameter.shape for name, parameter in _transformer().named_parameters()
        }
        self.sizes = [shape.numel() for shape in self._shapes.values()]
        """Number of elements of each parameter, in the order of a row."""
        self._angles = rotary_angles(CONTEXT, SHAPE.head_width, torch.device("cpu"), dtype)
        matrices = [
            float(name.startswith("blocks.") and len(shape) == 2)
            for name, shape in self._shapes.items()
        ]
        self.decayed = torch.repeat_interleave(torch.tensor(matrices), torch.tensor(self.sizes))
        """(P,): 1 for the matrices of the blocks, to which weight decay applies, otherwise 0."""
        self.decayed = self.decayed.to(dtype)

    def losses(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropies (M,) of weights (M, P) on tokens (M, B, T)."""
        models = len(weights)
        slices = zip(self._shapes.items(), weights.split(self.sizes, dim=1), strict=True)
        parameters = {name: values.view(models, *shape) for (name, shape), values in slices}
        embedding = parameters["embedding.weight"]
        hidden = embedding[torch.arange(models).unsqueeze(1), inputs.reshape(models, -1)]
        for layer in range(SHAPE.layers):
            prefix = f"blocks.{layer}."
            block = {
                name.removeprefix(prefix): parameter
                for name, parameter in parameters.items()
                if name.startswith(prefix)
            }
            hidden = hidden + self._attention(_norm(hidden, block["attention_norm.weight"]), block)
            hidden = hidden + _feed_forward(_norm(hidden, block["feed_forward_norm.weight"]), block)
        logits = _apply(_norm(hidden, parameters["norm.weight"]), embedding)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), targets.reshape(-1), reduction="none"
        )
        return losses.view(models, -1).mean(1)

    def _attention(self, hidden: Tensor, block: dict[str, Tensor]) -> Tensor:
        projected = _apply(hidden, block["attention.query_key_value.weight"])
        by_head = projected.view(-1, CONTEXT, SHAPE.heads, 3, SHAPE.head_width).transpose(1, 2)
        query, key, value = by_head.unbind(3)
        attended = functional.scaled_dot_product_attention(
            rotate(query, *self._angles), rotate(key, *self._angles), value, is_causal=True
        )
        concatenated = attended.transpose(1, 2).reshape(hidden.shape)
        return _apply(concatenated, block["attention.output.weight"])


def initial_weights(seed: int) -> Tensor:
    """Return the initial weights of one model as a row (P,)."""
    torch.manual_seed(seed)
    return flat(_transformer())


def flat(transformer: Transformer) -> Tensor:
    """Return the weights of a transformer as a row (P,)."""
    return torch.cat([parameter.detach().flatten() for parameter in transformer.parameters()])


def _transformer() -> Transformer:
    return Transformer(SHAPE, vocabulary=VOCABULARY)


def _feed_forward(hidden: Tensor, block: dict[str, Tensor]) -> Tensor:
    gate = functional.silu(_apply(hidden, block["feed_forward.gate.weight"]))
    return _apply(
        gate * _apply(hidden, block["feed_forward.up.weight"]), block["feed_forward.down.weight"]
    )


def _apply(hidden: Tensor, matrix: Tensor) -> Tensor:
    return torch.bmm(hidden, matrix.transpose(1, 2))


def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(hidden, (SHAPE.width,)) * weight.unsqueeze(1)
