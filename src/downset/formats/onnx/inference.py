"""Calls of protobuf, ONNX's shape inference and its checker in workers: some files make them crash."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError
from downset.extras import optional_library
from downset.formats.onnx.shapes import settle
from downset.formats.onnx.values import LARGEST_ELEMENTS
from downset.process.isolation import parsed, warm_workers
from downset.text import brief

__all__ = ["check_model", "infer_types", "try_reading", "warm"]

_SLOWEST_DISK = 10_000_000
"""Bytes per second of the slowest expected disk. The time limit is longer by the time it needs to read the file."""


def warm() -> None:
    """Start the server of workers and let it import this module and onnx, without waiting for it."""
    warm_workers(__name__)


def try_reading(path: Path) -> None:
    """Let protobuf read the file in a worker, before it reads the file in this process. Raises LimitReached
    if it takes too long or too much memory, UnsupportedError if it crashes. Other damage raises nothing here: the
    caller meets it when it reads the file."""
    try:
        status = path.stat()
    except OSError:
        return
    _tried(os.fspath(path.absolute()), status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _tried(path: str, inode: int, nbytes: int, written_ns: int) -> None:
    """Read the file in a worker, once for each state of it."""
    del inode, written_ns
    parsed(__name__, "parse_here", {"path": path}, more_s=nbytes / _SLOWEST_DISK)


def parse_here(path: str) -> dict[str, npt.NDArray[Any]]:
    """The part of `try_reading` that runs in a worker."""
    onnx = optional_library("onnx", what="reading .onnx files", extra="onnx")
    from google.protobuf.message import DecodeError

    with contextlib.suppress(DecodeError, ValueError, OSError):
        onnx.load(path, load_external_data=False)
    return {}


def infer_types(model: Any) -> Any:
    """A GraphProto with the `value_info` and `output` that ONNX infers for the model, completed by `settle`. The data
    of large weights are removed from `model`. Raises LoadError if ONNX refuses the model, and the errors of
    `parsed`."""
    for weight in model.graph.initializer:  # one of more elements is not a shape: its value is not needed
        elements = 1
        for extent in weight.dims:
            elements *= extent
        if elements > LARGEST_ELEMENTS:
            for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                weight.ClearField(name)
    inferred = type(model.graph)()
    inferred.ParseFromString(_asked("infer_here", model).tobytes())
    return inferred


def check_model(model: Any) -> str:
    """The first line of the error that ONNX's checker raises for a model; "" if the model is valid."""
    return bytes(_asked("check_here", model)).decode()


def _asked(function: str, model: Any) -> npt.NDArray[Any]:
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        path = Path(folder) / "model"
        path.write_bytes(model.SerializeToString())
        arrays, _ = parsed(__name__, function, {"path": str(path)})
    return arrays["answer"]


def _read(path: str) -> Any:
    onnx = optional_library("onnx", what="reading .onnx files", extra="onnx")
    return onnx.ModelProto.FromString(Path(path).read_bytes())


def infer_here(path: str) -> dict[str, npt.NDArray[Any]]:
    """The part of `infer_types` that runs in a worker."""
    import onnx
    from onnx import shape_inference

    try:
        inferred = shape_inference.infer_shapes(_read(path), data_prop=True)
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
        checker.check_model(_read(path))
    except checker.ValidationError as error:
        fault = str(error).splitlines()[0]
    return {"answer": np.frombuffer(fault.encode(), np.uint8)}
