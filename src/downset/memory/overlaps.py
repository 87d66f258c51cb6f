"""Which operators may write their result over an input that they still read, for each library of kernels.

An output may lie over an input if the kernel reads every byte before it overwrites it. This depends on the kernel's
loops, so each entry of the table was read from the source of that library. Operators that the table does not list never
overlap. A *lag* is the least number of bytes by which the output must begin below the input.

*Sources* as of August 2026 (tflite-micro 90b983c2) and July 2026 (CMSIS-NN 99f736a6). TFLite Micro's CMSIS-NN kernels
run the reference kernels for types and shapes that CMSIS-NN does not support, so no library allows an overlap that the
reference kernels do not allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

from downset.graph.core import ABSENT, Graph, Op

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "ELEMENTWISE",
    "KERNELS",
    "TABLE",
    "KernelsName",
    "Walk",
    "WindowGeometry",
    "element_bytes",
    "geometry",
    "lag_bytes",
    "least_lag",
    "walk_of",
]

KernelsName = Literal["reference", "cmsis-nn-dsp", "cmsis-nn-mve"]
KERNELS: tuple[KernelsName, ...] = get_args(KernelsName)

Walk = Literal["pixel", "channel", "four pixels", "written first"]
"""The sequence in which a kernel writes its result: position by position in the order of the bytes (batch, row,
column).
`pixel`: the channels of a position one after the other; for each channel it reads the whole window.
`channel`: the channels of a position one after the other; for each channel it reads only that channel of the window.
`four pixels`: four positions at a time, channel by channel; for each channel it reads the four whole windows.
`written first`: it may write all channels of a position before it has read all of the window."""

Operation = Literal["pointwise", "convolution", "depthwise", "average pool", "max pool"]

ELEMENTWISE: frozenset[str] = frozenset(
    {"Add", "Clip", "HardSwish", "LeakyRelu", "Mul", "QuantizeLinear", "Relu", "Reshape", "Sigmoid", "Sub", "Tanh"}
)
"""Kinds whose result may lie at the offset of an input of the same size, in every library: element i is read before
element i is written, one by one or in vectors. Reference: flat loops (reference/integer_ops/add.h:
AddElementwise, mul.h: MulElementwise, logistic.h, tanh.h, requantize.h, leaky_relu.h, hard_swish.h, micro/kernels/
activations_common.cc), and broadcasts in the order of the result (reference/broadcast_loop.h); micro/kernels/reshape.cc
copies nothing where both addresses are equal. CMSIS-NN: arm_elementwise_add_s8 and arm_elementwise_mul_s8 load 4
elements of both inputs before they store 4; the other kinds run the reference kernels."""

TABLE: Mapping[KernelsName, Mapping[Operation, Walk]] = {
    # reference/integer_ops/conv.h: ConvPerChannel, reference/conv.h: Conv: batch, out_y, out_x, out_channel, then the
    # window. integer_ops/depthwise_conv.h: DepthwiseConvPerChannel, depthwiseconv_float.h: DepthwiseConv: batch, out_y,
    # out_x, in_channel, multiplier. integer_ops/pooling.h, pooling.h: AveragePool, MaxPool: batch, out_y, out_x,
    # channel.
    "reference": {
        "pointwise": "pixel",
        "convolution": "pixel",
        "depthwise": "channel",
        "average pool": "channel",
        "max pool": "channel",
    },
    # Pointwise: never. arm_convolve_1x1_s8_fast and arm_convolve_1x1_s8 call arm_nn_mat_mult_nt_t_s8, which runs over
    # the output's channels, two at a time, outside, and over the pixels inside.
    # arm_convolve_s8: two windows are copied to a buffer, then two positions are written (arm_convolve_1_x_n_s8, which
    # is chosen for inputs of one row, is not in the table). arm_depthwise_conv_3x3_s8: by position, four channels at a
    # time; arm_depthwise_conv_s8_opt: the window is copied to a buffer, then a position is written. arm_avgpool_s8: the
    # window is summed in a buffer first. arm_max_pool_s8: the first pixel of the window is copied to the output, where
    # the others are compared with it.
    "cmsis-nn-dsp": {
        "convolution": "pixel",
        "depthwise": "channel",
        "average pool": "channel",
        "max pool": "written first",
    },
    # arm_nn_mat_mult_nt_t_s8 with ARM_MATH_MVEI: four pixels outside, the output's channels inside. arm_convolve_s8:
    # four windows are copied to a buffer, then four positions are written. arm_depthwise_conv_s8_opt: blocks of 124
    # channels outside, so only up to 124; four windows are copied, then four positions are written. arm_avgpool_s8: 16
    # channels of a position at a time. arm_max_pool_s8: as with DSP.
    "cmsis-nn-mve": {
        "pointwise": "four pixels",
        "convolution": "pixel",
        "depthwise": "channel",
        "average pool": "channel",
        "max pool": "written first",
    },
}
_TYPES: Mapping[str, frozenset[str]] = {
    "reference": frozenset({"int8", "int16", "float32"}),
    "cmsis-nn-dsp": frozenset({"int8"}),
    "cmsis-nn-mve": frozenset({"int8"}),
}
_MVE_BLOCK = 124
"""CH_IN_BLOCK_MVE in CMSIS-NN's source: channels of a block."""


