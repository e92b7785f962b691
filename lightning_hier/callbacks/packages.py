"""Lightning's classes in both of its packages: ``lightning.pytorch`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

_T = TypeVar("_T")
# Where each package's strategies are imported from.
_DOORS = (
    ("lightning.pytorch", "lightning_hier"),
    ("pytorch_lightning", "lightning_hier.pytorch_lightning"),
)


def both(kind: type[_T]) -> tuple[type[_T], ...]:
    """A class of ``lightning``, and that of ``pytorch_lightning`` if the process has imported it.

    The packages have the same code, but a callback, plugin or logger of one is no instance of the
    class of the other. Use it as in ``isinstance(callback, both(ModelCheckpoint))``.
    """
    name = kind.__module__.replace("lightning.pytorch", "pytorch_lightning", 1)
    # Without an import: a process that has not imported the module has no instance of its classes.
    module = sys.modules.get(name.replace("lightning.fabric", "lightning_fabric", 1))
    return (kind, getattr(module, kind.__name__, kind))


def described_package(strategy: Any) -> str:
    """Name of a strategy, the package whose Trainer takes it, and where the other one's is."""
    ((package, door),) = (other for other in _DOORS if other[0] != strategy.package)
    return (
        f"<{type(strategy).__name__} for the Trainer of {strategy.package}: import it from "
        f"{door} for that of {package}, and from lightning_hier.fabric for Fabric>"
    )


def check_package(strategy: Any) -> None:
    """Raise TypeError if the Trainer is not that of the strategy's package.

    The Trainer of ``pytorch_lightning`` refuses strategies of ``lightning.pytorch`` itself.
    """
    # The Trainer has made its accelerator, or has checked that of the user.
    kinds = type(strategy.accelerator).__mro__
    if not any(kind.__module__.startswith(f"{strategy.package}.") for kind in kinds):
        raise TypeError(f"this Trainer can't use strategy={strategy!r}")
