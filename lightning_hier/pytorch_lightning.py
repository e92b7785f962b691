"""The strategies for the Trainer of ``pytorch_lightning``. The import registers the names.

``pytorch_lightning`` is the same code as ``lightning.pytorch`` under other names. A strategy here
is that of ``lightning_hier`` with the base classes of this package in the place of Lightning's.
"""

# mypy: disable-error-code="misc, no-redef"
# The packages annotate the same methods with their own classes, and classes here replace those that
# the star import brings.

from __future__ import annotations

from abc import ABCMeta

import lightning_hier.public as of_lightning
from lightning_hier.public import *  # noqa: F403 - synchronisations, which know no Lightning
from lightning_hier.public import __all__ as __all__
from lightning_hier.strategies.registry import PRESETS, register_in

try:
    from pytorch_lightning.__version__ import version
    from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, StrategyRegistry
except ModuleNotFoundError as error:
    raise ImportError(
        "lightning_hier.pytorch_lightning needs another package: pip install "
        "'pytorch-lightning>=2.6,<2.7', or import lightning_hier, which has the same strategies "
        "for lightning.pytorch"
    ) from error
if not version.startswith("2.6."):
    raise ImportError(
        f"lightning_hier needs pytorch_lightning 2.6, got {version}: pip install "
        "'pytorch-lightning>=2.6,<2.7'"
    )


class _GivenBases(ABCMeta):
    """Class of strategies that inherit from both packages: leaves out those of ``lightning``."""

    def mro(cls) -> list[type]:
        return [kind for kind in super().mro() if not kind.__module__.startswith("lightning.")]


class _ForPytorchLightning(metaclass=_GivenBases):
    package = "pytorch_lightning"


class HierarchicalStrategy(_ForPytorchLightning, of_lightning.HierarchicalStrategy, DDPStrategy):
    """See :class:`lightning_hier.HierarchicalStrategy`."""


class HierarchicalModelParallelStrategy(
    _ForPytorchLightning, of_lightning.HierarchicalModelParallelStrategy, ModelParallelStrategy
):
    """See :class:`lightning_hier.HierarchicalModelParallelStrategy`."""


class GTCStrategy(of_lightning.GTCStrategy, HierarchicalStrategy):
    """See :class:`lightning_hier.GTCStrategy`."""


class ModelAveragingStrategy(of_lightning.ModelAveragingStrategy, HierarchicalStrategy):
    """See :class:`lightning_hier.ModelAveragingStrategy`."""


class BMUFStrategy(of_lightning.BMUFStrategy, HierarchicalStrategy):
    """See :class:`lightning_hier.BMUFStrategy`."""


class BMUFAdamStrategy(of_lightning.BMUFAdamStrategy, HierarchicalStrategy):
    """See :class:`lightning_hier.BMUFAdamStrategy`."""


class BMUFGTCStrategy(of_lightning.BMUFGTCStrategy, HierarchicalStrategy):
    """See :class:`lightning_hier.BMUFGTCStrategy`."""


class DiLoCoStrategy(of_lightning.DiLoCoStrategy, HierarchicalStrategy):
    """See :class:`lightning_hier.DiLoCoStrategy`."""


class BMUFAdamFSDPStrategy(of_lightning.BMUFAdamFSDPStrategy, HierarchicalModelParallelStrategy):
    """See :class:`lightning_hier.BMUFAdamFSDPStrategy`."""


class DiLoCoFSDPStrategy(of_lightning.DiLoCoFSDPStrategy, HierarchicalModelParallelStrategy):
    """See :class:`lightning_hier.DiLoCoFSDPStrategy`."""


class TwoStageASGDStrategy(_ForPytorchLightning, of_lightning.TwoStageASGDStrategy, DDPStrategy):
    """See :class:`lightning_hier.TwoStageASGDStrategy`."""


class PSPStrategy(_ForPytorchLightning, of_lightning.PSPStrategy, DDPStrategy):
    """See :class:`lightning_hier.PSPStrategy`."""


register_in(StrategyRegistry, [globals()[preset.__name__] for preset in PRESETS.values()])
