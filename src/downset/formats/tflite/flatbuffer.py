"""The whole flatbuffer of a `.tflite` file, as objects that can be changed and written."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError
from downset.extras import optional_library
from downset.isolation import parsed
from downset.text import brief

__all__ = ["read_flatbuffer"]


def read_flatbuffer(path: str | os.PathLike[str]) -> tuple[Any, Any, Any]:
    """(ModelT, the library's utilities, its schema). A file whose tables are damaged anywhere is a LoadError; that is
    found out in the parsing process, for small files can unfold to any size."""
    utilities, schema = _libraries()
    held = Path(path).stat()
    try:
        _verify(str(Path(path).absolute()), held.st_size, held.st_mtime_ns)
    except LoadError as error:
        raise LoadError(f"{path} {error}") from None
    return _model(utilities, path), utilities, schema


def _libraries() -> tuple[Any, Any]:
    names = ("ai_edge_litert.tools.flatbuffer_utils", "ai_edge_litert.schema_py_generated")
    utilities, schema = (optional_library(name, what="writing .tflite files", extra="tflite") for name in names)
    return utilities, schema


def _model(utilities: Any, path: str | os.PathLike[str]) -> Any:
    """The library's own `read_model` leaves the file open for good."""
    return utilities.read_model_from_bytearray(bytearray(Path(path).read_bytes()))


@lru_cache(maxsize=8)
def _verify(path: str, size: int, changed_ns: int) -> None:
    """Each state of a file is verified once: `fit` writes several candidates from it."""
    del size, changed_ns
    parsed("downset.formats.tflite.flatbuffer", "verify_here", {"path": path})


def verify_here(path: str) -> dict[str, npt.NDArray[Any]]:
    """Read and write the file inside the parsing process."""
    utilities, _ = _libraries()
    try:
        nbytes = len(utilities.convert_object_to_bytearray(_model(utilities, path)))
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes the accessors raise anything
        raise LoadError(f"is damaged: its tables cannot be written again ({brief(error, 120)})") from None
    return {"bytes": np.array(nbytes)}
