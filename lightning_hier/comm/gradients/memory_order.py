"""The order in which DDP's buckets hold the elements of a gradient.

It is the order of the parameter in memory, which differs from that of its indices in the format
``channels_last``. All flat gradients and residuals use it.
"""

from __future__ import annotations

from torch import Tensor


def flattened(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The elements of a gradient in the order of a bucket; a copy only if its strides differ."""
    return gradient.permute(_dimensions(parameter)).reshape(-1)


def shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    """A view of a flat gradient with the shape and the strides of the parameter."""
    order = _dimensions(parameter)
    places = [order.index(dimension) for dimension in range(parameter.dim())]
    return flat.view([parameter.shape[dimension] for dimension in order]).permute(places)


def _dimensions(parameter: Tensor) -> list[int]:
    """Dimensions in descending order of stride."""
    dimensions = list(range(parameter.dim()))
    order = sorted(dimensions, key=parameter.stride, reverse=True)
    # Where elements overlap or leave gaps, DDP uses the order of their indices.
    return order if parameter.permute(order).is_contiguous() else dimensions
