"""PyTorch's own operators as kernels, for calls of an exported program that the graph's kinds have no counterpart of.

Only operators of a list run: those that compute from their arguments alone, write to none of them, and draw nothing. A
`.pt2` file may name any operator of PyTorch, also one that reads files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from downset.extras import torch_library
from downset.graph.core import Op

__all__ = ["CALL", "aten_call", "is_pure_aten"]

CALL = "call"
"""The attribute of an operator that holds its arguments; {"tensor": n} stands for its input n."""

_PREFIX = "aten::"
_SETTING = {"setting": "an element type, a device or a layout"}
_IDENTITIES = frozenset(
    "_assert_tensor_metadata _to_copy alias clone contiguous detach detach_ lift_fresh_copy to type_as".split()  # noqa: SIM905
)
"""The executor converts results to the element type that the graph states, which fixed shapes and types assert too, and
outputs to their layouts and memory."""
_FACTORIES = frozenset(
    """
    arange eye full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like
    """.split()  # noqa: SIM905
)
"""They make values of numbers alone, on any device. Those with no input are constants of the graph."""
_PURE = frozenset(
    """
    abs adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d add addmm all amax amin any argmax argmin atan
    avg_pool2d avg_pool3d baddbmm batch_norm bitwise_and bitwise_not bitwise_or bmm broadcast_to ceil celu
    channel_shuffle chunk clamp clamp_max clamp_min constant_pad_nd conv1d conv2d conv3d convolution cos cumsum div
    einsum elu embedding eq exp expand expm1 flip floor floor_divide fmod gather ge gelu glu group_norm gt
    hardsigmoid hardswish im2col index_select instance_norm isfinite isinf isnan layer_norm le leaky_relu
    linalg_vector_norm log log1p log_sigmoid log_softmax logical_and logical_not logical_or logsumexp lt masked_fill
    matmul max max_pool2d_with_indices maximum mean min minimum mish mm movedim mul narrow native_group_norm
    native_layer_norm ne neg norm outer pad permute pixel_shuffle pixel_unshuffle pow prelu prod reciprocal
    reflection_pad2d relu relu6 remainder repeat repeat_interleave replication_pad2d rms_norm roll round rsqrt
    rsub scaled_dot_product_attention select selu sigmoid sign silu sin slice softmax softplus softshrink sort split
    split_with_sizes sqrt square squeeze stack std sub sum swapaxes t tan tanh tensor_split threshold tile topk
    transpose tril triu true_divide unbind unflatten unsafe_split unsqueeze upsample_bicubic2d upsample_bilinear2d
    upsample_nearest2d var view_as where __and__ __or__ __xor__ _softmax _log_softmax _unsafe_view
    """.split()  # noqa: SIM905
)


_RUN = _PURE | _IDENTITIES | _FACTORIES


def is_pure_aten(kind: str) -> bool:
    """Whether operators of this kind run here."""
    base = kind.removeprefix(_PREFIX).partition(".")[0]
    return kind.startswith(_PREFIX) and base in _RUN


def aten_call(op: Op, inputs: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """The outputs of a call of one of these operators."""
    base, _, overload = op.kind.removeprefix(_PREFIX).partition(".")
    if base in _IDENTITIES:
        return [inputs[0]]
    operator = getattr(getattr(torch_library().ops.aten, base), overload or "default")
    if operator._schema.is_mutable:
        raise ValueError(f"{op.kind} writes to its arguments")
    call = op.attrs[CALL]
    named = call["kwargs"]
    if base in _FACTORIES:  # a device and a layout change no value
        named = {name: value for name, value in named.items() if value != _SETTING}
    args, kwargs = _with_tensors(call["args"], inputs), _with_tensors(named, inputs)
    if base == "scaled_dot_product_attention" and (args[4:5] or [kwargs.get("dropout_p", 0.0)])[0]:
        raise ValueError("its dropout draws random numbers")
    if base in ("batch_norm", "instance_norm") and args[3] is not None and args[5]:
        raise ValueError("it writes to its running statistics")
    results = operator(*args, **kwargs)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _with_tensors(argument: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(argument, Mapping):
        if argument.keys() == {"tensor"}:
            return inputs[argument["tensor"]]
        if argument.keys() == {"element_type"}:
            return getattr(torch_library(), argument["element_type"])
        if argument.keys() == {"setting"}:
            raise ValueError(f"it takes {argument['setting']}, an object of PyTorch's")
        return {name: _with_tensors(value, inputs) for name, value in argument.items()}
    return [_with_tensors(item, inputs) for item in argument] if isinstance(argument, list) else argument
