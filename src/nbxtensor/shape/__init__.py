"""Shapes, strides and views: rules over plain tuples of ints, strides counted in elements."""

from nbxtensor.shape.axes import as_index, integer, normalize_axes, normalize_axis, slice_bounds
from nbxtensor.shape.dims import Dim
from nbxtensor.shape.extents import (
    as_shape,
    broadcast_shapes,
    contiguous_strides,
    extent_span,
    infer_shape,
    is_contiguous,
    numel,
)
from nbxtensor.shape.views import broadcast_strides, expand, narrow, permute, select, view_strides

__all__ = [
    "Dim",
    "as_index",
    "as_shape",
    "broadcast_shapes",
    "broadcast_strides",
    "contiguous_strides",
    "expand",
    "extent_span",
    "infer_shape",
    "integer",
    "is_contiguous",
    "narrow",
    "normalize_axes",
    "normalize_axis",
    "numel",
    "permute",
    "select",
    "slice_bounds",
    "view_strides",
]
