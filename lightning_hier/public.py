"""The public names of the package. Importing this module registers the strategy names."""

from lightning_hier.algorithms.block_momentum import BlockMomentum
from lightning_hier.algorithms.block_rule import QSR
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.bmuf import BMUF, ModelAveraging
from lightning_hier.comm.blocks.bmuf_adam import BMUFAdam
from lightning_hier.comm.blocks.diloco import DiLoCo
from lightning_hier.comm.blocks.health import NonFiniteModelError, OutOfStepError
from lightning_hier.comm.gradients.gradient_sync import GTC, AllReduce, CommHook, GradientSync
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.fabric.presets import register as _register_in_fabric
from lightning_hier.loop.attach import attach
from lightning_hier.loop.blocks import Blocks
from lightning_hier.loop.groups import Groups
from lightning_hier.membership.torchft import TorchFT
from lightning_hier.strategies.checkpoints.newest import newest_checkpoint
from lightning_hier.strategies.hierarchical import HierarchicalStrategy
from lightning_hier.strategies.model_parallel import HierarchicalModelParallelStrategy
from lightning_hier.strategies.presets import (
    BMUFAdamFSDPStrategy,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    DiLoCoFSDPStrategy,
    DiLoCoStrategy,
    GTCStrategy,
    ModelAveragingStrategy,
)
from lightning_hier.strategies.registry import register as _register
from lightning_hier.strategies.server_presets import PSPStrategy, TwoStageASGDStrategy
from lightning_hier.version import __version__

__all__ = [
    "BMUF",
    "GTC",
    "QSR",
    "AllReduce",
    "BMUFAdam",
    "BMUFAdamFSDPStrategy",
    "BMUFAdamStrategy",
    "BMUFGTCStrategy",
    "BMUFStrategy",
    "BlockMomentum",
    "BlockSync",
    "Blocks",
    "CommHook",
    "DiLoCo",
    "DiLoCoFSDPStrategy",
    "DiLoCoStrategy",
    "GTCStrategy",
    "GradientSync",
    "Groups",
    "HierarchicalModelParallelStrategy",
    "HierarchicalStrategy",
    "ModelAveraging",
    "ModelAveragingStrategy",
    "NonFiniteModelError",
    "OutOfStepError",
    "PSPStrategy",
    "PeerError",
    "TorchFT",
    "TwoStageASGDStrategy",
    "__version__",
    "attach",
    "newest_checkpoint",
]

_register()
_register_in_fabric()
