"""The messages of the Open Inference Protocol, version 2, with its extension for tensors as bytes.

*Source*: the Open Inference Protocol (REST) and the Binary Tensor Data Extension, as Triton and KServe publish them.
Left out: models of strings (BYTES), shared memory, sequences, and lists of models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError, UsageError
from downset.graph.core import Graph

__all__ = [
    "HEADER_LENGTH",
    "IDEMPOTENCY_KEY",
    "NONE_FINITE",
    "InferRequest",
    "check_types",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "metadata",
    "most_request_bytes",
]

Array = npt.NDArray[Any]
HEADER_LENGTH = "Inference-Header-Content-Length"
IDEMPOTENCY_KEY = "Idempotency-Key"
NONE_FINITE = "has values that JSON cannot hold (NaN or infinite): ask for binary_data"
_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign}INT{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
_MOST_JSON_BYTES = 1 << 16
_MOST_MICROSECONDS = 10**15
_NUMBER_BYTES = 32
"""The most characters of a number in JSON, with what separates it from the next one."""


class _NamedTensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}
    data: Any = None


class _Wanted(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Infer(msgspec.Struct):
    inputs: list[_NamedTensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Wanted] = []


class _Answer(msgspec.Struct):
    outputs: list[_NamedTensor]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request: its inputs by name, and `outputs`, (name, whether as bytes) of what it asks for. `timeout_s`: None
    where it has no deadline of its own."""

    id: str
    inputs: dict[str, Array]
    outputs: tuple[tuple[str, bool], ...]
    timeout_s: float | None


def check_types(graph: Graph) -> None:
    """Raise UnsupportedError for a network with an element type that the protocol has no word for."""
    for tensor in (*graph.inputs, *graph.outputs):
        meta = graph.tensors[tensor]
        if meta.dtype not in _DATATYPES:
            raise UnsupportedError(f"{meta.name!r} is {meta.dtype}, which the Open Inference Protocol has no name for")


def metadata(graph: Graph, name: str) -> dict[str, Any]:
    """The answer to GET /v2/models/NAME."""

    def described(tensors: Sequence[int]) -> list[dict[str, Any]]:
        metas = [graph.tensors[tensor] for tensor in tensors]
        return [{"name": m.name, "datatype": _DATATYPES[m.dtype], "shape": list(m.shape)} for m in metas]

    inputs, outputs = described(graph.inputs), described(graph.outputs)
    return {"name": name, "versions": ["1"], "platform": "downset_pipeline", "inputs": inputs, "outputs": outputs}


def most_request_bytes(graph: Graph) -> int:
    """The most bytes of a request for this network, as JSON or with bytes behind it."""
    metas = [graph.tensors[tensor] for tensor in graph.inputs]
    return _MOST_JSON_BYTES + sum(math.prod(meta.shape) for meta in metas) * _NUMBER_BYTES


