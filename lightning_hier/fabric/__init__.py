"""The door of Fabric: the strategies under the same names, for loops that ``Fabric`` runs.

``Fabric(strategy="bmuf_adam")`` needs only ``import lightning_hier``.
"""

from lightning_hier.fabric.hierarchical import HierarchicalStrategy
from lightning_hier.fabric.presets import (
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    DiLoCoStrategy,
    GTCStrategy,
    ModelAveragingStrategy,
)

__all__ = [
    "BMUFAdamStrategy",
    "BMUFGTCStrategy",
    "BMUFStrategy",
    "DiLoCoStrategy",
    "GTCStrategy",
    "HierarchicalStrategy",
    "ModelAveragingStrategy",
]
