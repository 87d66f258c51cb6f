"""Kernels that resize, pad and rearrange space."""

from __future__ import annotations

from typing import Any

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.graph.core import Op
from downset.kernels.layout import Inputs, Shapes, channels_last, to_first, to_last


def pad(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """Pad. ONNX lists all begins, then all ends; TFLite lists [begin, end] for each dimension."""
    values = inputs[0]
    pad_input = inputs[1] if len(inputs) > 1 else None
    if pad_input is not None and pad_input.dim() == 2:
        pairs = pad_input.tolist()
    else:
        pads = pad_input.tolist() if pad_input is not None else list(op.attrs["pads"])
        axes = inputs[3].tolist() if len(inputs) > 3 and inputs[3] is not None else range(len(pads) // 2)
        pairs = [[0, 0] for _ in range(values.dim())]
        for position, axis in enumerate(axes):
            pairs[axis] = [pads[position], pads[position + len(pads) // 2]]
    fill = inputs[2] if len(inputs) > 2 and inputs[2] is not None else op.attrs.get("value", 0.0)
    mode = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}.get(op.attrs.get("mode", "constant"))
    if mode is None:
        raise UnsupportedError(f"operator {op.name!r}: padding mode {op.attrs['mode']} has no kernel")
    if mode == "constant":
        sides = [side for pair in reversed(pairs) for side in pair]
        return [torch_library().nn.functional.pad(values, sides, value=float(fill))]
    for axis, (begin, end) in enumerate(pairs):
        if begin or end:
            moved = values.movedim(axis, -1)
            bent = torch_library().nn.functional.pad(moved.reshape(1, -1, moved.shape[-1]), [begin, end], mode=mode)
            values = bent.reshape(*moved.shape[:-1], -1).movedim(-1, axis)
    return [values]


def resize(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """Nearest and linear resizing, axis by axis, with ONNX's coordinate transformations. Raises UnsupportedError for
    other modes."""
    values = inputs[0]
    scales = inputs[2] if len(inputs) > 2 and inputs[2] is not None and inputs[2].numel() else None
    if op.kind == "Upsample":
        scales = inputs[1] if len(inputs) > 1 else op.attrs["scales"]
    for axis, extent in enumerate(shapes[0]):
        if values.shape[axis] != extent:
            scale = float(scales[axis]) if scales is not None and not channels_last(op) else extent / values.shape[axis]
            values = _resize_axis(op, values, axis, extent, scale)
    return [values]


def _resize_axis(op: Op, values: Any, axis: int, extent: int, scale: float) -> Any:
    torch = torch_library()
    size = values.shape[axis]
    # In float32, as in the runtimes, whose rounding decides ties. Made on the device: a copy to it would end a CUDA
    # graph capture.
    positions = torch.arange(extent, dtype=torch.float32, device=values.device)
    whole = torch.full_like(
        positions, scale
    )  # a GPU divides by a tensor exactly, but multiplies by the rounded reciprocal of a number
    transform = op.attrs.get("coordinate_transformation_mode", "half_pixel" if op.kind == "Resize" else "asymmetric")
    if transform == "align_corners":
        positions = positions * ((size - 1) / max(extent - 1, 1))
    elif transform == "asymmetric":
        positions = positions / whole
    elif transform == "half_pixel" or (transform == "pytorch_half_pixel" and extent > 1):
        positions = (positions + 0.5) / whole - 0.5
    elif transform == "pytorch_half_pixel":
        positions = positions * 0.0
    else:
        raise UnsupportedError(f"operator {op.name!r}: Resize with {transform} has no kernel")
    mode = op.attrs.get("mode", "nearest")
    if mode == "nearest":
        asymmetric = channels_last(op) or op.kind == "Upsample"
        rounding = op.attrs.get("nearest_mode", "floor" if asymmetric else "round_prefer_floor")
        if channels_last(op) and transform != "asymmetric":
            rounding = "round_prefer_ceil"
        call = {
            "floor": torch.floor,
            "ceil": torch.ceil,
            "round_prefer_floor": lambda x: torch.ceil(x - 0.5),
            "round_prefer_ceil": lambda x: torch.floor(x + 0.5),
        }[rounding]
        return torch.index_select(values, axis, call(positions).long().clamp(0, size - 1))
    if mode not in ("linear", "bilinear"):
        raise UnsupportedError(f"operator {op.name!r}: Resize mode {mode} has no kernel")
    positions = positions.clamp(0, size - 1)
    low = positions.floor().long().clamp(0, size - 1)
    high = (low + 1).clamp(max=size - 1)
    along = [1] * values.dim()
    along[axis] = -1
    part = (positions - low).to(values.dtype).reshape(along)
    return torch.index_select(values, axis, low) * (1 - part) + torch.index_select(values, axis, high) * part


def depth_to_space(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values, size = to_first(op, inputs[0]), int(op.attrs["blocksize"])
    batch, channels, height, width = values.shape
    out = channels // (size * size)
    if op.attrs.get("mode", "DCR") == "CRD":
        moved = values.reshape(batch, out, size, size, height, width).permute(0, 1, 4, 2, 5, 3)
    else:
        moved = values.reshape(batch, size, size, out, height, width).permute(0, 3, 4, 1, 5, 2)
    return [to_last(op, moved.reshape(batch, out, height * size, width * size))]


def space_to_depth(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values, size = to_first(op, inputs[0]), int(op.attrs["blocksize"])
    batch, channels, height, width = values.shape
    moved = values.reshape(batch, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
    return [to_last(op, moved.reshape(batch, channels * size * size, height // size, width // size))]
