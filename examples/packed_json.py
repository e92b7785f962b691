"""What JSON can hold, as a tensor: small in a checkpoint, and read without unpickling objects."""

from __future__ import annotations

import json
import zlib
from typing import Any

import torch
from torch import Tensor


def packed(value: Any) -> Tensor:
    """Compress the value's JSON to (bytes,) uint8."""
    return torch.frombuffer(bytearray(zlib.compress(json.dumps(value).encode())), dtype=torch.uint8)


def unpacked(tensor: Tensor) -> Any:
    """The inverse of :func:`packed`."""
    return json.loads(zlib.decompress(tensor.numpy().tobytes()))