@dataclass(frozen=True, slots=True)
class WindowGeometry:
    """A sliding window over the rows and columns of channels-last tensors. `read` and `written` are shapes; `pads` are
    those before the first row and column."""

    read: tuple[int, int, int, int]
    written: tuple[int, int, int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]


def geometry(graph: Graph, op: Op) -> WindowGeometry | None:
    """The window of a channels-last convolution or pool with one result; None for other operators, and where the
    attributes do not state kernel and pads."""
    if op.kind not in ("Conv", "AveragePool", "MaxPool") or op.attrs.get("layout") != "NHWC" or len(op.outputs) != 1:
        return None
    if "kernel_shape" not in op.attrs or (op.attrs.get("auto_pad", "NOTSET") != "NOTSET" and "pads" not in op.attrs):
        return None
    read, written = graph.tensors[op.inputs[0]].shape, graph.tensors[op.outputs[0]].shape
    if len(read) != 4 or len(written) != 4 or op.inputs.count(op.inputs[0]) > 1:
        return None
    pair = {
        name: tuple(int(step) for step in op.attrs.get(name, (1, 1))[:2])
        for name in ("kernel_shape", "strides", "dilations")
    }
    pads = tuple(int(pad) for pad in op.attrs.get("pads", (0, 0))[:2])
    return WindowGeometry(read, written, pair["kernel_shape"], pair["strides"], pair["dilations"], pads)  # type: ignore[arg-type]


def _operation(op: Op, window: WindowGeometry) -> Operation | None:
    if op.kind != "Conv":
        return "average pool" if op.kind == "AveragePool" else "max pool"
    if op.attrs.get("depthwise"):
        return "depthwise"
    if int(op.attrs.get("group", 1)) != 1:
        return None
    plain = window.kernel == window.strides == (1, 1) and window.pads == (0, 0)
    return "pointwise" if plain and window.read[1:3] == window.written[1:3] else "convolution"


def walk_of(graph: Graph, op: Op, kernels: str, window: WindowGeometry | None = None) -> Walk | None:
    """How the library's kernel writes the result of this operator, or of one with another `window`. None where the
    table allows no overlap."""
    if kernels not in TABLE or not op.inputs or op.inputs[0] == ABSENT or ABSENT in op.outputs:
        return None
    window = window or geometry(graph, op)
    if window is None:
        return None
    types = {graph.tensors[tensor].dtype for tensor in (op.inputs[0], op.outputs[0])}
    operation = _operation(op, window)
    if len(types) != 1 or not types <= _TYPES[kernels] or operation is None:
        return None
    if kernels != "reference" and not _is_main_kernel(kernels, operation, window):
        return None
    return TABLE[kernels].get(operation)  # type: ignore[index]


