"""Compares the mean of B times the mean of A with the mean of B A, for adapters of peft."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import functional_call

import lightning_hier
from examples.recipes.lora import texts


class ProductsStrategy(lightning_hier.ModelAveragingStrategy):
    """Model averaging that measures the local models a step before each block's end.

    Attributes:
        gaps: for each block, the relative distance of the two means, and the losses of both.

    """

    def __init__(self, block_size: int, warmup_steps: int) -> None:
        super().__init__(block_size=block_size, warmup_steps=warmup_steps)
        self.block, self.steps, self.gaps = block_size, -warmup_steps, list[list[float]]()

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Step, and measure, with collectives of all ranks."""
        result = super().optimizer_step(*args, **kwargs)
        self.steps += 1
        if self.steps > 0 and self.steps % self.block == self.block - 1:
            module = self.lightning_module
            assert module is not None
            self.gaps.append(_gap(module.model.eval()))
            module.model.train()
        return result


@torch.no_grad()
def _gap(model: Any) -> list[float]:
    batch = texts(256, 2, factor=11)
    adapters = {n: _mean(p) for n, p in model.named_parameters() if "lora_" in n}
    of_products = {n: p for n, p in model.named_parameters() if "lora_" not in n}
    distance = size = 0.0
    for name, layer in model.named_modules():
        if not hasattr(layer, "lora_A") or not hasattr(layer, "get_delta_weight"):
            continue
        product = _mean(layer.get_delta_weight("default"))
        a, b = (adapters[f"{name}.lora_{matrix}.default.weight"] for matrix in "AB")
        of_means = layer.scaling["default"] * (b @ a).T  # a Conv1D has transposed weights
        distance += float((product - of_means).square().sum())
        size += float(product.square().sum())
        of_products[f"{name}.base_layer.weight"] = layer.base_layer.weight + product
        of_products[f"{name}.lora_B.default.weight"] = torch.zeros_like(b)
    inputs = {"input_ids": batch, "labels": batch}
    losses = [functional_call(model, m, (), inputs).loss for m in (adapters, of_products)]
    return [(distance / size) ** 0.5, *map(float, losses)]


def _mean(tensor: Tensor) -> Tensor:
    result = tensor.detach().clone()
    dist.all_reduce(result)
    return result / dist.get_world_size()
