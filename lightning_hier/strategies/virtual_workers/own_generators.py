"""Copies of samplers and loaders that draw from random generators of their own."""

from __future__ import annotations

import random
from copy import copy, deepcopy
from typing import TypeVar

import numpy as np
import torch

_Thing = TypeVar("_Thing")


class OwnGenerators:
    """Gives what it copies other generators in the same state; what shared one shares its copy."""

    def __init__(self) -> None:
        self._copies: dict[int, object] = {}

    def copied(self, thing: _Thing) -> _Thing:
        """A shallow copy, but for the generators among its attributes."""
        made = copy(thing)
        for name, value in list(getattr(made, "__dict__", {}).items()):
            made.__dict__[name] = self._of(value)
        return made

    def _of(self, value: object) -> object:
        if isinstance(value, torch.Generator):
            other = torch.Generator(value.device)
            other.set_state(value.get_state())
            return self._copies.setdefault(id(value), other)
        if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
            return self._copies.setdefault(id(value), deepcopy(value))
        return value
