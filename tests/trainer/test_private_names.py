"""Tests that docs/compatibility.md lists the private names of Lightning and torch, which exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch.distributed as dist
from torch import nn

import lightning_hier as lh
from lightning_hier.strategies.trainer_changes import REPLACED
from tests.conftest import REPOSITORY

PACKAGE = Path(lh.__file__).parent
PAGE = (REPOSITORY / "docs" / "compatibility.md").read_text()
# Use of each name, by its path below the Trainer, a module or a class.
USES = dict(re.findall(r"^\| `((?:Trainer|lightning|torch)\.\S+)` \| (.+) \|$", PAGE, re.M))
LISTED = {part for path in USES for part in path.split(".")}
# Private names of Python's standard library.
PYTHONS = {"_ArgumentGroup"}
# Arguments of the constructors. Classes that are not listed have none.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Closure": (lambda: None,),
    "CombinedLoader": ([],),
    "_DatasetSamplerWrapper": ([0],),
    "DistributedDataParallel": (nn.Linear(1, 1),),
}


@cache
def _nodes() -> list[tuple[Path, ast.AST]]:
    """All nodes of the sources, with their files."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path, node) for path in paths for node in ast.walk(ast.parse(path.read_text()))]


def _own_names() -> set[str]:
    """Names that the package defines: functions, classes, and attributes that it assigns."""
    names = set()
    for _, node in _nodes():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
    return names


def _foreign_names() -> Iterator[tuple[str, str]]:
    """Private names that the package uses and does not define, with their places."""
    defined = _own_names()
    for place, node in _nodes():
        names = []
        if isinstance(node, ast.Attribute) and node.attr not in defined:
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            parts = [node.module or "", *(alias.name for alias in node.names)]
            names = [name for part in parts for name in part.split(".")]
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name != "_":
                yield name, f"{place}:{getattr(node, 'lineno', 0)}"


def test_every_private_name_is_listed() -> None:
    """With the list, a new release of Lightning or torch is checked in one place."""
    unlisted = {
        f"{name} ({where})" for name, where in _foreign_names() if name not in LISTED | PYTHONS
    }
    assert not unlisted, f"list them in docs/compatibility.md: {sorted(unlisted)}"


def test_every_replaced_method_and_every_listed_name_is_used() -> None:
    listed = {path for path, use in USES.items() if use.startswith("replaced")}
    assert listed == {f"Trainer.{path}" for path in REPLACED}
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert not [path for path in USES if path.split(".")[-1] not in text]


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one rank, which DDP needs. A Trainer in this process may have left one."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_listed_names_exist() -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert not [path for path in USES if not _exists(path, trainer)]


def _exists(path: str, trainer: Any) -> bool:
    holder, names = trainer, path.split(".")[1:]
    if not path.startswith("Trainer."):
        holder = import_module(path.split(".")[0])
        while names and (module := _module(f"{holder.__name__}.{names[0]}")):
            holder, names = module, names[1:]
    for name in names:
        if isinstance(holder, type) and not hasattr(holder, name):  # an attribute of its objects
            holder = holder(*ARGUMENTS.get(holder.__name__, ()))
        if not hasattr(holder, name):
            return False
        holder = getattr(holder, name)
    return True


def _module(path: str) -> Any:
    try:
        return import_module(path)
    except ImportError:
        return None
