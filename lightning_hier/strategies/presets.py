"""Presets: named strategies with flat arguments, which are those of their components."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from lightning_hier.comm.blocks.bmuf import BMUF
from lightning_hier.comm.blocks.bmuf_adam import BMUFAdam
from lightning_hier.comm.blocks.diloco import DiLoCo
from lightning_hier.comm.blocks.model_averaging import ModelAveraging
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.tiers import GroupSize
from lightning_hier.strategies.hierarchical import HierarchicalStrategy
from lightning_hier.strategies.model_parallel import HierarchicalModelParallelStrategy

_GTC = ("threshold", "density", "dense_below")
_MODEL_AVERAGING = ("block_size", "local_momentum")
_BMUF = (
    *("block_size", "block_momentum", "block_lr", "nesterov", "local_momentum"),
    *("c", "update_from"),
)
_BMUF_ADAM = (
    *("block_size", "block_momentum", "nesterov", "moments", "local_beta1"),
    *("block_lr", "c"),
)
_DILOCO = ("block_size", "outer_lr", "outer_momentum", "nesterov", "outer_optimizer")
_BLOCKS = ("across_dtype", "fragments", "overlap")  # behind those of any block synchronisation
_DIVIDED = ("ranks_per_device", "offload_outer_state", "save_distributed_checkpoint", "timeout")


class Preset:
    """Base class of presets: strategies whose components are given by flat arguments.

    The constructor of each preset has a signature with the names, types and defaults of all its
    arguments, which the command line, its help and the documentation read.
    """

    if TYPE_CHECKING:

        def __init__(self, **arguments: Any) -> None:
            """Take the arguments of the signature."""

    def __init_subclass__(
        cls,
        *,
        takes: Sequence[str] = (),
        group_size: GroupSize = "node",
        **components: type[Any],
    ) -> None:
        """Create the constructor of a preset, which passes its arguments on to the components.

        Args:
            takes: names of the arguments, in order. Each is one of a component or the strategy.
            group_size: group size, if it is not an argument.
            **components: classes of ``gradient_sync`` and ``block_sync``.

        """
        super().__init_subclass__()
        if not takes:  # a class of the user, derived from a preset
            return
        strategy: Any = cls.__bases__[1]
        known = _parameters(strategy.__init__, strategy.__init__)
        known["warmup_steps"] = known["warmup_steps"].replace(default="auto")
        fields = {
            place: {name: field for name, field in _parameters(kind, kind).items() if name in takes}
            for place, kind in components.items()
        }
        for of_component in fields.values():
            known |= of_component
        own = [known[name] for name in takes]
        fixed = [n for n in ("group_size", "gradient_sync", "block_sync") if n not in takes]

        # jsonargparse reads this source, and leaves out what the last call sets by name.
        def __init__(self: Any, **ddp_kwargs: Any) -> None:
            _check_fixed(self, fixed, ddp_kwargs)
            made = {
                place: kind(**{n: ddp_kwargs.pop(n) for n in fields[place] if n in ddp_kwargs})
                for place, kind in components.items()
            }
            ddp_kwargs = {"group_size": group_size, "warmup_steps": "auto", **ddp_kwargs}
            super().__init__(  # type: ignore[call-arg]
                group_size=ddp_kwargs.pop("group_size"),
                block_sync=made.pop("block_sync", None),
                **made,
                **ddp_kwargs,
            )

        further = [p for p in known.values() if p.kind is Parameter.VAR_KEYWORD]
        first = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        __init__.__signature__ = Signature([first, *own, *further])  # type: ignore[attr-defined]
        __init__.__qualname__ = f"{cls.__qualname__}.__init__"  # for errors of Python
        cls.__init__ = __init__  # type: ignore[method-assign]


def _parameters(function: Any, hinted: Any) -> dict[str, Parameter]:
    """Parameters by name, with types instead of their names in the module of the function."""
    hints = get_type_hints(hinted)
    parameters = signature(function).parameters.values()
    return {p.name: p.replace(annotation=hints[p.name]) for p in parameters if p.name in hints}


def _check_fixed(preset: object, fixed: Sequence[str], arguments: dict[str, Any]) -> None:
    """Raise ValueError for arguments that a preset sets itself. Removes those that are None."""
    for name in fixed:
        value = arguments.pop(name, None)
        if value is not None:
            raise ValueError(
                f"{type(preset).__name__} sets {name} itself, got {name}={value!r}: use "
                "HierarchicalStrategy(group_size=..., gradient_sync=..., block_sync=...)"
            )


class GTCStrategy(
    Preset,
    HierarchicalStrategy,
    gradient_sync=GTC,
    group_size="world",
    takes=(*_GTC, "warmup_steps"),
):
    """Gradient threshold compression in one group of all ranks (two_tiered_bmuf_gtc 2.1).

    Arguments are those of :class:`~lightning_hier.GTC` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """

    strategy_name = "gtc"


class ModelAveragingStrategy(
    Preset,
    HierarchicalStrategy,
    block_sync=ModelAveraging,
    group_size=1,
    takes=(*_MODEL_AVERAGING, *_BLOCKS, "warmup_steps"),
):
    """Model averaging, every rank a worker (bmuf with eta = 0 and zeta = 1).

    Arguments are those of :class:`~lightning_hier.ModelAveraging` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """

    strategy_name = "model_averaging"


class BMUFStrategy(
    Preset,
    HierarchicalStrategy,
    block_sync=BMUF,
    group_size=1,
    takes=(*_BMUF, *_BLOCKS, "warmup_steps"),
):
    """Blockwise model-update filtering, every rank a worker (bmuf 2.1).

    Arguments are those of :class:`~lightning_hier.BMUF` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """

    strategy_name = "bmuf"


class BMUFAdamStrategy(
    Preset,
    HierarchicalStrategy,
    block_sync=BMUFAdam,
    group_size=1,
    takes=(*_BMUF_ADAM, *_BLOCKS, "warmup_steps"),
):
    """BMUF for Adam, AdamW, NAdam and RAdam, every rank a worker (bmuf_adam 2.2).

    Arguments are those of :class:`~lightning_hier.BMUFAdam` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """

    strategy_name = "bmuf_adam"


class BMUFGTCStrategy(
    Preset,
    HierarchicalStrategy,
    gradient_sync=GTC,
    block_sync=BMUF,
    takes=("group_size", *_GTC, *_BMUF, "across", *_BLOCKS, "warmup_steps"),
):
    """GTC inside groups, blockwise model-update filtering across them (two_tiered_bmuf_gtc 2.3).

    Arguments are those of :class:`~lightning_hier.GTC`, :class:`~lightning_hier.BMUF` and
    :class:`~lightning_hier.HierarchicalStrategy`. N of block momentum is the number of groups.
    """

    strategy_name = "bmuf_gtc"


class DiLoCoStrategy(
    Preset,
    HierarchicalStrategy,
    block_sync=DiLoCo,
    takes=("group_size", *_DILOCO, "across", *_BLOCKS, "warmup_steps"),
):
    """An outer optimizer across groups, exact gradients inside them (DiLoCo).

    Arguments are those of :class:`~lightning_hier.DiLoCo` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """

    strategy_name = "diloco"


_SHARDED = ("group_size", "tensor_parallel_size")


class BMUFAdamFSDPStrategy(
    Preset,
    HierarchicalModelParallelStrategy,
    block_sync=BMUFAdam,
    takes=(*_SHARDED, *_BMUF_ADAM, *_BLOCKS, "warmup_steps", *_DIVIDED),
):
    """FSDP2 and tensor parallelism inside groups, BMUF for Adam across them (bmuf_adam 2.2).

    Arguments are those of :class:`~lightning_hier.BMUFAdam` and
    :class:`~lightning_hier.HierarchicalModelParallelStrategy`.
    """

    strategy_name = "bmuf_adam_fsdp"


class DiLoCoFSDPStrategy(
    Preset,
    HierarchicalModelParallelStrategy,
    block_sync=DiLoCo,
    takes=(*_SHARDED, *_DILOCO, *_BLOCKS, "warmup_steps", *_DIVIDED),
):
    """FSDP2 and tensor parallelism inside groups, an outer optimizer across them (DiLoCo).

    Arguments are those of :class:`~lightning_hier.DiLoCo` and
    :class:`~lightning_hier.HierarchicalModelParallelStrategy`.
    """

    strategy_name = "diloco_fsdp"
