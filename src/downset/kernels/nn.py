"""Kernels of convolutions, pools, matrix products, activations and normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.graph.core import Op
from downset.kernels.layout import Inputs, Shapes, channels_last, to_first, to_last


def activation(name: str | None, parameters: Sequence[float], values: Any) -> Any:
    """Apply a fused activation, by the name that the file gives it. Raises UnsupportedError for an unknown one."""
    torch = torch_library()
    if name in (None, "", "None"):
        return values
    if name in ("Relu", "Sigmoid", "Tanh"):
        return getattr(torch, name.lower())(values)
    if name == "Relu6":
        return torch.clamp(values, 0.0, 6.0)
    if name == "ReluN1To1":
        return torch.clamp(values, -1.0, 1.0)
    if name == "Clip":
        return torch.clamp(values, parameters[0], parameters[1])
    if name == "LeakyRelu":
        return torch.nn.functional.leaky_relu(values, parameters[0])
    if name == "HardSigmoid":
        return torch.clamp(values * parameters[0] + parameters[1], 0.0, 1.0)
    raise UnsupportedError(f"no kernel for the fused activation {name}")


def _finish(op: Op, values: Any) -> list[Any]:
    name = op.attrs.get("activation")
    return [activation(name, op.attrs.get("activation_params", ()), to_last(op, values))]


def spatial_geometry(op: Op, kernel: Sequence[int], size: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """(strides, dilations, pads as [begin..., end...]) of a window; `auto_pad` is turned into pads."""
    rank = len(kernel)
    strides = list(op.attrs.get("strides") or [1] * rank)
    dilations = list(op.attrs.get("dilations") or [1] * rank)
    mode = op.attrs.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-extent // stride) - 1) * stride + (window - 1) * dilation + 1 - extent, 0)
            for extent, window, stride, dilation in zip(size, kernel, strides, dilations, strict=True)
        ]
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        return strides, dilations, [*small, *large] if mode == "SAME_UPPER" else [*large, *small]
    return strides, dilations, list(op.attrs.get("pads") or [0] * (2 * rank))


def _padded(values: Any, pads: Sequence[int], fill: float) -> Any:
    """The values with spatial pads [begin..., end...], filled with `fill`."""
    if not any(pads):
        return values
    rank = len(pads) // 2
    sides = [side for axis in reversed(range(rank)) for side in (pads[axis], pads[axis + rank])]
    return torch_library().nn.functional.pad(values, sides, value=fill)


def convolution(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """A convolution of 1 to 3 spatial dimensions. A fourth input is added before the activation, as in ONNX Runtime's
    FusedConv."""
    functional = torch_library().nn.functional
    values, weights = to_first(op, inputs[0]), inputs[1]
    if channels_last(op):
        weights = weights.permute(3, 0, 1, 2) if op.attrs.get("depthwise") else weights.permute(0, 3, 1, 2)
    strides, dilations, pads = spatial_geometry(op, weights.shape[2:], values.shape[2:])
    bias = inputs[2] if len(inputs) > 2 else None
    call = (functional.conv1d, functional.conv2d, functional.conv3d)[weights.dim() - 3]
    result = call(_padded(values, pads, 0.0), weights, bias, strides, 0, dilations, int(op.attrs.get("group", 1)))
    if len(inputs) > 3 and inputs[3] is not None:
        result = result + inputs[3]
    return _finish(op, result)


def transposed_convolution(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    functional = torch_library().nn.functional
    values, weights = inputs[0], inputs[1]
    rank = weights.dim() - 2
    strides, dilations, pads = spatial_geometry(op, weights.shape[2:], values.shape[2:])
    bias = inputs[2] if len(inputs) > 2 else None
    call = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    result = call(values, weights, None, strides, 0, 0, int(op.attrs.get("group", 1)), dilations)
    # The whole result is cut to the stated size; this covers unequal pads and output padding.
    for axis in range(rank):
        size = shapes[0][axis + 2]
        missing = pads[axis] + size - result.shape[axis + 2]
        if missing > 0:
            result = functional.pad(result, [0, 0] * (rank - 1 - axis) + [0, missing])
        result = result.narrow(axis + 2, pads[axis], size)
    if bias is not None:
        result = result + bias.reshape(-1, *[1] * rank)
    return _finish(op, result)


def _pool(op: Op, values: Any, fill: float) -> tuple[Any, list[int], list[int], list[int], bool]:
    """(values, kernel, strides, pads for PyTorch's pool, ceil). PyTorch pads both sides equally, by half a window at
    most. Other pads are added to the values here, and so are all pads where `ceil_mode` is set."""
    kernel = list(op.attrs["kernel_shape"])
    strides, _, pads = spatial_geometry(op, kernel, values.shape[2:])
    rank, ceil = len(kernel), bool(op.attrs.get("ceil_mode", 0))
    equal = pads[:rank] == pads[rank:] and all(2 * pad <= window for pad, window in zip(pads, kernel, strict=False))
    if equal and not ceil:
        return values, kernel, strides, pads[:rank], ceil
    return _padded(values, pads, fill), kernel, strides, [0] * rank, ceil


def _cut(op: Op, result: Any, shape: tuple[int, ...]) -> Any:
    """Cut the result to the stated shape: where pads were added to the values, `ceil_mode` adds windows that start in
    them."""
    extents = shape[1:-1] if channels_last(op) else shape[2:]
    return result[(..., *(slice(extent) for extent in extents))]


def max_pool(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    functional = torch_library().nn.functional
    values, kernel, strides, pads, ceil = _pool(op, to_first(op, inputs[0]), -math.inf)
    dilations = list(op.attrs.get("dilations") or [1] * len(kernel))
    call = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
    if len(op.outputs) > 1:
        raise UnsupportedError(f"operator {op.name!r}: MaxPool with indices has no kernel")
    return _finish(op, _cut(op, call(values, kernel, strides, pads, dilations, ceil), shapes[0]))


def average_pool(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    torch = torch_library()
    functional = torch.nn.functional
    whole = to_first(op, inputs[0])
    values, kernel, strides, pads, ceil = _pool(op, whole, 0.0)
    call = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(kernel) - 1]
    if any(step != 1 for step in op.attrs.get("dilations") or ()):
        raise UnsupportedError(f"operator {op.name!r}: AveragePool with dilations has no kernel")
    count_pads = bool(op.attrs.get("count_include_pad", 0))
    result = call(values, kernel, strides, pads, ceil, count_pads)
    if not count_pads and values is not whole:
        inside, *_ = _pool(op, torch.ones_like(whole), 0.0)
        result = result / call(inside, kernel, strides, 0, ceil)
    return _finish(op, _cut(op, result, shapes[0]))


def global_pool(name: str) -> Callable[[Op, Inputs, Shapes], list[Any]]:
    def kernel(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
        return [getattr(torch_library(), name)(inputs[0], dim=tuple(range(2, inputs[0].dim())), keepdim=True)]

    return kernel


def scaled(values: Any, factor: float) -> Any:
    """The product; the values themselves for a factor of 1, which saves a kernel."""
    return values if float(factor) == 1.0 else values * float(factor)


def gemm(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """ONNX's Gemm, and TFLite's fully connected layer, which multiplies over the last axis of any rank."""
    values, weights = inputs[0], inputs[1]
    if channels_last(op):
        values = values.reshape(-1, weights.shape[-1])
    values = values.transpose(0, 1) if op.attrs.get("transA") else values
    weights = weights.transpose(0, 1) if op.attrs.get("transB") else weights
    result = scaled(torch_library().matmul(values, weights), op.attrs.get("alpha", 1.0))
    if len(inputs) > 2 and inputs[2] is not None:
        result = result + scaled(inputs[2], op.attrs.get("beta", 1.0))
    # ONNX Runtime's fused form names its parameters one by one
    named = [op.attrs[name] for name in ("activation_alpha", "activation_beta") if name in op.attrs]
    parameters = op.attrs.get("activation_params", named)
    return [activation(op.attrs.get("activation"), parameters, result).reshape(shapes[0])]


def softmax(name: str) -> Callable[[Op, Inputs, Shapes], list[Any]]:
    def kernel(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
        call = getattr(torch_library(), name)
        return [call(scaled(inputs[0], op.attrs.get("beta", 1.0)), dim=int(op.attrs.get("axis", -1)))]

    return kernel


def hard_sigmoid(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [activation("HardSigmoid", (op.attrs.get("alpha", 0.2), op.attrs.get("beta", 0.5)), inputs[0])]


def gelu(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [torch_library().nn.functional.gelu(inputs[0], approximate=str(op.attrs.get("approximate", "none")))]


def selu(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    torch = torch_library()
    alpha = float(op.attrs.get("alpha", 1.6732632423543772))
    gamma = float(op.attrs.get("gamma", 1.0507009873554805))
    return [gamma * torch.where(inputs[0] > 0, inputs[0], alpha * torch.expm1(inputs[0]))]


def swish(alpha: float) -> Callable[[Op, Inputs, Shapes], list[Any]]:
    """x · sigmoid(alpha · x); `alpha` is the default of the attribute."""

    def kernel(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
        return [inputs[0] * torch_library().sigmoid(scaled(inputs[0], op.attrs.get("alpha", alpha)))]

    return kernel


def prelu(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [torch_library().where(inputs[0] >= 0, inputs[0], inputs[0] * inputs[1])]


def shrink(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    torch, values = torch_library(), inputs[0]
    bias, limit = float(op.attrs.get("bias", 0.0)), float(op.attrs.get("lambd", 0.5))
    outside = torch.where(values > limit, values - bias, torch.zeros_like(values))
    return [torch.where(values < -limit, values + bias, outside)]


def thresholded_relu(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    threshold = float(op.attrs.get("alpha", 1.0))
    return [torch_library().where(inputs[0] > threshold, inputs[0], 0.0)]


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
