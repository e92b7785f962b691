"""Names that other packages and papers use for our arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

# Our argument, and its names in torchft, torchtitan, torch's PostLocalSGD, fairseq, fairscale,
# Hivemind, OpenDiLoCo, MaxText, DeepSpeed and the papers (docs/glossary.md has the sources).
_NAMES: Mapping[str, str] = {
    "block_size": "sync_every sync_steps sync_period sync_interval period h tau local_steps "
    "num_inner_steps inner_steps localsgd_frequency slowmo_frequency slowmo_freq "
    "diloco_sync_period global_sync_iter model_averaging_period average_state_every k_x",
    "fragments": "num_fragments num_diloco_fragments model_fragments "
    "module_fqns_per_model_fragment",
    "overlap": "fragment_sync_delay sync_delay delay tau delay_state_averaging "
    "num_communication_overlapping_steps",
    "merge": "fragment_update_alpha communication_overlapping_alpha alpha",
    "outer_lr": "outer_learning_rate diloco_outer_lr slowmo_lr block_lr",
    "block_lr": "outer_learning_rate diloco_outer_lr slowmo_lr outer_lr zeta",
    "outer_momentum": "diloco_outer_momentum slowmo_momentum slowmo_factor block_momentum",
    "block_momentum": "diloco_outer_momentum slowmo_momentum slowmo_factor outer_momentum eta",
    "across_dtype": "should_quantize hivemind_compression state_averaging_compression",
    "across_density": "density top_k topk",
    "moments_every": "k_u k_v",
    "block_rule": "qsr",
    "coefficient": "alpha",
    "max_block_size": "h_max max_h",
    "nesterov": "use_nbm",
    "push_period": "sync_every period",
    "warmup_steps": "start_localsgd_iter warmup_iterations freeze_step",
    "group_size": "subgroup subgroup_size nprocs_per_node",
    "block_sync": "slowmo_base_algorithm slowmo_algorithm semi_sync_method",
}

OF_STRATEGIES: Mapping[str, str] = dict.fromkeys(
    ("block_sync", "gradient_sync", "group_size", "ranks_per_device", "warmup_steps"),
    "the strategy",
)
"""Arguments of the strategy that users look for in its synchronisations."""


def unknown_argument(
    name: str, known: Sequence[str], elsewhere: Mapping[str, str] = OF_STRATEGIES
) -> str:
    """End of a sentence about an unknown argument: our name for it, or similar names, if any.

    Args:
        name: the argument as the user has written it.
        known: arguments of the class.
        elsewhere: further arguments, and the class or classes that take them.

    """
    written = name.lower().replace("-", "_")
    # A name may mean several of ours: tau is a length of a block or of a delay.
    ours = [our for our, names in _NAMES.items() if written in names.split()]
    if here := [our for our in ours if our in known]:
        return f": it is called {' or '.join(map(repr, here))} here."
    if name in elsewhere:
        return f": it is an argument of {elsewhere[name]}."
    if there := next((our for our in ours if our in elsewhere), None):
        return f": it is called {there!r} here, and is an argument of {elsewhere[there]}."
    return did_you_mean(name, known)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """End of a sentence about a mistyped name, with similar known names if there are any."""
    near = get_close_matches(name, dict.fromkeys(known))
    return f": did you mean {' or '.join(map(repr, near))}?" if near else "."
