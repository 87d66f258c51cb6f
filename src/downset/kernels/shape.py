"""Kernels that rearrange elements: reshaping, slicing, gathering, splitting."""

from __future__ import annotations

from typing import Any

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.graph.core import Op
from downset.kernels.layout import Inputs, Shapes


def axes_of(op: Op, inputs: Inputs, position: int = 1) -> list[int]:
    if len(inputs) > position and inputs[position] is not None:
        return [int(axis) for axis in inputs[position].reshape(-1).tolist()]
    axes = op.attrs.get("axes", op.attrs.get("axis", []))
    return [int(axis) for axis in axes] if isinstance(axes, (list, tuple)) else [int(axes)]


def reshape(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [inputs[0].reshape(shapes[0])]


def transpose(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    order = op.attrs.get("perm") or (axes_of(op, inputs) if len(inputs) > 1 else list(range(inputs[0].dim()))[::-1])
    return [inputs[0].permute(*order)]


def split(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    if op.attrs.get("num_outputs") and len(inputs) > 1 and inputs[1] is not None and "axis" not in op.attrs:
        axis = int(inputs[1])  # TFLite: the second input is the axis
    else:
        axis = int(op.attrs.get("axis", 0))
    return list(torch_library().split(inputs[0], [shape[axis] for shape in shapes], dim=axis))


def slices(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values = inputs[0]
    if len(inputs) > 1:
        starts, ends = inputs[1].tolist(), inputs[2].tolist()
        axes = inputs[3].tolist() if len(inputs) > 3 and inputs[3] is not None else list(range(len(starts)))
        strides = inputs[4].tolist() if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)
    else:
        starts, ends = op.attrs["starts"], op.attrs["ends"]
        axes, strides = op.attrs.get("axes", list(range(len(starts)))), [1] * len(starts)
    for start, end, axis, stride in zip(starts, ends, axes, strides, strict=True):
        chosen = range(values.shape[axis])[slice(start, end if abs(end) < 1 << 31 else None, stride)]
        if stride < 0 and end < -values.shape[axis]:
            chosen = range(values.shape[axis])[slice(start, None, stride)]
        if stride == 1 and chosen:
            values = values.narrow(axis, chosen.start, len(chosen))  # a view
        else:
            values = _select(values, axis, chosen)
    return [values]


def _select(values: Any, axis: int, chosen: range) -> Any:
    """The elements at these indices of an axis. The indices are made on the device, since a copy to it would end a
    CUDA graph capture."""
    torch, chosen = torch_library(), chosen or range(0)
    index = torch.arange(chosen.start, chosen.stop, chosen.step, dtype=torch.long, device=values.device)
    return torch.index_select(values, axis, index)


def strided_slice(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """TFLite's STRIDED_SLICE: begin, end and stride by dimension, with masks. Raises UnsupportedError for an ellipsis
    or a new axis, which converters do not write."""
    if op.attrs.get("ellipsisMask") or op.attrs.get("newAxisMask"):
        raise UnsupportedError(f"operator {op.name!r}: STRIDED_SLICE with an ellipsis or a new axis has no kernel")
    values = inputs[0]
    begin, end, strides = (item.reshape(-1).tolist() for item in inputs[1:4])
    for axis, (low, high, stride) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << axis
        if op.attrs.get("shrinkAxisMask", 0) & bit:
            indices = range(values.shape[axis])[low]
            chosen = range(indices, indices + 1)
        else:
            whole = slice(
                None if op.attrs.get("beginMask", 0) & bit else low,
                None if op.attrs.get("endMask", 0) & bit else high,
                stride,
            )
            chosen = range(values.shape[axis])[whole]
        values = _select(values, axis, chosen)
    return [values.reshape(shapes[0])]


def gather(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    axis = int(op.attrs.get("axis", 0)) % max(inputs[0].dim(), 1)
    index = inputs[1].long()
    index = index + (index < 0) * inputs[0].shape[axis]
    return [torch_library().index_select(inputs[0], axis, index.reshape(-1)).reshape(shapes[0])]


def gather_elements(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    axis, index = int(op.attrs.get("axis", 0)), inputs[1].long()
    return [torch_library().gather(inputs[0], axis, index + (index < 0) * inputs[0].shape[axis])]


def pack(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [torch_library().stack(list(inputs), dim=int(op.attrs["axis"]))]


def unpack(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return list(torch_library().unbind(inputs[0], dim=int(op.attrs["axis"])))


def split_v(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    axis = int(inputs[2])
    return list(torch_library().split(inputs[0], [shape[axis] for shape in shapes], dim=axis))


def shape(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    torch, device = torch_library(), inputs[0].device
    sizes = list(inputs[0].shape)[int(op.attrs.get("start", 0)) : op.attrs.get("end")]
    # Filled in on the device: copying a list to it would end a CUDA graph capture.
    return [torch.cat([torch.full((1,), n, dtype=torch.long, device=device) for n in sizes] or [_none(device)])]


def _none(device: Any) -> Any:
    torch = torch_library()
    return torch.empty(0, dtype=torch.long, device=device)


def constant_of_shape(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    if "fill" not in op.attrs:
        raise UnsupportedError(f"operator {op.name!r}: the number that it fills in cannot be read from the file")
    return [torch_library().full(shapes[0], op.attrs["fill"], device=inputs[0].device)]


def expand(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [inputs[0].expand(shapes[0])]


def tile(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [inputs[0].repeat(*[int(times) for times in inputs[1].reshape(-1).tolist()])]
