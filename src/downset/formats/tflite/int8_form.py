"""The int8 form of a uint8 file, where one exists that computes the same. TFLite Micro runs int8 but not uint8.

Source: ours. The kernels' arithmetic is that of TFLite's reference kernels.
Names: a *threshold* is the least sum of a convolution that gives an output value.
Complexity: linear in the file, with 256 thresholds for each convolution.
Deviations: 128 is subtracted from every uint8 value and zero point. Their differences stay the same, and so do the sums
    of products of differences. The form is exact where weights have the zero point 128 (int8 weights have 0) and no
    value 0 (it would be -128, and int8 weights begin at -127), and where the kernels of both types round alike.
    Convolutions compute their multiplier from a float product of scales in uint8 and from a double product in int8: the
    two are compared at every threshold. An AveragePool rounds halves up in uint8 and away from zero in int8: windows
    with an odd number of positions have no halves.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.tflite.flatbuffer import Flatbuffer, read_flatbuffer
from downset.process.whole_files import write_whole

__all__ = ["fault", "less_128", "thresholds", "uses_uint8", "write_int8_form"]

_UINT8, _INT8 = 3, 9
_SHIFT = 128
_Q31 = 31


def uses_uint8(path: str | os.PathLike[str]) -> bool:
    """Whether a convolution or fully connected operator of the file's main subgraph reads uint8. Raises LoadError for a
    damaged file."""
    file = read_flatbuffer(path)
    main = file.model.subgraphs[0]
    return any(
        main.tensors[tensor].type == _UINT8
        for op in main.operators
        if _name(file, op) in _WEIGHTED
        for tensor in op.inputs[:1]
    )


def fault(path: str | os.PathLike[str]) -> str | None:
    """The first reason why the file has no exact int8 form; None if it has one. Raises LoadError for a damaged file."""
    return _fault(read_flatbuffer(path))


def _fault(file: Flatbuffer) -> str | None:
    model = file.model
    main = model.subgraphs[0]
    if len(model.subgraphs) > 1:
        return "it has several subgraphs"
    for tensor in main.tensors:
        if tensor.type == _UINT8 and (tensor.quantization is None or len(_listed(tensor.quantization.zeroPoint)) != 1):
            return f"tensor {_text(tensor.name)!r} is not quantised by one scale"
    for op in main.operators:
        name = _name(file, op)
        if any(main.tensors[tensor].type == _UINT8 for tensor in (*op.inputs, *op.outputs) if tensor >= 0):
            reason = _EXACT[name](model, main, op) if name in _EXACT else "is not known to compute the same in int8"
            if reason:
                return f"{name} {reason}"
    return None


def write_int8_form(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Write the int8 form of the file at `path` to `output`. Its inputs and outputs are int8; `less_128` converts
    values of the file's uint8 inputs and outputs to them.

    Raises UnsupportedError that names the first thing without an exact int8 form, LoadError for a damaged file."""
    file = read_flatbuffer(path)
    model, reason = file.model, _fault(file)
    if reason is not None:
        raise UnsupportedError(f"{Path(path).name} has no exact int8 form: {reason}")
    done: set[int] = set()
    for tensor in model.subgraphs[0].tensors:
        if tensor.type != _UINT8:
            continue
        tensor.type = _INT8
        tensor.quantization.zeroPoint = np.asarray(tensor.quantization.zeroPoint, np.int64) - _SHIFT
        data = model.buffers[tensor.buffer].data
        if data is not None and len(data) and tensor.buffer not in done:
            done.add(tensor.buffer)
            model.buffers[tensor.buffer].data = np.asarray(data, np.uint8) ^ np.uint8(_SHIFT)
    for code in model.operatorCodes:
        code.version = max(code.version, _VERSIONS.get(_code(file, code), 2))
    write_whole(output, file.packed(), source=Path(path))


_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "RESHAPE": 1}
"""The first version of an operator that takes int8. It is 2 for operators that are not listed."""
_WEIGHTED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"})


def _weighted(model: Any, main: Any, op: Any) -> str:
    """The reason why an operator with weights has no exact int8 form; "" if its weights have one."""
    read, weights = (main.tensors[int(tensor)] for tensor in op.inputs[:2])
    zeros = [int(zero) for zero in _listed(weights.quantization.zeroPoint)]
    if weights.type != _UINT8 or read.type != _UINT8 or set(zeros) != {_SHIFT}:
        shown = ", ".join(map(str, sorted(set(zeros)))) or "none"
        return f"has weights {_text(weights.name)!r} of zero point {shown}; int8 weights are symmetric, which takes 128"
    data = model.buffers[weights.buffer].data
    if data is None or not len(data):
        return f"has weights {_text(weights.name)!r} that are not constant"
    if int(np.asarray(data, np.uint8).min()) == 0:
        return f"has a weight of 0 in {_text(weights.name)!r}, which would be -128; int8 weights end at -127"
    return ""


def _convolution(model: Any, main: Any, op: Any) -> str:
    reason = _weighted(model, main, op)
    if reason:
        return reason
    tensors = (main.tensors[int(tensor)] for tensor in (op.inputs[0], op.inputs[1], op.outputs[0]))
    read, weights, result = (np.float32(tensor.quantization.scale[0]) for tensor in tensors)
    zero = int(main.tensors[int(op.outputs[0])].quantization.zeroPoint[0])
    before = float(np.float32(read * weights)) / float(result)
    after = float(read) * float(weights) / float(result)
    if thresholds(before, zero) != thresholds(after, zero):
        return "has scales whose product rounds to another multiplier in int8, and some sums to another value"
    return ""


@lru_cache(maxsize=1024)
def thresholds(scale: float, zero: int) -> tuple[tuple[int, ...], ...]:
    """The least sums of a convolution that are rounded to each of the 256 output values of a uint8 tensor with the zero
    point `zero`, or to those of its int8 form. `scale` times a sum is the output before rounding; TFLite's kernels hold
    `scale` in fixed point. There are two tuples: with rounding in two steps, as in the reference kernels, and in one
    step, as in other kernels."""
    mantissa, exponent = math.frexp(scale)
    multiplier = math.floor(mantissa * (1 << _Q31) + 0.5)
    if multiplier == 1 << _Q31:
        multiplier, exponent = multiplier // 2, exponent + 1
    tables = []
    for rounded in (_in_two_steps, _in_one_step):
        row = []
        for value in range(-zero, 256 - zero):
            low = math.floor((value - 0.5) / scale) - 4
            high = low + 16 + math.ceil(2 / scale)
            while low < high:  # a larger sum never gives a lower value
                middle = (low + high) // 2
                if rounded(middle, multiplier, exponent) >= value:
                    high = middle
                else:
                    low = middle + 1
            row.append(low)
        tables.append(tuple(row))
    return tuple(tables)


def _in_two_steps(total: int, multiplier: int, exponent: int) -> int:
    """The output for a sum by TFLite's SaturatingRoundingDoublingHighMul, then its RoundingDivideByPOT."""
    product = (total << max(exponent, 0)) * multiplier
    nudged = product + ((1 << 30) if product >= 0 else 1 - (1 << 30))
    high = nudged >> _Q31 if nudged >= 0 else -(-nudged >> _Q31)
    right = max(-exponent, 0)
    remainder, mask = high & ((1 << right) - 1), (1 << right) - 1
    return (high >> right) + (remainder > (mask >> 1) + (high < 0))


def _in_one_step(total: int, multiplier: int, exponent: int) -> int:
    shift = _Q31 - exponent
    return (total * multiplier + (1 << (shift - 1))) >> shift


def _average(model: Any, main: Any, op: Any) -> str:
    del model
    options = op.builtinOptions
    read, result = (main.tensors[int(tensor)].shape for tensor in (op.inputs[0], op.outputs[0]))
    window = (options.filterHeight, options.filterWidth)
    # With the padding SAME a window may hold any number of positions, unless the only window is the whole input.
    padded = (
        options.padding == 0 and window != (1, 1) and not (tuple(read[1:3]) == window and tuple(result[1:3]) == (1, 1))
    )
    if window[0] * window[1] % 2 == 0 or padded:
        return "divides by an even number of positions, where int8 rounds halves another way"
    return "" if _same_scale(main, op) else "changes the scale"


def _alike(model: Any, main: Any, op: Any) -> str:
    del model
    return "" if _same_scale(main, op) else "joins or moves values of different scales"


def _same_scale(main: Any, op: Any) -> bool:
    all_of = [main.tensors[int(tensor)] for tensor in (*op.inputs, *op.outputs) if tensor >= 0]
    kept = [tensor for tensor in all_of if tensor.type == _UINT8]
    forms = {(float(tensor.quantization.scale[0]), int(tensor.quantization.zeroPoint[0])) for tensor in kept}
    return len(forms) == 1


def _same_arithmetic(model: Any, main: Any, op: Any) -> str:
    """Always "": both types compute the same. ADD computes on differences from zero points, with multipliers that only
    the scales give. SOFTMAX computes on differences from the largest value, and the lowest output of both types is the
    same probability."""
    del model, main, op
    return ""


_EXACT: Mapping[str, Callable[[Any, Any, Any], str]] = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _convolution,
    # The kernels of both types compute the multiplier from the float product of the scales.
    "FULLY_CONNECTED": _weighted,
    "ADD": _same_arithmetic,
    "SOFTMAX": _same_arithmetic,
    "AVERAGE_POOL_2D": _average,
    "MAX_POOL_2D": _alike,
    "CONCATENATION": _alike,
    "RESHAPE": _alike,
    "SPLIT": _alike,
    "SLICE": _alike,
    "STRIDED_SLICE": _alike,
    "SQUEEZE": _alike,
}
"""Functions that return the reason why an operator of a kind has no exact int8 form; "" if it has one."""


def _name(file: Flatbuffer, op: Any) -> str:
    return _code(file, file.model.operatorCodes[op.opcodeIndex])


def _code(file: Flatbuffer, code: Any) -> str:
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    return next(
        str(name) for name, value in vars(file.schema.BuiltinOperator).items() if value == number and name[0] != "_"
    )


def _listed(value: Any) -> Any:
    return () if value is None else value


def _text(value: Any) -> str:
    return str(value.decode(errors="replace")) if isinstance(value, bytes) else str(value)


def less_128(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values less 128, as int8, if they are uint8; values of other types unchanged."""
    return (value ^ np.uint8(128)).view(np.int8) if value.dtype == np.uint8 else value
