"""Exchange of small facts before training, as JSON: nothing from the net is unpickled."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist


def gather_json(value: Any, device: torch.device) -> list[Any]:
    """Every rank's ``value`` (anything JSON can say), in order of rank.

    A collective of the world: every rank must call it.
    """
    if not dist.is_initialized():
        return [json.loads(json.dumps(value))]
    own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    world = dist.get_world_size()
    length = torch.tensor([own.numel()], device=device)
    lengths = torch.empty(world, dtype=length.dtype, device=device)
    dist.all_gather_into_tensor(lengths, length)
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8, device=device)
    padded[: own.numel()] = own
    texts = torch.empty(world * padded.numel(), dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(texts, padded)
    rows = texts.view(world, -1).cpu()
    return [
        json.loads(bytes(row[:count].tolist()))
        for row, count in zip(rows, lengths.tolist(), strict=True)
    ]


def broadcast_json(value: Any, source: int, device: torch.device) -> Any:
    """What rank ``source`` gives, on every rank: anything JSON can say, and paths, as text.

    A collective of the world: every rank must call it.

    Raises:
        TypeError: on every rank, if JSON can't say it.

    """
    said: dict[str, Any] = {}
    if not dist.is_initialized() or dist.get_rank() == source:
        try:
            said["value"] = json.loads(json.dumps(value, default=os.fspath))
        except (TypeError, ValueError) as error:
            said["problem"] = f"{type(value).__name__}: {error}"
    rows = gather_json(said, device)
    row = rows[source] if len(rows) > source else rows[0]
    if "problem" in row:
        raise TypeError(
            f"rank {source} can't broadcast what JSON can't say ({row['problem']}): nothing from "
            "the network is unpickled. Broadcast numbers, text, lists and dictionaries, and "
            "tensors by torch.distributed.broadcast"
        )
    return row["value"]


def difference(settings: Sequence[Mapping[str, Any]]) -> str | None:
    """Say in one message what the ranks do not agree on; None where they do.

    Args:
        settings: for each rank, values by name.

    """
    names = sorted({name for own in settings for name in own})
    problems = []
    for name in names:
        holders: defaultdict[str, list[int]] = defaultdict(list)
        for rank, own in enumerate(settings):
            holders[json.dumps(own.get(name), sort_keys=True)].append(rank)
        if len(holders) > 1:
            said = "; ".join(
                f"{value} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
                for value, ranks in holders.items()
            )
            problems.append(f"{name}: {said}")
    if not problems:
        return None
    return "all ranks must have the same settings, but they differ in " + " | ".join(problems)


def require_same(settings: Mapping[str, Any], device: torch.device) -> None:
    """Check that all ranks have the same settings.

    A collective of the world: every rank must call it.

    Raises:
        ValueError: on every rank, naming the settings that differ and the ranks that have them.

    """
    problem = difference(gather_json(settings, device))
    if problem is not None:
        raise ValueError(problem)


def raise_everywhere(
    problem: str | None, device: torch.device, *, error: type[Exception] = ValueError
) -> None:
    """Raise on every rank what any rank objects to, so that none is left waiting for the others.

    A collective of the world: every rank must call it, with None where it has no objection.

    Raises:
        error: ValueError, or what is asked for, naming the objections and the ranks that made them.

    """
    said: defaultdict[str, list[int]] = defaultdict(list)
    for rank, objection in enumerate(gather_json(problem, device)):
        if objection is not None:
            said[objection].append(rank)
    if not said:
        return
    if len(said) == 1:
        raise error(next(iter(said)))
    raise error(
        " | ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in said.items())
    )