def decode_request(body: bytes, header_bytes: int | None, graph: Graph) -> InferRequest:
    """The request in a body. `header_bytes`: the length of its JSON if tensors are behind it; 0: the body is the bytes
    of the only input. Raises UsageError for any other body."""
    if header_bytes == 0:
        return _raw(body, graph)
    text, rest = (body, b"") if header_bytes is None else (body[:header_bytes], body[header_bytes:])
    try:
        sent = msgspec.json.decode(text, type=_Infer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the request is not one of the Open Inference Protocol: {error}") from None
    inputs: dict[str, Array] = {}
    left = memoryview(rest)
    for tensor in sent.inputs:
        if tensor.name in inputs:
            raise UsageError(f"input {tensor.name!r} is there twice")
        inputs[tensor.name], left = _array(tensor, left)
    if left.nbytes:
        raise UsageError(f"{left.nbytes} bytes are left behind the last tensor")
    return InferRequest(sent.id, inputs, _outputs_wanted(sent, graph), _timeout_s(sent.parameters))


def _raw(body: bytes, graph: Graph) -> InferRequest:
    if len(graph.inputs) != 1:
        raise UsageError(f"the network has {len(graph.inputs)} inputs: bytes without a header are those of one input")
    meta = graph.tensors[graph.inputs[0]]
    array = _of_bytes(meta.name, memoryview(body), np.dtype(meta.dtype), meta.shape)
    names = tuple((graph.tensors[tensor].name, True) for tensor in graph.outputs)
    return InferRequest("", {meta.name: array}, names, None)


def _outputs_wanted(sent: _Infer, graph: Graph) -> tuple[tuple[str, bool], ...]:
    default = sent.parameters.get("binary_data_output", False) is True
    names = [graph.tensors[tensor].name for tensor in graph.outputs]
    for wanted in sent.outputs:
        if wanted.name not in names:
            raise UsageError(f"there is no output {wanted.name!r}; there are {', '.join(names)}")
    if not sent.outputs:
        return tuple((name, default) for name in names)
    return tuple((one.name, one.parameters.get("binary_data", default) is True) for one in sent.outputs)


def _timeout_s(parameters: Mapping[str, Any]) -> float | None:
    microseconds = parameters.get("timeout")
    if microseconds is None:
        return None
    if type(microseconds) is not int or not 0 < microseconds <= _MOST_MICROSECONDS:
        raise UsageError(f"the parameter timeout is a number of microseconds from 1 to {_MOST_MICROSECONDS}")
    return microseconds / 1e6


def _array(tensor: _NamedTensor, left: memoryview) -> tuple[Array, memoryview]:
    """A tensor of a message, and the bytes behind it."""
    name = next((ours for ours, theirs in _DATATYPES.items() if theirs == tensor.datatype), None)
    if name is None:
        raise UsageError(f"{tensor.name!r} is {tensor.datatype!r}; one of {', '.join(_DATATYPES.values())} is possible")
    dtype, shape = np.dtype(name), tuple(tensor.shape)
    if min(shape, default=0) < 0:
        raise UsageError(f"{tensor.name!r} has the shape {tensor.shape}")
    nbytes = tensor.parameters.get("binary_data_size")
    if nbytes is None:
        return _of_numbers(tensor, dtype, shape), left
    if type(nbytes) is not int or not 0 <= nbytes <= left.nbytes:
        raise UsageError(f"{tensor.name!r} has {nbytes} bytes, and {left.nbytes} are behind the header")
    return _of_bytes(tensor.name, left[:nbytes], dtype, shape), left[nbytes:]


def _of_bytes(name: str, data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if data.nbytes != math.prod(shape) * dtype.itemsize:
        wanted = math.prod(shape) * dtype.itemsize
        raise UsageError(f"{name!r}: {dtype} {list(shape)} has {wanted} bytes, and {data.nbytes} came")
    array: Array = np.frombuffer(data, dtype.newbyteorder("<"))
    if dtype.kind == "b":  # any other byte would be neither true nor false
        array = np.frombuffer(data, np.uint8) != 0
    try:
        return array.reshape(shape).astype(dtype, copy=False)
    except (ValueError, OverflowError):  # no bytes, and an axis that no array can have, or too many of them
        raise UsageError(f"{name!r} has the shape {list(shape)}, which no array can have") from None


def _of_numbers(tensor: _NamedTensor, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    try:
        given = np.array([] if tensor.data is None else tensor.data)
        if given.size == 0:
            given = given.astype(dtype)
        if not (given.dtype.kind == dtype.kind == "b" or (given.dtype.kind in "iuf" and dtype.kind in "iuf")):
            raise ValueError
        with np.errstate(over="ignore", invalid="ignore"):
            array = given.astype(dtype)
        if (given != array).any() if dtype.kind in "iu" else not np.isfinite(array).all():
            raise ValueError
        return array.reshape(shape)
    except (ValueError, OverflowError):
        raise UsageError(f"{tensor.name!r}: its data is not {dtype} {list(shape)}") from None


def encode_response(name: str, request: InferRequest, outputs: Mapping[str, Array]) -> tuple[bytes, dict[str, str]]:
    """The body of an answer and its HTTP headers. Raises UsageError where it asks for NaN in JSON."""
    wanted = [(output, outputs[output], binary) for output, binary in request.outputs]
    tensors, parts = _encoded(wanted)
    head = msgspec.json.encode({"model_name": name, "model_version": "1", "id": request.id, "outputs": tensors})
    if not any(binary for _, binary in request.outputs):
        return head, {"Content-Type": "application/json"}
    return b"".join([head, *parts]), {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}


def encode_request(inputs: Mapping[str, Array], timeout_s: float) -> tuple[bytes, dict[str, str]]:
    """The body of a request with its inputs as bytes, and its HTTP headers."""
    tensors, parts = _encoded([(name, array, True) for name, array in inputs.items()])
    parameters = {"binary_data_output": True, "timeout": max(1, round(min(timeout_s * 1e6, _MOST_MICROSECONDS)))}
    head = msgspec.json.encode({"inputs": tensors, "parameters": parameters})
    return b"".join([head, *parts]), {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}


def _encoded(tensors: Sequence[tuple[str, Array, bool]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    described: list[dict[str, Any]] = []
    parts = []
    for name, array, binary in tensors:
        form: dict[str, Any] = {"name": name, "datatype": _DATATYPES[str(array.dtype)], "shape": list(array.shape)}
        if binary:
            parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            form["parameters"] = {"binary_data_size": array.nbytes}
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"output {name!r} {NONE_FINITE}")
        else:
            form["data"] = array.reshape(-1).tolist()
        described.append(form)
    return described, parts


def decode_response(body: bytes, header_bytes: int | None) -> dict[str, Array]:
    """The outputs in an answer by name. Raises UsageError for a body that is not one."""
    text, left = (
        (body, memoryview(b"")) if header_bytes is None else (body[:header_bytes], memoryview(body)[header_bytes:])
    )
    try:
        answer = msgspec.json.decode(text, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the answer is not one of the Open Inference Protocol: {error}") from None
    outputs = {}
    for tensor in answer.outputs:
        outputs[tensor.name], left = _array(tensor, left)
    return outputs
