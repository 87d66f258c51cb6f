"""Kernels that normalise."""

from __future__ import annotations

from typing import Any

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.graph.core import Op
from downset.kernels.layout import Inputs, Shapes, channels_last


def batch_normalization(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values, scale, shift, mean, variance = inputs[:5]
    axis = values.dim() - 1 if channels_last(op) else 1
    along = [1] * values.dim()
    along[axis] = -1
    factor = scale / torch_library().sqrt(variance + float(op.attrs.get("epsilon", 1e-5)))
    return [values * factor.reshape(along) + (shift - mean * factor).reshape(along)]


def instance_normalization(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values, scale, shift = inputs[:3]
    call = torch_library().nn.functional.instance_norm
    return [call(values, weight=scale, bias=shift, eps=float(op.attrs.get("epsilon", 1e-5)))]


def layer_normalization(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values = inputs[0]
    axis = int(op.attrs.get("axis", -1)) % values.dim()
    bias = inputs[2] if len(inputs) > 2 else None
    call = torch_library().nn.functional.layer_norm
    return [call(values, values.shape[axis:], inputs[1], bias, float(op.attrs.get("epsilon", 1e-5)))]


def rms_normalization(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values = inputs[0]
    axis = int(op.attrs.get("axis", -1)) % values.dim()
    square = (values * values).mean(dim=tuple(range(axis, values.dim())), keepdim=True)
    return [values / torch_library().sqrt(square + float(op.attrs.get("epsilon", 1e-5))) * inputs[1]]


def skip_layer_normalization(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """ONNX Runtime's SkipLayerNormalization: the sum of two tensors and a bias, normalised over the last axis. The
    fourth output is the sum."""
    if any(tensor >= 0 for tensor in op.outputs[1:3]):
        raise UnsupportedError(f"operator {op.name!r}: SkipLayerNormalization with its mean or deviation has no kernel")
    total = inputs[0] + inputs[1]
    if len(inputs) > 4 and inputs[4] is not None:
        total = total + inputs[4]
    shift = inputs[3] if len(inputs) > 3 else None
    epsilon = float(op.attrs.get("epsilon", 1e-12))
    result = torch_library().nn.functional.layer_norm(total, total.shape[-1:], inputs[2], shift, epsilon)
    return [result, total, total, total][: len(op.outputs)]  # the second and third output are never used, see above


def local_response_normalization(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    attrs = op.attrs
    call = torch_library().nn.functional.local_response_norm
    arguments = (float(attrs.get("alpha", 1e-4)), float(attrs.get("beta", 0.75)), float(attrs.get("bias", 1.0)))
    return [call(inputs[0], int(attrs["size"]), *arguments)]
