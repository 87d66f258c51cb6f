"""`.tflite` -> Graph, without TensorFlow. Weights are decoded only when they are needed.

A file is not trusted: every count is compared with the file's size before it is used, and every error of the flatbuffer
accessors in a damaged file becomes a LoadError.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from downset.errors import LoadError
from downset.extras import optional_library
from downset.formats.open_sizes import Axes
from downset.formats.tflite.flatbuffer import stored_flatbuffer
from downset.formats.tflite.graph_reader import TfliteGraphReader
from downset.graph.core import Graph
from downset.process.file_ranges import FileState, file_state
from downset.results.two_memories import TwoMemories

__all__ = [
    "body_operators",
    "builtin_operators",
    "input_axes",
    "load_tflite",
    "moves_between_memories",
    "resource_variables",
    "states_offsets",
    "tensor_counts",
    "two_memories",
]

_MOST_KEPT = 1 << 20
"""The most bytes of a file whose graph is kept. A graph does not hold its file, but as much as the tables in it."""
_Answer = TypeVar("_Answer")
_DAMAGE = (IndexError, ValueError, TypeError, AttributeError, KeyError, OverflowError, ZeroDivisionError)


def load_tflite(path: str | os.PathLike[str], *, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """The main subgraph of a TFLite file. `shapes` fixes input shapes by name; LiteRT then resolves the others.

    Raises LoadError for a missing or damaged file and for sizes that stay open, UnsupportedError without
    the extra `tflite`.
    """
    given = tuple(sorted((name, tuple(shape)) for name, shape in (shapes or {}).items()))
    try:
        state = file_state(os.stat(path))  # noqa: PTH116  the path may be a string
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    return (_kept_graph if state[1] <= _MOST_KEPT else _graph)(str(path), state, given)


def _graph(path: str, state: FileState, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Graph:
    del state
    return _read(Path(path), lambda reader: reader.graph(dict(shapes))).check()


_kept_graph = lru_cache(maxsize=16)(_graph)
"""A small file is read once for each state of it: steps of a fit ask for the same graphs."""


def input_axes(path: Path) -> dict[str, Axes]:
    """The sizes of a file's inputs, by name. Raises what `load_tflite` raises for a damaged file."""
    return _read(path, TfliteGraphReader.input_axes)


def _read(path: Path, ask: Callable[[TfliteGraphReader], _Answer]) -> _Answer:
    """The answer of a file's reader. Raises LoadError for a missing or damaged file."""
    schema = _schema()
    try:
        data, state = _content(path)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    if len(data) < 8 or data[4:8] != b"TFL3":
        raise LoadError(f"{path} is not a TFLite model (no TFL3 mark); is the file complete?")
    try:
        return ask(TfliteGraphReader(schema, data, state, path))
    except struct.error:
        raise LoadError(f"{path} is damaged: it refers beyond its {len(data):,} bytes; is the file complete?") from None
    except _DAMAGE as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} while reading it ({error})") from None
    except RecursionError:
        raise LoadError(f"{path} is damaged: its tables refer to each other in a circle") from None


def _content(path: Path) -> tuple[bytes, FileState]:
    with path.open("rb") as file:
        return file.read(), file_state(os.fstat(file.fileno()))


def _reader(path: str | os.PathLike[str]) -> TfliteGraphReader:
    return TfliteGraphReader(_schema(), *_content(Path(path)), Path(path))


def builtin_operators(path: str | os.PathLike[str]) -> list[str]:
    """The kinds of operators in all subgraphs of a file that `load_tflite` reads, sorted. They have the schema's names;
    custom operators are "custom.NAME"."""
    return _reader(path).operator_names()


def body_operators(path: str | os.PathLike[str]) -> list[str]:
    """The kinds of operators in the bodies of a file that `load_tflite` reads: all subgraphs but the main one. They are
    named as `builtin_operators` names them."""
    return _reader(path).operator_names(1)


def states_offsets(path: str | os.PathLike[str]) -> bool:
    """Whether a file that `load_tflite` reads states the places of its tensors in TFLite Micro's arena."""
    model, _, _ = stored_flatbuffer(path)
    return any(model.Metadata(index).Name() == b"OfflineMemoryAllocation" for index in range(model.MetadataLength()))


def tensor_counts(path: str | os.PathLike[str]) -> tuple[int, int]:
    """(tensors of the main graph of a file that `load_tflite` reads, those of them that hold no constant)."""
    model, _, _ = stored_flatbuffer(path)
    main = model.Subgraphs(0)
    buffers = [model.Buffers(main.Tensors(index).Buffer()) for index in range(main.TensorsLength())]
    return len(buffers), sum(not buffer.DataLength() and not buffer.Size() for buffer in buffers)


def resource_variables(path: str | os.PathLike[str]) -> int:
    """The number of different variables, by name, that a file which `load_tflite` reads keeps from run to run."""
    return len(_reader(path).variable_names())


def two_memories(path: str | os.PathLike[str]) -> TwoMemories | None:
    """The record of the two memories of a file with moves; None for any other file. Raises LoadError for a damaged
    one."""
    return _read(Path(path), TfliteGraphReader.two_memories)


def moves_between_memories(path: str | os.PathLike[str]) -> int:
    """The number of operators that move a tensor from one memory to the other, of a file fitted to two memories; 0 for
    any other file."""
    return sum("move" in op.attrs for op in load_tflite(path).ops)


def _schema() -> Any:
    return optional_library("ai_edge_litert.schema_py_generated", what="reading .tflite files", extra="tflite")