def _is_main_kernel(kernels: str, operation: Operation, window: WindowGeometry) -> bool:
    """Whether CMSIS-NN runs the operator by the function from which the table was read, not by a special one."""
    if operation == "depthwise":
        narrow = kernels == "cmsis-nn-dsp" or 1 < window.read[3] <= _MVE_BLOCK
        return window.read[3] == window.written[3] and window.read[0] == 1 and window.dilations == (1, 1) and narrow
    # One row, or a 1x1 window with strides: arm_convolve_1_x_n_s8 and arm_convolve_1x1_s8.
    return operation != "convolution" or (window.kernel[0] > 1 and window.read[1] > 1)


def least_lag(graph: Graph, op: Op, kernels: str, window: WindowGeometry | None = None) -> int | None:
    """The least number of bytes by which the first output must begin below the first input if they overlap; None where
    they must not overlap. `window`: that of a strip of the operator, instead of its own."""
    window = window or geometry(graph, op)
    walk = walk_of(graph, op, kernels, window)
    return None if walk is None or window is None else lag_bytes(window, walk, element_bytes(graph, op))


def element_bytes(graph: Graph, op: Op) -> int:
    """Bytes of one element of the operator's first output."""
    output = graph.tensors[op.outputs[0]]
    return output.nbytes // max(1, prod(output.shape))


@lru_cache(maxsize=4096)
def lag_bytes(window: WindowGeometry, walk: Walk, unit: int) -> int:
    """The lag in bytes of a window with this walk, for elements of `unit` bytes. O(positions).

    A write of output byte j must not change input byte i if i is read later, so the input has to begin more than j - i
    bytes above the output. For each position only the lowest byte matters that it or a later position reads."""
    import numpy as np

    channels, depth = window.written[3], window.read[3]
    lowest = _lowest_read(window)
    ahead = np.minimum.accumulate(lowest[::-1])[::-1]
    position = np.arange(len(ahead), dtype=np.int64)
    # All bytes that later positions read must lie above all bytes written so far.
    after = (position[:-1] + 1) * channels - ahead[1:] * depth
    if walk == "written first":
        within = (position + 1) * channels - ahead * depth
    elif walk == "pixel":
        within = (position + 1) * channels - 1 - lowest * depth if channels > 1 else after
    elif walk == "four pixels":
        whole = len(position) // 4 * 4
        first = np.concatenate([np.arange(0, whole, 4), np.arange(whole, len(position))])
        size = np.where(first < whole, 4, 1)
        after = (first + size) * channels - (first + size) * depth
        within = (first + size) * channels - 1 - first * depth if channels > 1 else after
    else:
        times = channels // depth
        written = np.arange(1, channels, dtype=np.int64)
        most = int((written - written // times).max(initial=0))
        within = position * channels + most - lowest * depth if channels > 1 else after
    return unit * max(0, int(within.max(initial=0)), int(after.max(initial=0)))


def _lowest_read(window: WindowGeometry) -> npt.NDArray[np.int64]:
    """By position of the output, in the order of the bytes: the first position of the input that it reads."""
    import numpy as np

    def first(axis: int) -> npt.NDArray[np.int64]:
        size, stride, dilation = window.read[axis + 1], window.strides[axis], window.dilations[axis]
        begin = np.arange(window.written[axis + 1], dtype=np.int64) * stride - window.pads[axis]
        inside = np.where(begin < 0, begin + -(begin // dilation) * dilation, begin)
        return np.where(inside < np.minimum(size, begin + window.kernel[axis] * dilation), inside, size)

    rows, columns, wide = first(0), first(1), window.read[2]
    image = rows[:, None] * wide + columns[None, :]
    # A window outside the image reads nothing.
    image = np.where((rows[:, None] >= window.read[1]) | (columns[None, :] >= wide), np.iinfo(np.int32).max, image)
    batches = np.arange(window.written[0], dtype=np.int64) * window.read[1] * wide
    return (batches[:, None] + image.reshape(1, -1)).reshape(-1)
