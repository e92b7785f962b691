"""The state of all random generators that training on one rank draws from, in plain values."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """State of the generators of Python, NumPy, torch and, on CUDA, of ``device``.

    Tensors, numbers and strings only, so that it can be read with ``weights_only=True``.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "name": name,
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put all generators into ``state``, as `random_state` gave it on a device of this type."""
    python, own = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(
        (
            own["name"],
            own["keys"].numpy().astype(np.uint32),
            own["position"],
            own["has_gauss"],
            own["cached"],
        )
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
