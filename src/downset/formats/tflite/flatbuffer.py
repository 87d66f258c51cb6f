"""The whole flatbuffer of a `.tflite` file, as objects that can be changed and written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError
from downset.extras import optional_library
from downset.process.isolation import parsed
from downset.text import brief

__all__ = ["Flatbuffer", "read_flatbuffer", "stored_flatbuffer"]


@dataclass(frozen=True, slots=True)
class Flatbuffer:
    """The tables of a file. `model`: its ModelT, to be changed in place. `schema`, `utilities`: the library's modules
    `schema_py_generated`, which has the classes of tables, and `flatbuffer_utils`."""

    model: Any
    schema: Any
    utilities: Any

    def add_buffer(self, content: bytes) -> int:
        """Add a buffer that holds `content`, and return its index."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(content, np.uint8)
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    @property
    def kinds(self) -> dict[int, str]:
        """The names of builtin operators by number."""
        return {number: name for name, number in vars(self.schema.BuiltinOperator).items() if name[0] != "_"}

    def metadata(self, name: str) -> bytes | None:
        """The content of the metadata of this name; None where there are none."""
        for entry in self.model.metadata or ():
            data = self.model.buffers[entry.buffer].data
            if entry.name in (name, name.encode()) and data is not None:
                return np.asarray(data, np.uint8).tobytes()
        return None

    def packed(self) -> bytes:
        """The content of a file with these tables."""
        return bytes(self.utilities.convert_object_to_bytearray(self.model))


def read_flatbuffer(path: str | os.PathLike[str]) -> Flatbuffer:
    """The tables of the file. Raises LoadError if one of them is damaged. A worker tests this first, because a small
    damaged file can unfold to any size; so the errors of `parsed` are raised as well."""
    utilities, schema = _libraries()
    _verified(path)
    return Flatbuffer(_model(utilities, path), schema, utilities)


def stored_flatbuffer(path: str | os.PathLike[str]) -> tuple[Any, bytes, Any]:
    """(the root table, the bytes, the library's module `schema_py_generated`) of a file that `read_flatbuffer` takes;
    raises its errors. The library's own reader is not used, because it resolves bytes outside the flatbuffer, cut short
    where the file ends, in place of those that a runtime takes."""
    _, schema = _libraries()
    _verified(path)
    data = Path(path).read_bytes()
    return schema.Model.GetRootAs(data, 0), data, schema


def _verified(path: str | os.PathLike[str]) -> None:
    state = Path(path).stat()
    try:
        _verify(str(Path(path).absolute()), state.st_size, state.st_mtime_ns)
    except LoadError as error:
        raise LoadError(f"{path} ", error.message) from None


def _libraries() -> tuple[Any, Any]:
    names = ("ai_edge_litert.tools.flatbuffer_utils", "ai_edge_litert.schema_py_generated")
    utilities, schema = (optional_library(name, what="writing .tflite files", extra="tflite") for name in names)
    return utilities, schema


def _model(utilities: Any, path: str | os.PathLike[str]) -> Any:
    """The file's ModelT. The library's own `read_model` is not used, because it never closes the file."""
    return utilities.read_model_from_bytearray(bytearray(Path(path).read_bytes()))


@lru_cache(maxsize=8)
def _verify(path: str, size: int, changed_ns: int) -> None:
    """Run `verify_here` in a worker, once for each state of a file: `fit` writes several candidates from one
    file."""
    del size, changed_ns
    parsed("downset.formats.tflite.flatbuffer", "verify_here", {"path": path})


def verify_here(path: str) -> dict[str, npt.NDArray[Any]]:
    """Read the file and serialise it again, in a worker. Raises LoadError if its tables are damaged."""
    utilities, _ = _libraries()
    try:
        nbytes = len(utilities.convert_object_to_bytearray(_model(utilities, path)))
    except MemoryError:
        raise
    except Exception as error:  # accessors of a damaged file raise errors of any class
        raise LoadError(f"is damaged: its tables cannot be written again ({brief(error, 120)})") from None
    return {"bytes": np.array(nbytes)}
