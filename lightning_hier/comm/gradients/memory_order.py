"""The order in which DDP's buckets hold the elements of a gradient.

That is the order in which the parameter lies in memory: not that of its indices where its format
is ``channels_last``. Whatever else makes flat gradients keeps to it, because residuals are flat too
and go from one to the other.
"""

from __future__ import annotations

from torch import Tensor


def flattened(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The elements of a gradient as a bucket holds them; a copy only where it lies otherwise."""
    return gradient.permute(_dimensions(parameter)).reshape(-1)


def shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    """A view of what :func:`flattened` gave, with the shape and the strides of the parameter."""
    order = _dimensions(parameter)
    places = [order.index(dimension) for dimension in range(parameter.dim())]
    return flat.view([parameter.shape[dimension] for dimension in order]).permute(places)


def _dimensions(parameter: Tensor) -> list[int]:
    """From the one with the longest stride on."""
    dimensions = list(range(parameter.dim()))
    order = sorted(dimensions, key=parameter.stride, reverse=True)
    # Where elements overlap or leave gaps, DDP goes by their indices.
    return order if parameter.permute(order).is_contiguous() else dimensions
