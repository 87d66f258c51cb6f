"""Formulas for the bytes that CMSIS-NN's kernels ask of TFLite Micro's arena beyond those of the reference kernels.

*Sources*: the Prepare functions of tensorflow/lite/micro/kernels/cmsis_nn (tflite-micro 90b983c2, August 2026) say
which operators ask; the `arm_*_get_buffer_size` functions of CMSIS-NN 4ab83cc3 (June 2026), which that version
downloads, say how much. Operators that are not named here ask for what the reference kernels ask for, which a
measurement includes: CMSIS-NN's own (Add, Mul, Pad, Softmax, Transpose, Maximum, Minimum, MaxPool) ask for nothing.

An upper bound where a compiler or an option of the build decides: `OPTIMIZE_KERNELS_FOR` says whether sums of weights
are kept or computed in each run; here they are kept, which takes no less. The kernels' own records are a few bytes
larger than those of the reference kernels. These bytes are left out: pointers of four bytes save more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.memory.kernel_request import Request
from downset.memory.records import align_up

__all__ = ["ASKING", "SOURCES", "VERSION", "cmsis_request"]

VERSION = "4ab83cc3"
SOURCES = f"CMSIS-NN {VERSION}, as of tflite-micro 90b983c2"
_MVE_BLOCK = 124
"""CH_IN_BLOCK_MVE: channels of a depthwise convolution that are computed together."""
_REVERSED_ABOVE = 16
"""REVERSE_TCOL_EFFICIENT_THRESHOLD: input channels above which a transposed convolution runs as a convolution."""
_LSTM_RECORD_BYTES = 320
"""cmsis_nn_lstm_params, with pointers of eight bytes."""


def cmsis_request(graph: Graph, op: Op, *, mve: bool) -> Request | None:
    """The request of CMSIS-NN's kernel for this operator, without alignment. Empty where the reference kernel
    asks for the same; None where the formula is not known: the file states no options, or types or shapes are others
    than CMSIS-NN computes with."""
    if op.kind not in _FORMULAS:
        return None if op.kind.removeprefix("tflite::") in ASKING else Request()
    formula = _FORMULAS[op.kind]
    places = [op.inputs[place] if place < len(op.inputs) else ABSENT for place in formula.places]
    if ABSENT in places or ABSENT in op.outputs[:1] or not op.outputs:
        return None
    tensors = [graph.tensors[tensor] for tensor in (*places, op.outputs[0])]
    if any(len(tensor.shape) < formula.rank for tensor in tensors):
        return None
    if tensors[0].dtype == "float32":
        return Request()
    if tensors[0].dtype not in ("int8", "int16"):
        return None
    return formula.request(graph, op, tensors, mve)


def _convolution(graph: Graph, op: Op, tensors: Sequence[Tensor], mve: bool) -> Request | None:
    del graph
    read, weights, output = tensors
    if any(name not in op.attrs for name in ("strides", "dilations", "pads")):
        return None
    if op.attrs.get("depthwise"):
        return _depthwise(op, read, weights, output, mve)
    rows, columns = weights.shape[1:3]
    taps = rows * columns * read.shape[3]
    if read.dtype == "int16":
        return Request((2 * 4 * align_up(taps, 8),) if mve else (2 * 2 * taps,))
    whole = weights.shape[3] == read.shape[3]
    steps, stretch = op.attrs["strides"], op.attrs["dilations"]
    if whole and rows == columns == 1 and tuple(stretch) == (1, 1) and not any(op.attrs["pads"]):
        # arm_convolve_1x1_s8_fast, where Arm's compiler built it for DSP; with others none.
        return Request((4 * read.shape[3],) if not mve and tuple(steps) == (1, 1) else ())
    flat = read.shape[1] == rows == stretch[1] == 1 and steps[1] * read.shape[3] % 4 == 0
    if mve and whole and flat:
        return Request((_one_row(read, columns, output, steps[1], op.attrs["pads"][1]),))
    return Request((_columns(taps, mve),))


def _columns(taps: int, mve: bool) -> int:
    """Bytes of the windows of `taps` values that are copied: four as int8 for MVE, two as int16 for DSP."""
    return 4 * align_up(taps, 16) if mve else 2 * 2 * align_up(taps, 4)


def _one_row(read: Tensor, columns: int, output: Tensor, step: int, pad: int) -> int:
    """Bytes for a window of one row on an image of one row, with MVE: a copy of a padded window, if the positions
    divide into those that are padded at the left, at the right and not at all."""
    channels = read.shape[3]
    odd = ((output.shape[2] - 1) * step + columns - read.shape[2]) % 2
    right = max(1, (pad + odd + step - 1) // step) if pad + odd else 0
    left = max(1, (pad + step - 1) // step) if pad else 0
    if right + left + max(output.shape[2] - right - left, 0) != output.shape[2]:
        return _columns(columns * channels, mve=True)
    beyond = right if odd else pad
    return channels * max(columns + pad, columns - 1 + beyond)


def _depthwise(op: Op, read: Tensor, weights: Tensor, output: Tensor, mve: bool) -> Request:
    rows, columns = weights.shape[1:3]
    depth, taps = read.shape[3], rows * columns
    if read.dtype == "int16":
        return Request()
    if mve and depth == 1 and output.shape[3] > 1 and weights.dtype == "int8":
        return Request((output.shape[3] * taps + _of_one_channel(op, read, rows, columns, output),))
    if depth != output.shape[3] or read.shape[0] != 1 or tuple(op.attrs["dilations"]) != (1, 1):
        return Request()
    if mve:
        return Request((4 * _MVE_BLOCK * taps,))
    small = rows == columns == 3 and max(op.attrs["pads"][:2]) <= 1 and weights.dtype == "int8"
    return Request(() if small else (2 * depth * taps,))


def _of_one_channel(op: Op, read: Tensor, rows: int, columns: int, output: Tensor) -> int:
    """Bytes for a depthwise convolution of one channel, which runs as a convolution. TFLite Micro states no stride when
    it asks, so either kernel may be assumed: the larger one counts."""
    step, pads, stretch = op.attrs["strides"][1], op.attrs["pads"], op.attrs["dilations"]
    if rows == columns == 1 and not any(pads[:2]) and tuple(stretch) == (1, 1):
        return 0
    general = _columns(rows * columns, mve=True)
    if read.shape[1] == rows == stretch[1] == 1:
        return max(general, _one_row(read, columns, output, step, pads[1]))
    return general


def _transposed(graph: Graph, op: Op, tensors: Sequence[Tensor], mve: bool) -> Request | None:
    del graph
    read, weights, output = tensors
    if "strides" not in op.attrs:
        return None
    if read.dtype == "int16":
        return Request()
    (rows, columns), depth = weights.shape[1:3], read.shape[3]
    down, across = op.attrs["strides"]
    taps = rows * columns * depth
    if max(down, across) <= 2 and depth > _REVERSED_ABOVE:
        return Request((_columns(taps, mve), taps * output.shape[3]))
    wide = (read.shape[2] - 1) * across + max(columns, down)
    return Request((4 * wide * output.shape[3] * max(rows, down),))


def _fully_connected(graph: Graph, op: Op, tensors: Sequence[Tensor], mve: bool) -> Request:
    read, weights, output = tensors
    if read.dtype == "int16" or weights.dtype == "int4":
        return Request()
    depth, units = weights.shape[-1], output.shape[-1]
    if len(output.shape) > 2 and depth % 4 == 0:  # runs as a convolution, whose parameters are by channel
        by_channel = len((weights.quantization or {}).get("scale", ())) > 1
        return Request((*(() if by_channel else (2 * 4 * units,)), *(() if mve else (4 * depth,))))
    if not mve:
        return Request()
    fixed = all(tensor == ABSENT or graph.tensors[tensor].role == "constant" for tensor in op.inputs[1:])
    return Request(kept=(4 * units,)) if fixed else Request((4 * units,))


def _batch_matmul(graph: Graph, op: Op, tensors: Sequence[Tensor], mve: bool) -> Request:
    del graph, op
    read, output = tensors
    return Request((4 * output.shape[-1],) if mve and read.dtype == "int8" else ())


def _average_pool(graph: Graph, op: Op, tensors: Sequence[Tensor], mve: bool) -> Request:
    del graph, op
    return Request(() if mve else (4 * tensors[-1].shape[-1],))


def _svdf(graph: Graph, op: Op, tensors: Sequence[Tensor], mve: bool) -> Request:
    del graph, op
    _, weights, output = tensors
    filters = weights.shape[0]
    # Two buffers of int32 as in the reference kernel, and for MVE the sums of the weights.
    return Request((4 * output.shape[0] * filters, 4 * math.prod(output.shape)), (4 * filters,)) if mve else Request()


def _lstm(graph: Graph, op: Op, tensors: Sequence[Tensor], mve: bool) -> Request:
    del graph, op, mve
    read, hidden, _ = tensors
    # Three of the reference kernel's four buffers, and eight vectors of biases.
    bias = 4 if read.dtype == "int8" else 8
    return Request(kept=(_LSTM_RECORD_BYTES, *[bias * hidden.shape[1]] * 8))


@dataclass(frozen=True, slots=True)
class _Formula:
    """`request(graph, op, tensors, mve)`: the tensors are the inputs at `places`, then the first output; each has at
    least `rank` axes, and the first is int8 or int16."""

    request: Callable[[Graph, Op, Sequence[Tensor], bool], Request | None]
    places: tuple[int, ...]
    rank: int


_FORMULAS: Mapping[str, _Formula] = {
    "AveragePool": _Formula(_average_pool, (0,), 4),
    "Conv": _Formula(_convolution, (0, 1), 4),
    "Gemm": _Formula(_fully_connected, (0, 1), 1),
    "MatMul": _Formula(_batch_matmul, (0,), 1),
    "tflite::SVDF": _Formula(_svdf, (0, 1), 1),
    "tflite::TRANSPOSE_CONV": _Formula(_transposed, (2, 1), 4),
    "tflite::UNIDIRECTIONAL_SEQUENCE_LSTM": _Formula(_lstm, (0, 18), 2),
}
ASKING = frozenset(
    {
        "AVERAGE_POOL_2D",
        "BATCH_MATMUL",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "FULLY_CONNECTED",
        "SVDF",
        "TRANSPOSE_CONV",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
    }
)
"""The operators, by their names in TFLite's schema, for which CMSIS-NN's kernels may ask for more than the reference
kernels."""
