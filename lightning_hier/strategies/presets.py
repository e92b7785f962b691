"""Presets of the Trainer: named strategies with flat arguments."""

from __future__ import annotations

from lightning_hier.strategies import preset_settings as settings
from lightning_hier.strategies.hierarchical import HierarchicalStrategy


class GTCStrategy(settings.GTCPreset, HierarchicalStrategy):
    """Gradient threshold compression in one group of all ranks (two_tiered_bmuf_gtc 2.1).

    Arguments are those of :class:`~lightning_hier.GTC` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class ModelAveragingStrategy(settings.ModelAveragingPreset, HierarchicalStrategy):
    """Model averaging, every rank a worker (bmuf with eta = 0 and zeta = 1).

    Arguments are those of :class:`~lightning_hier.ModelAveraging` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class BMUFStrategy(settings.BMUFPreset, HierarchicalStrategy):
    """Blockwise model-update filtering, every rank a worker (bmuf 2.1).

    Arguments are those of :class:`~lightning_hier.BMUF` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class BMUFAdamStrategy(settings.BMUFAdamPreset, HierarchicalStrategy):
    """BMUF for Adam, AdamW, NAdam and RAdam, every rank a worker (bmuf_adam 2.2).

    Arguments are those of :class:`~lightning_hier.BMUFAdam` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class BMUFGTCStrategy(settings.BMUFGTCPreset, HierarchicalStrategy):
    """GTC inside groups, blockwise model-update filtering across them (two_tiered_bmuf_gtc 2.3).

    Arguments are those of :class:`~lightning_hier.GTC`, :class:`~lightning_hier.BMUF` and
    :class:`~lightning_hier.HierarchicalStrategy`. N of block momentum is the number of
    groups.
    """


class DiLoCoStrategy(settings.DiLoCoPreset, HierarchicalStrategy):
    """An outer optimizer across groups, exact gradients inside them (DiLoCo).

    Arguments are those of :class:`~lightning_hier.DiLoCo` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """
