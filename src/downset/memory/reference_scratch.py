"""Bytes of scratch that TFLite Micro's reference kernels ask of the arena, by operator.

*Source*: the Prepare functions of tensorflow/lite/micro/kernels (tflite-micro 90b983c2, August 2026), and for MEAN and
SUM those of the wheel, which ask for more. Those that are not named here ask for nothing. Custom operators and LSTMs
are unknown: their kernels are not part of that list, or their sizes do not follow from the file's tensors alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.memory.kernel_needs import kernel_needs
from downset.memory.records import align_up

__all__ = ["reference_scratch", "scratch_of_operators"]

_ALIGNMENT = 16
_POINTER_BYTES = 8
_UNKNOWN = ("tflite.custom::", "tflite::UNIDIRECTIONAL_SEQUENCE_LSTM", "tflite::BIDIRECTIONAL", "tflite::LSTM")
_Request = tuple[int, ...]


def scratch_of_operators(graph: Graph, kernels: str) -> tuple[dict[int, int], tuple[str, ...]]:
    """(by operator, the bytes of scratch that it asks for with these kernels, aligned; the operators of which that is
    not known). A library's kernels ask for what the formulas of `kernel_needs` say, and at most for what the reference
    kernels ask for in addition."""
    needs = kernel_needs(graph, kernels)
    scratch, unknown = {}, list(needs.unknown)
    for index, op in enumerate(graph.ops):
        request = reference_scratch(graph, op)
        if request is None:
            unknown.append(f"{op.kind.removeprefix('tflite::').removeprefix('tflite.')} {op.name!r}")
            continue
        nbytes = sum(align_up(one, _ALIGNMENT) for one in request) + sum(needs.buffers.get(index, ()))
        if nbytes:
            scratch[index] = nbytes
    return scratch, tuple(dict.fromkeys(unknown))


def reference_scratch(graph: Graph, op: Op) -> _Request | None:
    """The buffers that the reference kernel asks for, without alignment; None where that is not known."""
    if op.kind.startswith(_UNKNOWN):
        return None
    formula = _FORMULAS.get(op.kind)
    if formula is None:
        return ()
    tensors = [graph.tensors[tensor] for tensor in (*op.inputs, *op.outputs[:1]) if tensor != ABSENT]
    return formula(op, tensors) if len(tensors) > 1 else None


def _elements(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def _packed_weights(op: Op, tensors: list[Tensor]) -> _Request:
    """Weights of four bits are unpacked."""
    del op
    return (_elements(tensors[1]),) if tensors[1].dtype == "int4" else ()


def _pointers(op: Op, tensors: list[Tensor]) -> _Request:
    del tensors
    return (_POINTER_BYTES * len(op.inputs),)


def _mean(op: Op, tensors: list[Tensor]) -> _Request:
    """Earlier versions resolve the axes in scratch, too; the most of both counts."""
    sums = (4 * _elements(tensors[-1]),) if tensors[0].dtype in ("int8", "uint8", "int16") else ()
    return *sums, *_extremum(op, tensors)


def _extremum(op: Op, tensors: list[Tensor]) -> _Request:
    del op
    return 4 * len(tensors[0].shape), 4 * _elements(tensors[1])


def _mirrored(op: Op, tensors: list[Tensor]) -> _Request:
    rank = len(tensors[0].shape)
    return (4 * rank, 4 * rank) if op.attrs.get("mode") in ("reflect", "symmetric") else ()


def _svdf(op: Op, tensors: list[Tensor]) -> _Request:
    del op
    batch, filters = tensors[0].shape[0], tensors[1].shape[0]
    return (4 * batch * filters, *(() if tensors[0].dtype == "float32" else (4 * _elements(tensors[-1]),)))


def _transposed(op: Op, tensors: list[Tensor]) -> _Request:
    del op
    dtype, result = tensors[2].dtype if len(tensors) > 3 else tensors[-1].dtype, tensors[-1]
    if dtype == "float32":
        return ()
    return (8 * _elements(result), 8 * result.shape[-1]) if dtype == "int16" else (4 * _elements(result),)


_FORMULAS: Mapping[str, Callable[[Op, list[Tensor]], _Request]] = {
    "Conv": _packed_weights,
    "Gemm": _packed_weights,
    "Pad": _mirrored,
    "ReduceMax": _extremum,
    "ReduceMean": _mean,
    "ReduceMin": _extremum,
    "ReduceSum": _mean,
    "Sum": _pointers,
    "tflite::SVDF": _svdf,
    "tflite::TRANSPOSE_CONV": _transposed,
}
