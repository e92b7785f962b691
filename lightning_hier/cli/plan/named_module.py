"""Counts the parameters of a module that is named on a command line."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from lightning_hier.cli.commands import INSTALL
from lightning_hier.cli.module_size import ModuleSize, size_of


def module_size(name: str) -> ModuleSize:
    """Make the module and count.

    Args:
        name: ``pkg.Class`` of a class that needs no arguments, or a YAML file of the command line
            with an entry ``model``.

    Raises:
        ValueError: it can't be made, or has nothing to train.
        OSError: the file can't be read.

    """
    module = _from_file(Path(name)) if name.endswith((".yaml", ".yml")) else _from_class(name)
    found = size_of(module)
    if not found.parameters and hasattr(module, "configure_model"):
        module.configure_model()
        found = size_of(module)
    if not found.parameters:
        raise ValueError(
            f"{name} has no trainable parameters before it has seen its data: say --parameters"
        )
    return found


def _from_class(name: str) -> Any:
    place, _, kind = name.rpartition(".")
    if not place:
        raise ValueError(f"--module must be pkg.Class or a YAML file, got {name!r}")
    try:
        found = getattr(import_module(place), kind)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--module {name}: {error}") from error
    try:
        return found()
    except TypeError as error:
        raise ValueError(
            f"--module {name} can't be made without arguments ({error}): name a YAML file with an "
            "entry 'model', or say --parameters"
        ) from error


def _from_file(file: Path) -> Any:
    try:
        import yaml
        from jsonargparse import ArgumentParser
        from torch.nn import Module
    except ImportError as error:
        raise ValueError(f"reading {file} needs jsonargparse: {INSTALL}") from error
    found = yaml.safe_load(file.read_text())
    if not isinstance(found, dict) or "model" not in found:
        raise ValueError(f"{file} has no entry 'model'")
    reader = ArgumentParser(exit_on_error=False)
    reader.add_subclass_arguments(Module, "model")
    # Its name until jsonargparse 4.49.
    make = getattr(reader, "instantiate", None) or reader.instantiate_classes
    try:
        return make(reader.parse_object({"model": found["model"]})).model
    except Exception as error:
        raise ValueError(f"{file}: its model can't be made: {error}") from error
