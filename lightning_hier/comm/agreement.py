"""Exchange of small values as JSON, so that nothing from the network is unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.distributed as dist

from lightning_hier.comm.channel import gather_rows
from lightning_hier.comm.progress_record import (
    DifferentCollectivesError,
    named_ranks,
    progress_record,
    ranks_by_value,
)

# By `type(...)`, because a subclass, such as an enum or a float of NumPy, would lose its type.
_EXACT = (type(None), bool, int, float, str)
# Elements of the first message, whose mark shows that all ranks are at the same place. It is as
# long as a health report, the other message with which ranks meet: gloo ends a process whose
# message is longer than expected, before any error could name the ranks.
_HEADER = 8
# Maximum number of differences that an error names.
_MOST_NAMED = 6


def gather_json(
    value: Any, device: torch.device, *, place: str = "the comparison of settings before training"
) -> list[Any]:
    """The ``value`` of every rank, in order of rank. JSON must be able to represent it.

    A collective of the world: every rank must call it.

    Args:
        value: value of this rank.
        device: device of collectives.
        place: name of the exchange in errors.

    Raises:
        PeerError: a rank did not take part within the time limit; names it.

    """
    text = json.dumps(value).encode()
    if not dist.is_initialized():
        # Through JSON as well, so that one process gets lists for tuples, too.
        return [json.loads(text)]
    with progress_record().at(place):
        # Lengths first, because gloo gathers tensors of equal length only.
        mark = zlib.crc32(place.encode())
        header = torch.zeros(_HEADER, dtype=torch.int64)
        header[0], header[1] = mark, len(text)
        marks, lengths = _gather(header, device).T[:2].tolist()
        if set(marks) != {mark}:
            raise DifferentCollectivesError(f"{place} got data of another collective")
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        rows = _gather(padded, device).numpy()
    return [json.loads(row[:count].tobytes()) for row, count in zip(rows, lengths, strict=True)]


def _gather(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The 1-D tensors of all ranks as rows, in order of rank, in host memory."""
    # Not by a channel: settings are compared before there are any.
    world: Any = dist.group.WORLD
    return gather_rows(values.to(device), world).cpu()


def _gather_where_different(settings: Any, device: torch.device) -> list[Any] | None:
    """The settings of every rank, or None if they are equal: then only hashes are exchanged."""
    # Keys are sorted, because ranks may have added them in different orders.
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    # All ranks have all digests, so they take the same branch.
    place = "the comparison of settings"
    if len(set(gather_json(digest, device, place=place))) == 1:
        return None
    return gather_json(settings, device, place=place)


def broadcast_json(value: Any, source: int, device: torch.device) -> Any:
    """The value of rank ``source`` on every rank, unchanged except that paths become text.

    A collective of the world: every rank must call it.

    Raises:
        TypeError: on every rank, if JSON cannot represent it exactly.
        PeerError: a rank did not take part within the time limit; names it.

    """
    message: dict[str, Any] = {}
    if not dist.is_initialized() or dist.get_rank() == source:
        try:
            message["value"] = _exact(value, "")
        except TypeError as error:
            message["problem"] = str(error)
    rows = gather_json(message, device, place="a broadcast")
    message = rows[source if len(rows) > source else 0]
    if "problem" in message:
        raise TypeError(
            f"rank {source} can't broadcast a value that JSON can't represent exactly "
            f"({message['problem']}): values are sent as JSON and not as pickles. Broadcast None, "
            "bool, int, float, str, and lists and dictionaries of these with text as keys: use "
            "list(...) for a tuple or set, .item() for a scalar, .tolist() for an array, and "
            "torch.distributed.broadcast for tensors"
        )
    return message["value"]


def _exact(value: Any, where: str) -> Any:
    """Return the value if JSON represents it exactly. Paths become text."""
    if type(value) in _EXACT:
        return value
    if isinstance(value, os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    if type(value) is list:
        return [_exact(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(_named(key, f"a key{where and f' of {where}'}"))
        return {key: _exact(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise TypeError(_named(value, where))


def _named(value: Any, where: str) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return f"{type(value).__name__}: {shown}{where and f' at {where}'}"


def list_difference(lists: Sequence[Sequence[str]]) -> str | None:
    """Message about entries that not all ranks list, or list at other positions; None if equal.

    Args:
        lists: for each rank, distinct entries in order.

    """
    different = []
    # By position, so that the entries of different ranks for one thing follow each other.
    for entry in dict.fromkeys(chain.from_iterable(zip_longest(*lists))):
        holders = [rank for rank, entries in enumerate(lists) if entry in entries]
        if entry is not None and len(holders) < len(lists):
            different.append(f"{entry} only on {named_ranks(holders)}")
    if different:
        omitted = len(different) - _MOST_NAMED
        more = f"; and {omitted} more" if omitted > 0 else ""
        return "; ".join(different[:_MOST_NAMED]) + more
    for position, entries in enumerate(zip(*lists, strict=True)):
        ranks = ranks_by_value(entries)
        if len(ranks) > 1:
            texts = (f"{entry} on {named_ranks(numbers)}" for entry, numbers in ranks.items())
            return f"position {position} is {'; '.join(texts)}"
    return None


def require_same_list(
    entries: Sequence[str], device: torch.device, rule: str, way_out: str
) -> None:
    """Check that all ranks list the same distinct ``entries`` in the same order.

    A collective of the world: every rank must call it.

    Args:
        entries: entries of this rank.
        device: device of collectives.
        rule: begins the error.
        way_out: ends the error.

    Raises:
        ValueError: on every rank, naming the entries that differ and the ranks that have them.

    """
    lists = _gather_where_different(entries, device)
    if lists is not None:
        raise ValueError(f"{rule}, but ranks differ: {list_difference(lists)}. {way_out}")


def require_same(settings: Mapping[str, Any], device: torch.device) -> None:
    """Check that all ranks have the same settings.

    A collective of the world: every rank must call it.

    Raises:
        ValueError: on every rank, naming the settings that differ and the ranks that have them.

    """
    of_ranks = _gather_where_different(settings, device) or []
    problems = []
    for name in sorted({name for values in of_ranks for name in values}):
        texts = (json.dumps(values.get(name), sort_keys=True) for values in of_ranks)
        holders = ranks_by_value(texts)
        if len(holders) > 1:
            named = (f"{value} on {named_ranks(ranks)}" for value, ranks in holders.items())
            problems.append(f"{name}: {'; '.join(named)}")
    if problems:
        raise ValueError(
            "all ranks must have the same settings, but they differ in " + " | ".join(problems)
        )


@contextmanager
def raise_everywhere(
    device: torch.device,
    *,
    error: type[Exception] = ValueError,
    place: str = "a check of all ranks",
) -> Iterator[None]:
    """Run checks of this rank. If a check fails on any rank, raise its error on every rank.

    A collective of the world: every rank must enter it. The checks inside must not communicate.

    Args:
        device: device of collectives.
        error: type of the error that a check raises. Other exceptions are raised immediately, on
            this rank only.
        place: name of the exchange in errors.

    Raises:
        error: names the problems, and their ranks if they differ.

    """
    failed = None
    try:
        yield
    except error as caught:
        failed = caught
    # A rank without a problem takes part as well: the others wait for it here.
    problems = ranks_by_value(gather_json(failed and str(failed), device, place=place))
    problems.pop(None, None)
    if len(problems) == 1:
        raise error(next(iter(problems))) from failed
    if problems:
        named = (f"{named_ranks(ranks)}: {text}" for text, ranks in problems.items())
        raise error(" | ".join(named)) from failed
