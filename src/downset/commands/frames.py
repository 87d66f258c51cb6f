"""Reads frames from files and writes results to files, for `downset serve`, without holding either in memory as a
whole."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UsageError
from downset.graph.core import Graph
from downset.process.supervisor import tell
from downset.process.whole_files import check_output, copy_whole, part_beside
from downset.runtimes.feeds import most_input_bytes, read_array
from downset.text import counted, format_bytes

__all__ = ["Frames", "Results", "check_names", "finish_after", "read_frames"]

Array = npt.NDArray[Any]


class Frames:
    """`source`: an array with one frame for each index of its first axis, or the files of a folder in the order of
    their names."""

    def __init__(self, source: Array | list[Path], shape: tuple[int, ...], most_bytes: int = 0) -> None:
        self._source, self._shape, self._most_bytes = source, shape, most_bytes

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._source, np.ndarray):
            for frame in self._source:
                yield np.ascontiguousarray(frame).reshape(self._shape)
        else:
            for path in self._source:
                yield read_array(path, most_bytes=self._most_bytes)


def read_frames(source: str, graph: Graph) -> Frames:
    """The frames in a .npy file of shape [frames, *input], or [frames, *input without its batch of 1], or in the .npy
    and .npz files of a folder. Raises LoadError for files that cannot be read, UsageError for frames of another shape,
    type or number."""
    path = Path(source)
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix in (".npy", ".npz"))
        if not files:
            raise UsageError(f"folder {source} has no .npy or .npz file: numpy.save writes a frame")
        return Frames(files, (), most_input_bytes(graph))
    if len(graph.inputs) != 1:
        names = ", ".join(graph.tensors[tensor].name for tensor in graph.inputs)
        raise UsageError(f"the network has inputs {names}: give a folder of .npz files with these names")
    array, meta = read_array(path, most_bytes=most_input_bytes(graph), mapped=True), graph.tensors[graph.inputs[0]]
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{source} is a .npz file, which holds one frame: give its folder")
    without_batch = meta.shape[1:] if meta.shape[:1] == (1,) else meta.shape
    if array.shape[1:] not in (meta.shape, without_batch) or str(array.dtype) != meta.dtype:
        raise UsageError(
            f"{source} is {array.dtype} {list(array.shape)}; the input {meta.name!r} takes {meta.dtype} frames: "
            f"[frames, {', '.join(map(str, meta.shape))}]"
        )
    if not len(array):
        raise UsageError(f"{source} has no frames")
    return Frames(array, meta.shape)


_LONGEST_NAME = 60_000
"""Bytes of a name in a .npz file, which is a zip archive."""


def check_names(path: str, names: Iterable[str]) -> None:
    """Raise UsageError if arrays of these names cannot be written into the .npz file at `path`."""
    for name in names:
        if len(name.encode()) > _LONGEST_NAME:
            raise UsageError(
                f"output {path}: the name {name!r} is too long for a .npz file, which takes {_LONGEST_NAME:,} bytes"
            )


_COUNT_BYTES = 8


class Results:
    """Collects results for a file, which is written completely or not at all when the context ends.

    A .npy file holds the only output of all frames, [frames, *output]; a .npz file one such array for each output.
    After a failure of the pipeline the file holds the results that were finished, also where a library ends this
    process: a note names the files with the results, and begins with the number of those that were finished."""

    what = "the results, a row for each frame"
    """The content of the file, in words."""

    def __init__(self, path: str, graph: Graph, frames: int) -> None:
        check_output(path)
        self.path = path
        self._path, self._frames, self._count = Path(path), frames, 0
        self._metas = [graph.tensors[tensor] for tensor in graph.outputs]
        if self._path.suffix not in (".npy", ".npz") or (self._path.suffix == ".npy" and len(self._metas) > 1):
            wanted = ".npz" if len(self._metas) > 1 else ".npy or .npz"
            raise UsageError(
                f"output {path}: the network has {counted(len(self._metas), 'output')}, name a {wanted} file"
            )
        check_names(path, (meta.name for meta in self._metas))
        self._parts: dict[str, tuple[Path, Array]] = {}
        self._note: tuple[int, Path] | None = None

    def __enter__(self) -> Results:
        part = Path()
        try:
            for meta in self._metas:
                part = part_beside(self._path.absolute())
                array = np.lib.format.open_memmap(part, "w+", meta.dtype, (self._frames, *meta.shape))
                self._parts[meta.name] = (part, array)
                _reserve(part)
            self._write_note()
        except OSError as error:
            self.__exit__()
            with contextlib.suppress(OSError):  # only the beginning of the array was written
                part.unlink()
            sizes = format_bytes(sum(meta.nbytes for meta in self._metas) * self._frames)
            raise UsageError(f"cannot write {self._path}: {error.strerror or error}; it takes {sizes} bytes") from None
        return self

    def _write_note(self) -> None:
        number, name = tempfile.mkstemp(prefix="results-")
        self._note = number, Path(name)
        parts = {name: str(part) for name, (part, _) in self._parts.items()}
        record = {"path": str(self._path.absolute()), "named": self.path, "frames": self._frames, "parts": parts}
        os.write(number, bytes(_COUNT_BYTES) + json.dumps(record).encode())
        tell("unfinished", name)

    def __exit__(self, *_: object) -> None:
        if self._note is not None:
            (number, note), self._note = self._note, None
            tell("unfinished")
            os.close(number)
            with contextlib.suppress(OSError):
                note.unlink()
        for part, _array in self._parts.values():
            with contextlib.suppress(OSError):
                part.unlink()
        self._parts.clear()

    def add(self, outputs: Mapping[str, Array]) -> None:
        """Add the outputs of the next frame."""
        for name, (_, array) in self._parts.items():
            array[self._count] = outputs[name]
        self._count += 1
        if self._note is not None:
            os.pwrite(self._note[0], self._count.to_bytes(_COUNT_BYTES, "little"), 0)

    def finish(self) -> bool:
        """Write the file, and return whether it was: not if no frame was finished. Raises UsageError if the disk is
        full."""
        if not self._count:
            return False
        if self._path.suffix == ".npy" and self._count == self._frames:
            (part, array), *_ = self._parts.values()
            _flush(array)
            copy_whole(part, self._path)
            return True
        _pack(self._path, {name: array[: self._count] for name, (_, array) in self._parts.items()})
        return True


def finish_after(note: str) -> tuple[dict[str, Any], list[str]]:
    """Write the results that an ended process had finished, by its note, and remove its files. Returns keys of the
    command's JSON, and lines that say what was written. Raises UsageError if the disk is full."""
    try:
        data = Path(note).read_bytes()
        count, record = int.from_bytes(data[:_COUNT_BYTES], "little"), json.loads(data[_COUNT_BYTES:])
        parts = {name: Path(part) for name, part in record["parts"].items()}
        arrays = {name: np.load(part, mmap_mode="r")[:count] for name, part in parts.items()}
    except (OSError, ValueError):  # the process had ended before it wrote them, or had removed them
        return {}, []
    try:
        if count:
            _pack(Path(record["path"]), arrays)
    finally:
        for part in (*parts.values(), Path(note)):
            part.unlink(missing_ok=True)
    lines = [f"{count:,} of {counted(record['frames'], 'frame')} finished"]
    if not count:
        return {"files": []}, lines
    return {"files": [record["named"]]}, [*lines, f"written: {record['named']} ({Results.what})"]


def _pack(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write the file with these arrays in one step. Raises UsageError if it cannot be written."""
    beside = part_beside(path.absolute())
    try:
        _write_arrays(beside, path.suffix, arrays)
        copy_whole(beside, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _write_arrays(beside: Path, suffix: str, arrays: Mapping[str, Array]) -> None:
    if suffix == ".npy":
        (array,) = arrays.values()
        with beside.open("wb") as file:
            np.save(file, array, allow_pickle=False)
        return
    with zipfile.ZipFile(beside, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _reserve(part: Path) -> None:
    """Allocate a file's room on the disk now. A mapped page that later finds none would end the process by a signal."""
    if hasattr(os, "posix_fallocate"):
        with part.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, part.stat().st_size)


def _flush(array: Array) -> None:
    if isinstance(array, np.memmap):
        array.flush()
