"""Tests that all private names of Lightning and torch are listed and exist.

Also tests the error for a missing name, and that replaced methods of the Trainer are restored.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy

import lightning_hier as lh
from lightning_hier.strategies import private_names
from lightning_hier.strategies.private_names import OF_INSTANCES, OF_MODULES, OF_TRAINER
from lightning_hier.strategies.trainer_changes import TrainerChanges
from tests.cli.shell import run_python
from tests.ranks import run_ranks
from tests.trainer.fitting import fit

PACKAGE = Path(lh.__file__).parent
# Private names of Python's standard library.
PYTHONS = {"_ArgumentGroup"}
# Arguments of the constructors. Classes that are not listed have none.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Closure": (lambda: None,),
    "CombinedLoader": ([],),
    "_DatasetSamplerWrapper": ([0],),
}
LISTED = (
    {name for path in OF_TRAINER for name in path.split(".") if name.startswith("_")}
    | {
        part
        for module, names in OF_MODULES.items()
        for name in (module, *names)
        for part in name.split(".")
    }
    | {name for names in OF_INSTANCES.values() for name in names}
)


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _own_names() -> set[str]:
    """Names that the package defines: functions, classes, and attributes of ``self``."""
    names = set()
    for _, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                names.add(node.attr)
    return names


def _foreign_names() -> Iterator[tuple[str, str]]:
    """Private names that the package uses and does not define, with their places."""
    defined = _own_names()
    for path, tree in _trees():
        for node in ast.walk(tree):
            where = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if (
                isinstance(node, ast.Attribute)
                and _is_private(node.attr)
                and node.attr not in defined
            ):
                yield node.attr, where
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
                parts = [part for name in names for part in name.split(".")]
                yield from ((part, where) for part in parts if _is_private(part))


def test_every_private_name_is_listed() -> None:
    """Without a check, training would fail when a release removes the name."""
    unlisted = {
        f"{name} ({where})" for name, where in _foreign_names() if name not in LISTED | PYTHONS
    }
    assert not unlisted, f"list them in strategies/private_names.py: {sorted(unlisted)}"


def test_every_listed_name_is_used() -> None:
    text = "\n".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if path.stem != "private_names"
    )
    assert not [name for name in LISTED if name.startswith("_") and name not in text]


@pytest.mark.parametrize("path", OF_TRAINER)
def test_trainer_has(path: str) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    holder: Any = trainer
    for name in path.split("."):
        assert hasattr(holder, name), f"Trainer.{path} is gone: {OF_TRAINER[path]}"
        holder = getattr(holder, name)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in OF_MODULES for name in OF_MODULES[module]]
)
def test_module_has(module: str, name: str) -> None:
    assert attrgetter(name)(import_module(module)) is not None, f"{module}.{name} is gone"


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner in OF_INSTANCES for name in OF_INSTANCES[owner]]
)
def test_instance_has(owner: str, name: str) -> None:
    module, _, kind = owner.rpartition(".")
    instance = getattr(import_module(module), kind)(*ARGUMENTS.get(kind, ()))
    assert hasattr(instance, name), owner


def _fit_without_a_name() -> None:
    gone = {"fit_loop.epoch_loop._renamed": "replaced: as an example"}
    private_names.OF_TRAINER = gone
    fit("bmuf")


def test_missing_name_is_one_error_before_training() -> None:
    expected = r"lack names that lightning_hier uses: Trainer\.fit_loop\.epoch_loop\._renamed"
    (error,) = run_ranks(_fit_without_a_name, 1, expect_failure=True)
    assert re.search(expected, error), error


@pytest.mark.parametrize("strategy", [lh.BMUFStrategy, lh.PSPStrategy])
def test_strategy_that_lacks_a_name_is_one_error(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = DDPStrategy.__init__

    def lacking(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        del self._ddp_kwargs

    monkeypatch.setattr(DDPStrategy, "__init__", lacking)
    with pytest.raises(ValueError, match=r"uses: DDPStrategy\._ddp_kwargs \(wraps"):
        strategy()


@pytest.mark.parametrize("owner", OF_INSTANCES)
def test_object_that_lacks_a_name_is_an_error(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, kind = owner.rpartition(".")
    instance = getattr(import_module(module), kind)(*ARGUMENTS.get(kind, ()))
    private_names.check_names(instance)
    monkeypatch.setitem(OF_INSTANCES, owner, {"_renamed": "as an example"})
    with pytest.raises(ValueError, match=rf"uses: {kind}\._renamed \(as an example\)"):
        private_names.check_names(instance)


# Removes all names before the import of the package, and restores all but one.
WITHOUT_NAMES = """\
import json, sys
from importlib import import_module

import lightning.pytorch

removed = {}
for module, names in json.loads(sys.argv[1]).items():
    for path in names:
        *parents, name = path.split(".")
        holder = import_module(module)
        for parent in parents:
            holder = getattr(holder, parent)
        removed[holder, name] = getattr(holder, name)
        delattr(holder, name)
import lightning_hier as lh
print("imported")
for (holder, name), value in removed.items():
    if name != sys.argv[2]:
        setattr(holder, name, value)
from tests.trainer.fitting import fit

try:
    fit("bmuf")
except ValueError as error:
    print(error)
"""


def test_import_needs_no_private_name_and_runs_name_what_is_missing() -> None:
    alone = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1"}
    listed = json.dumps({module: list(names_there) for module, names_there in OF_MODULES.items()})
    done = run_python("-c", WITHOUT_NAMES, listed, "_DataLoaderIterDataFetcher", **alone)
    imported, *_, error = done.stdout.splitlines() or [""] * 2
    assert imported == "imported", done.stderr
    assert "_DataLoaderIterDataFetcher" in error


REPLACED = [path for path, use in OF_TRAINER.items() if use.startswith("replaced")]


@pytest.fixture
def trainer() -> Any:
    return pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)


def test_all_changes_are_undone(trainer: Any) -> None:
    before, callbacks = _methods(trainer), list(trainer.callbacks)
    changes = TrainerChanges(trainer)
    for path in REPLACED:
        changes.replace(path, lambda method: method)
    changes.surround_callbacks([Callback()], [Callback()])
    assert not any(new == old for new, old in zip(_methods(trainer), before, strict=True))
    assert trainer.callbacks[1:-1] == callbacks
    changes.close()
    assert _methods(trainer) == before
    assert trainer.callbacks == callbacks


@pytest.mark.parametrize(
    ("path", "error"), [("fit_loop.run", KeyError), ("fit_loop._combined_loader", ValueError)]
)
def test_other_methods_are_refused(trainer: Any, path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        TrainerChanges(trainer).replace(path, lambda method: method)


def _methods(trainer: Any) -> list[Any]:
    methods = []
    for path in REPLACED:
        holder = trainer
        for name in path.split("."):
            holder = getattr(holder, name)
        methods.append(holder)
    return methods
