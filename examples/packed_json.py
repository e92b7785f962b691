"""JSON values as tensors, for checkpoints that are loaded without unpickling objects."""

from __future__ import annotations

import json
import zlib
from typing import Any

import torch
from torch import Tensor


def packed(value: Any) -> Tensor:
    """Return the compressed JSON of a value, a (bytes,) tensor of uint8."""
    return torch.frombuffer(bytearray(zlib.compress(json.dumps(value).encode())), dtype=torch.uint8)


def unpacked(tensor: Tensor) -> Any:
    """Return the value of :func:`packed`."""
    return json.loads(zlib.decompress(tensor.numpy().tobytes()))
