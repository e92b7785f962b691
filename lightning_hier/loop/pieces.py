"""Values of a state whose parts lie on several ranks, for ``torch.distributed.checkpoint``.

Its own kinds of tensors need a global size that is equal when a state is saved and loaded. The
number of ranks may differ between both, and the state of a rank has any length. These values write
what a rank has, and read what there is.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_hier.loop.outer_state import Place

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

# Bytes of one piece of a row that is saved, and of the first one that is read.
_PIECE = 4 << 20
# Each piece that is read is twice as long as the one before: they hold 256 GiB.
_READ = [_PIECE << number for number in range(16)]
# Bytes in front of a row that contain its length.
_HEADER = 8


class _AnySize(list[int]):
    """A size that equals every other, for the comparison of a value with that of a file."""

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = None


class _Part(Tensor):
    """A tensor without elements, whose attributes have the values. DCP takes tensors only."""

    @staticmethod
    def __new__(cls, *_: Any, **__: Any) -> Any:
        """An empty tensor."""
        return torch.empty(0, dtype=torch.uint8).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep the attributes in a copy, as of ``dcp.async_save``. The values do not change."""
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if isinstance(result, cls) and isinstance(args[0], cls):
            result.__dict__.update(args[0].__dict__)
        return result


class Row(_Part):
    """State of any type as a row of bytes, of which each rank reads its own.

    Args:
        number: number of the row that this rank writes and reads.
        rows: number of rows.
        state: state that is saved, or None if another rank writes it.
        length: length of the rows in bytes, the same on all ranks.

    """

    def __init__(self, number: int, rows: int, state: Tensor | None, length: int) -> None:
        super().__init__()
        self._number, self._rows, self._length = number, rows, length
        self._state = state
        self._read: dict[int, Tensor] | None = None

    def size(self, *_: Any) -> Any:
        """A size that equals that of every file, whose number and length of rows may differ."""
        return _AnySize([0])

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        """Items that save this rank's row."""
        if self._state is None:
            return []
        sizes = [min(_PIECE, self._length - start) for start in range(0, self._length, _PIECE)]
        whole, number = (self._rows, self._length), self._number
        return [
            _written(name, self._state, whole, (number, piece * _PIECE), (1, size))
            for piece, size in enumerate(sizes)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """The places of all pieces that this rank's row may have."""
        self._read = {}
        return [_chunk((self._number, size - _PIECE), (1, size)) for size in _READ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        """The piece at ``index`` to save, or memory for one that is loaded."""
        assert index.offset is not None
        start = index.offset[1]
        if self._read is not None:
            if start not in self._read:
                self._read[start] = torch.zeros(1, start + _PIECE, dtype=torch.uint8)
            return self._read[start]
        assert self._state is not None
        return self._state[start : start + _PIECE].unsqueeze(0)

    def loaded(self) -> Any:
        """The state that was read, or None if the saved run has no such row."""
        if not self._read:
            return None
        return from_bytes(torch.cat([piece[0] for _, piece in sorted(self._read.items())]))


class PartOfTensor(_Part):
    """The part of a tensor that a rank has.

    Args:
        place: shape of the tensor, first element of the part in each dimension, and its shape.
        values: the part, perhaps empty, of which a copy is saved.
        reads_all: whether the rank reads the whole tensor when it is loaded, otherwise its part.

    """

    def __init__(self, place: Place, values: Tensor, *, reads_all: bool) -> None:
        super().__init__()
        self._whole, self._start, _ = place
        self._own = values.clone()
        self._reads_all = reads_all
        self._read: Tensor | None = None

    def size(self, *_: Any) -> Any:
        """The size of the whole tensor."""
        return torch.Size(self._whole)

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        """The item that saves the part."""
        if not self._own.numel() and 0 not in self._whole:
            return []
        return [_written(name, self._own, self._whole, self._start, self._own.shape)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """The place of the elements to read."""
        sizes = self._whole if self._reads_all else self._own.shape
        self._read = torch.zeros(sizes, dtype=self._own.dtype)
        return [_chunk([0] * len(sizes) if self._reads_all else self._start, sizes)]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        """The part to save, or memory for the elements that are loaded."""
        return self._own if self._read is None else self._read

    def loaded(self) -> Tensor:
        """The elements, flat, after they were read."""
        assert self._read is not None, "the state has not been loaded"
        return self._read.reshape(-1)


def plain_numbers(value: Any) -> Any:
    """Replace NumPy numbers, which weights_only=True does not load, by Python numbers.

    Dictionaries, lists and tuples that contain them are copied. Nothing is changed in place.
    """
    if isinstance(value, np.generic):
        return value.item()
    # Not isinstance: a named tuple has another constructor, and a subclass of list may have state.
    if type(value) in (list, tuple):
        plain = [plain_numbers(entry) for entry in value]
        changed = any(new is not old for new, old in zip(plain, value, strict=True))
        return type(value)(plain) if changed else value
    if isinstance(value, dict):
        numbers = {key: plain_numbers(entry) for key, entry in value.items()}
        if any(numbers[key] is not entry for key, entry in value.items()):
            changed_dict = value.copy()  # keeps the type of the dictionary
            changed_dict.update(numbers)
            return changed_dict
    return value


def as_bytes(state: Any) -> Tensor:
    """A state as bytes, in front of which is their number."""
    content = io.BytesIO()
    torch.save(plain_numbers(state), content)
    size = torch.tensor([content.tell()]).view(torch.uint8)
    return torch.cat([size, torch.frombuffer(content.getbuffer(), dtype=torch.uint8)])


def from_bytes(row: Tensor) -> Any:
    """The state of :func:`as_bytes`, on the CPU. Zeros may be behind it."""
    size = int(row[:_HEADER].view(torch.int64))
    content = io.BytesIO(row[_HEADER : _HEADER + size].numpy().tobytes())
    # Not where it was: the GPU of the rank that has saved it may be that of another rank here.
    return torch.load(content, map_location="cpu", weights_only=True)


def padded(content: Tensor | None, length: int) -> Tensor | None:
    """Bytes with zeros behind them, up to ``length``."""
    if content is None:
        return None
    return torch.nn.functional.pad(content, (0, length - len(content)))


def _chunk(at: Sequence[int], sizes: Sequence[int]) -> ChunkStorageMetadata:
    # Imported here and below, because importing it takes long.
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return ChunkStorageMetadata(torch.Size(at), torch.Size(sizes))


def _written(
    name: str, tensor: Tensor, whole: Sequence[int], at: Sequence[int], sizes: Sequence[int]
) -> WriteItem:
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    return WriteItem(
        MetadataIndex(name, torch.Size(at)),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=_chunk(at, sizes),
            properties=TensorProperties.create_from_tensor(tensor),
            size=torch.Size(whole),
        ),
    )
