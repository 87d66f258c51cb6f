"""Reads files into graphs. A reader, and the libraries that it needs, are imported for a file that it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from downset.errors import LimitReached, LoadError, UnsupportedError, UsageError
from downset.extras import optional_library
from downset.formats.onnx import LARGEST_FILE
from downset.formats.open_sizes import Axes, OpenSizes, settled, settled_beside
from downset.graph.core import Graph
from downset.graph.lawful_kinds import with_lawful_kinds
from downset.messages import Message, Setting, joined
from downset.process.file_ranges import file_state
from downset.process.limits import machine_bytes
from downset.results.sizes import OpenTensor
from downset.text import EXPORT, check_path, format_size

__all__ = [
    "READERS",
    "FileReader",
    "check_readable",
    "fork_workers",
    "known_sizes",
    "load",
    "load_open",
    "load_stdin",
    "open_sizes",
    "refused",
    "shared_sizes",
]

_LIBRARIES = {".onnx": ("onnx",), ".tflite": ("ai_edge_litert.schema_py_generated",), ".pt2": ()}
"""By suffix of files that workers read or run: what the caller's process imports as they do."""
_READ_BY_WORKERS = (".onnx",)
Shapes = Mapping[str, tuple[int, ...]]
Dims = Mapping[str, int]
OpenNetwork = tuple[Graph, tuple[OpenTensor, ...], tuple[OpenTensor, ...]]
"""A graph, and its inputs and outputs as the file states them."""


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files of one suffix: `load(path)`, with `shapes=` where inputs can be resized, and with `trust=` where
    files may contain code. `axes(path)`: the sizes of the inputs, by name, where they can be resized.
    `load_open(path)`: the graph with its inputs and outputs while sizes are open."""

    load: Callable[..., Graph]
    axes: Callable[[Path], Mapping[str, Axes]] | None = None
    load_open: Callable[[Path], OpenNetwork] | None = None
    brings_code: bool = False


def _load_onnx(path: Path, **options: Any) -> Graph:
    from downset.formats.onnx.read import load_onnx

    return load_onnx(path, **options)


def _load_tflite(path: Path, **options: Any) -> Graph:
    from downset.formats.tflite.read import load_tflite

    return load_tflite(path, **options)


def _onnx_axes(path: Path) -> Mapping[str, Axes]:
    from downset.formats.onnx.model_file import input_axes, onnx_library

    onnx_library()
    return input_axes(path)


def _load_open(path: Path) -> OpenNetwork:
    from downset.formats.onnx.read import load_open

    return load_open(path)


def _tflite_axes(path: Path) -> Mapping[str, Axes]:
    from downset.formats.tflite.read import input_axes

    return input_axes(path)


def _load_exported(path: Path, **options: Any) -> Graph:
    from downset.formats.torch.read import load_exported

    return load_exported(path, **options)


def _load_plain(path: Path | str) -> Graph:
    from downset.formats.plain import load_plain

    return load_plain(path)


READERS: Mapping[str, FileReader] = {
    ".onnx": FileReader(_load_onnx, _onnx_axes, _load_open),
    ".tflite": FileReader(_load_tflite, _tflite_axes),
    ".pt2": FileReader(_load_exported, brings_code=True),
    ".json": FileReader(_load_plain),
}
"""The readers, by suffix in small letters."""


def fork_workers(path: str | os.PathLike[str], *, run: bool) -> None:
    """Fork the server of workers for a command that is about to read this file, or to `run` it too, with the library by
    which both read it. Where no worker will be asked nothing is forked, nor in a program that runs a command in its own
    process: it is not ours."""
    suffix = Path(path).suffix.lower()
    if suffix not in (_LIBRARIES if run else _READ_BY_WORKERS):
        return
    from downset.process.isolation import fork_server
    from downset.process.one_thread import import_numpy
    from downset.process.supervisor import watched

    if not watched() or not os.path.isfile(path):  # noqa: PTH113  which no name makes fail
        return
    import_numpy()
    for library in _LIBRARIES[suffix]:
        with suppress(UnsupportedError):  # the call that needs it meets the error
            optional_library(library, what="", extra="")
    fork_server()


def load(
    path: str | os.PathLike[str],
    *,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    trust: bool = False,
    folded: bool = False,
) -> Graph:
    """The graph in a .onnx, .tflite, .pt2 (ExportedProgram) or plain .json file, checked.

    `shapes` fixes the shapes of inputs by name, and `dims` sizes that the file leaves open: by their name in the file,
    or `x[2]` for axis 2 of input x, or `*` for all that nothing else gives. A batch that neither gives is 1
    (`source.note` says so). `folded`: values that follow from weights and from these sizes are constants, and the
    operators that compute them are left out, as `downset split` and what runs its plans take a network. Constants of
    .onnx and .pt2 files are read from the file when they are needed; an .onnx file that has changed since is refused
    then, and any file when a network is exported. Nothing in a file is executed, except with `trust`: PyTorch then
    loads .pt2 files, which runs code that they contain. Raises LoadError (missing, damaged, open sizes, not a model),
    UsageError (sizes for a format in which they are fixed, or `dims` that do not fit), UnsupportedError (an extra is
    missing) or LimitReached (too large for this machine).
    """
    check_path(path)
    path = Path(path)
    sizes = known_sizes(path, shapes=shapes, dims=dims)
    try:
        graph = with_lawful_kinds(_read(path, sizes, trust=trust))
        return _folded(graph) if folded and graph.source.format == "onnx" else graph
    except LoadError as error:
        if path.name in error.message:
            raise
        raise LoadError(f"{path}: ", error.message) from None


def _folded(graph: Graph) -> Graph:
    from downset.formats.onnx.read import without_defaults
    from downset.rewrites.folding import folded

    less = folded(without_defaults(graph), {tensor.name: tensor.shape for tensor in graph.tensors})
    return less if less.source.rewritten else graph


def known_sizes(path: str | os.PathLike[str], *, shapes: Shapes | None = None, dims: Dims | None = None) -> OpenSizes:
    """The sizes that the inputs of a file leave open, with each of them known (`open_sizes`). Raises LoadError that
    asks for the others."""
    sizes = open_sizes(path, shapes=shapes, dims=dims)
    try:
        return sizes.check()
    except LoadError as error:
        raise LoadError(f"{path}: ", error.message) from None


def open_sizes(path: str | os.PathLike[str], *, shapes: Shapes | None = None, dims: Dims | None = None) -> OpenSizes:
    """The sizes that the inputs of a file leave open, after `shapes` and `dims` are applied; none in a format in which
    sizes are fixed. Raises what `load` raises before it reads a network, but nothing for sizes that nobody gave."""
    path = Path(path)
    inputs = _input_axes(path)
    if inputs is None:
        fixed = f"{path}: the sizes in a {path.suffix.lower()} file are fixed; "
        _check_fixed(fixed, shapes, dims)
        return OpenSizes((), {})
    try:
        return settled(inputs, shapes or {}, dims)
    except UsageError as error:
        raise UsageError(f"{path}: ", error.message) from None


def shared_sizes(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
) -> OpenSizes:
    """The open sizes of `first`, with `shapes` for the inputs that both have. A size that only one file leaves open is
    that of the other."""
    ours, theirs = _input_axes(Path(first)), _input_axes(Path(second))
    if ours is None or theirs is None:
        return known_sizes(first, shapes=shapes, dims=dims)
    try:
        sizes = settled_beside(theirs, ours, shapes or {}, dims).check()
        shared = {name: shape for name, shape in sizes.shapes.items() if name in theirs or name in (shapes or {})}
        others = settled_beside(ours, theirs, shared)
    except UsageError as error:
        raise UsageError(f"{first}: ", error.message) from None
    except LoadError as error:
        raise LoadError(f"{first}: ", error.message) from None
    return replace(sizes, shapes={**shared, **others.shapes})


def _input_axes(path: Path) -> Mapping[str, Axes] | None:
    """The sizes of the inputs, by name; None in a format in which sizes are fixed."""
    suffix = check_readable(path)
    reader = READERS.get(suffix)
    if reader is None:
        raise LoadError(f"{path}: {_not_read(suffix)}")
    return None if reader.axes is None else reader.axes(path)


def _read(path: Path, sizes: OpenSizes, *, trust: bool) -> Graph:
    reader = READERS[path.suffix.lower()]
    state = file_state(path.stat())
    options: dict[str, Any] = {} if reader.axes is None else {"shapes": sizes.shapes}
    graph = reader.load(path, **options, **({"trust": trust} if reader.brings_code else {}))
    note = Message(joined("; ", filter(None, [sizes.note, graph.source.note])))
    return replace(graph, source=replace(graph.source, state=state, note=note))


def load_open(path: str | os.PathLike[str]) -> OpenNetwork | None:
    """The graph in a file that leaves sizes open, with its inputs and outputs as the file states them; None in a format
    that is read with all sizes only. Values whose sizes are open have no bytes. Raises what `load` raises."""
    suffix = check_readable(Path(path))
    reader = READERS.get(suffix)
    return None if reader is None or reader.load_open is None else reader.load_open(Path(path))


def _check_fixed(fixed: str, shapes: Shapes | None, dims: Dims | None) -> None:
    """Raise UsageError where sizes are given for a format in which they are fixed."""
    for name in [name for name, given in (("shapes", shapes), ("dims", dims)) if given]:
        resized = " and ".join(suffix for suffix, reader in READERS.items() if reader.axes is not None)
        raise UsageError(fixed, Setting(name), f" is for {resized}")


def load_stdin(*, shapes: Shapes | None = None, dims: Dims | None = None) -> Graph:
    """The graph in the standard input, in the form of a plain .json file, checked. Raises LoadError that says what is
    wrong, UsageError for `shapes` and `dims`, as sizes are fixed there."""
    _check_fixed("the sizes of a graph on stdin are fixed; ", shapes, dims)
    return with_lawful_kinds(_load_plain("-"))


def refused(path: Path, taken: str) -> LoadError | UnsupportedError:
    """The error for a file that a command does not take: LoadError where no command reads it, so that the same file is
    the same mistake everywhere, else UnsupportedError with what is `taken` instead. Raises what `check_readable` does.
    """
    suffix = check_readable(path)
    return UnsupportedError(f"{path}: ", taken) if suffix in READERS else LoadError(f"{path}: {_not_read(suffix)}")


def _not_read(suffix: str) -> str:
    """Why no command reads files of this suffix, and what to do about it."""
    if suffix in _PICKLED:
        return f"a {suffix} file of torch.save holds weights and code, not a graph; write one with {EXPORT}"
    return f"suffix {suffix or '(none)'} is not one of {', '.join(READERS)}"


_PICKLED = (".pt", ".pth", ".ckpt")


def _check_size(path: Path, suffix: str) -> None:
    """Raise LimitReached for a file that does not fit into memory, LoadError for one too large for its format."""
    size = path.stat().st_size
    if suffix == ".onnx" and size >= LARGEST_FILE:
        raise LoadError(
            f"{path} has {format_size(size)}; an .onnx file ends below 2 GB, with larger weights in files beside it"
        )
    if suffix != ".pt2" and size > machine_bytes() // 2:  # the weights of a .pt2 file stay in the file
        raise LimitReached(
            f"{path} has {format_size(size)}, more than half of this machine's memory; read it on a larger machine"
        )


def check_readable(path: Path) -> str:
    """The suffix of a file, in small letters. Raises LoadError for a missing or empty file, for one that is not a plain
    file, and for one whose content contradicts its suffix; LimitReached for one that is too large."""
    try:
        if not path.exists():
            raise LoadError(f"{path} does not exist")
        if path.is_dir():
            raise LoadError(f"{path} is a directory; give a model file")
        if not path.is_file():
            raise LoadError(f"{path} is a pipe or a device; give a model file")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    if not head:
        raise LoadError(f"{path} is empty")
    suffix = path.suffix.lower()
    _check_size(path, suffix)
    if (head[4:8] == b"TFL3") != (suffix == ".tflite"):
        really = "is" if head[4:8] == b"TFL3" else "is not"
        raise LoadError(f"{path} {really} a TFLite model by its content, but its suffix is {suffix or 'missing'}")
    return suffix
