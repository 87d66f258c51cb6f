"""Calls of protobuf, ONNX's shape inference and its checker in workers: some files make them crash."""

from __future__ import annotations

import math
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError
from downset.extras import optional_library
from downset.formats.onnx.bodies import tensors_of
from downset.formats.onnx.shapes import settle
from downset.formats.onnx.skeleton import TOKEN, left_out, skeleton
from downset.formats.onnx.values import LARGEST_ELEMENTS
from downset.process.file_ranges import file_state
from downset.process.isolation import parsed, warm_workers
from downset.text import brief

__all__ = ["check_model", "infer_types", "read_skeleton", "warm"]

_MOST_KEPT = 1 << 20
"""The most bytes of a skeleton that is kept, and not made again for each step."""
_SLOWEST_DISK = 10_000_000
"""Bytes per second of the slowest expected disk. The time limit is longer by the time it needs to read the file."""


def warm() -> None:
    """Start the server of workers and let it import this module and onnx, without waiting for it."""
    warm_workers(__name__)


def read_skeleton(path: str | os.PathLike[str]) -> Any:
    """The file's ModelProto without the data of large tensors (`skeleton`). A worker reads the file first, once for
    each state of it. Raises LoadError for a file that is damaged or cannot be read, LimitReached if the worker takes
    too long or too much memory, UnsupportedError if it crashes."""
    place = os.path.abspath(path)  # noqa: PTH100  links stay
    try:
        with open(place, "rb") as file:  # noqa: PTH123
            state = file_state(os.fstat(file.fileno()))
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    try:
        kept = _skeleton(place, state)
        return _message(skeleton(place) if kept is None else kept)
    except LoadError as error:
        raise LoadError(f"{path} is not an ONNX model or is damaged (", error.message, ")") from None


@lru_cache(maxsize=64)
def _skeleton(path: str, state: tuple[int, int, int]) -> bytes | None:
    """The skeleton that a worker has read; None for one that is too large to be kept, and is read here then."""
    arguments = {"path": path, "token": TOKEN.hex()}
    answer, _ = parsed(__name__, "parse_here", arguments, more_s=state[1] / _SLOWEST_DISK)
    return answer["skeleton"].tobytes() if "skeleton" in answer else None


def parse_here(path: str, token: str) -> dict[str, npt.NDArray[Any]]:
    """The part of `read_skeleton` that runs in a worker."""
    data = skeleton(path, bytes.fromhex(token))
    _message(data)
    return {"skeleton": np.frombuffer(data, np.uint8)} if len(data) <= _MOST_KEPT else {}


def _message(data: bytes) -> Any:
    """The ModelProto in these bytes. Raises LoadError where protobuf refuses them."""
    onnx = optional_library("onnx", what="reading .onnx files", extra="onnx")
    from google.protobuf.message import DecodeError

    try:
        return onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError) as error:
        raise LoadError(brief(error, 120)) from None


_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_SIZES = (6, 7)
"""The element types of tensors from which shapes may follow: int32 and int64."""


def infer_types(model: Any) -> Any:
    """A GraphProto with the `value_info` and `output` that ONNX infers for the model, completed by `settle`. The data
    of large weights are removed from `model`. Raises LoadError if ONNX refuses the model, and the errors of
    `parsed`."""
    for weight in model.graph.initializer:  # one of more elements is not a shape: its value is not needed
        if math.prod(weight.dims) > LARGEST_ELEMENTS or left_out(weight) is not None:
            for name in _DATA:
                weight.ClearField(name)
    for tensor in tensors_of(model):
        large = left_out(tensor)
        if large is not None and tensor.data_type in _SIZES:
            tensor.raw_data = large.read()
        elif large is not None:
            tensor.ClearField("raw_data")
    inferred, data = type(model.graph)(), model.SerializeToString()
    inferred.ParseFromString((_inferred if len(data) <= _MOST_KEPT else _inferred.__wrapped__)(data))
    return inferred


@lru_cache(maxsize=16)
def _inferred(data: bytes) -> bytes:
    return _asked("infer_here", data).tobytes()


def check_model(data: bytes) -> str:
    """The first line of the error that ONNX's checker raises for a serialised model; "" if the model is valid."""
    return bytes(_asked("check_here", data)).decode()


def _asked(function: str, data: bytes) -> npt.NDArray[Any]:
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        path = Path(folder) / "model"
        path.write_bytes(data)
        arrays, _ = parsed(__name__, function, {"path": str(path)})
    return arrays["answer"]


def infer_here(path: str) -> dict[str, npt.NDArray[Any]]:
    """The part of `infer_types` that runs in a worker."""
    import onnx
    from onnx import shape_inference

    try:
        model = onnx.ModelProto.FromString(Path(path).read_bytes())
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError, TypeError) as error:
        raise LoadError(f"ONNX's shape inference refuses it: {brief(error)}") from None
    settle(onnx, inferred)
    types = onnx.GraphProto(value_info=inferred.graph.value_info, output=inferred.graph.output)
    return {"answer": np.frombuffer(types.SerializeToString(), np.uint8)}


def check_here(path: str) -> dict[str, npt.NDArray[Any]]:
    """The part of `check_model` that runs in a worker."""
    from onnx import checker

    fault = ""
    try:
        checker.check_model(Path(path).read_bytes())
    except checker.ValidationError as error:
        fault = str(error).splitlines()[0]
    return {"answer": np.frombuffer(fault.encode(), np.uint8)}
