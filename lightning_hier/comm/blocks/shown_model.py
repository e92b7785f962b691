"""The local model while the module holds the global one, and what hooks write into that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from lightning_hier.algorithms.fingerprint import fingerprints
from lightning_hier.comm.blocks.aside import Aside


class ShownModel(Aside):
    """Saves local values, and tells by fingerprints which tensors have been written since.

    Counters of writes would not do: ``tensor.data`` has a counter of its own, and a callback that
    writes another model and then the global one back has changed nothing.
    """

    def __init__(self) -> None:
        """Nothing is saved."""
        super().__init__()
        self._shown: dict[Tensor, int] = {}

    def note_shown(self, tensors: Iterable[Tensor] = ()) -> None:
        """Take fingerprints of what is saved, and of other ``tensors``, as they are now."""
        noted = list(dict.fromkeys([*self._saved, *tensors]))
        self._shown = dict(zip(noted, fingerprints(noted), strict=True))

    @contextmanager
    def behind(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Keep the module's present values in place; what is written meanwhile is saved."""
        shown = {tensor: tensor.detach().clone() for tensor in tensors}
        yield
        self.put(shown)
        for tensor, value in shown.items():
            tensor.detach().copy_(value)
        self.note_shown()

    def written(self) -> list[Tensor]:
        """Those tensors whose bits have changed since :meth:`note_shown`."""
        now = fingerprints(list(self._shown))
        pairs = zip(self._shown.items(), now, strict=True)
        return [own for (own, before), after in pairs if before != after]

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Have tensors keep what they hold now; their saved values are dropped."""
        for tensor in tensors:
            self._saved.pop(tensor, None)
            self._shown.pop(tensor, None)

    def keep_all(self) -> None:
        """Have the module keep all that it holds; it still counts as shown."""
        self._saved, self._shown = {}, {}

    def forget(self) -> None:
        """Drop all values."""
        super().forget()
        self._shown = {}
