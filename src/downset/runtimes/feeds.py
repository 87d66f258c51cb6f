"""Inputs on which two networks are run: several generated ones, the same in every runtime, or the user's arrays."""

from __future__ import annotations

import math
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError, UnsupportedError, UsageError
from downset.graph.core import Graph, Op, Tensor
from downset.graph.kinds import kind_of
from downset.runtimes.inputs import random_array
from downset.text import brief, format_bytes

__all__ = [
    "CHOICES",
    "RUNS",
    "FeedSource",
    "Feeds",
    "choices",
    "made_feeds",
    "most_input_bytes",
    "read_array",
    "read_feeds",
    "saved",
    "unpacked",
]

_LONG = 2048
_HEADERS_BYTES = 1 << 20
_NPY_BEGINS, _NPZ_BEGINS = b"\x93NUMPY", b"PK"

Array = npt.NDArray[Any]
Feeds = Sequence[Mapping[str, Array]]
"""By run: the input arrays by name."""

Choice = Literal["varied", "low", "high"]
CHOICES: tuple[Choice, ...] = ("varied", "low", "high")

RUNS = 3
"""How many runs are generated: noise, smooth values, and noise within the range of the quantization."""


@dataclass(frozen=True, slots=True)
class FeedSource:
    """The inputs of runs, by origin: the user's `files` (.npy, or .npz by the inputs' names), else the `seed`.
    `shapes` fixes the shapes of inputs by name."""

    shapes: Mapping[str, tuple[int, ...]] | None = None
    seed: int = 0
    files: Sequence[str | os.PathLike[str]] = ()


def made_feeds(graph: Graph, *, seed: int, choice: Choice = "varied") -> Feeds:
    """`RUNS` runs of inputs drawn from the seed. The first are `random_array`'s; the second vary smoothly, as images
    and recordings do; the third are noise again. Where the network quantizes an input, the last two fill the range that
    the quantization keeps.

    Booleans, and integers of more than 16 bits, take both of their values over the first two runs. An integer of one
    element that the network only compares with constants is one of these in the last two runs, or the number above it.
    Such inputs choose what runs, and not every network runs with every choice: with `choice="low"` booleans are False
    and integers 0 or 1 in all runs; with "high" booleans are True, and a compared integer is the first constant.

    Raises UnsupportedError for an input whose values cannot be generated, UsageError for a negative seed.
    """
    if seed < 0:
        raise UsageError(f"seed must be at least 0; given {seed}")
    runs: list[dict[str, Array]] = []
    for run in range(RUNS):
        fed = {}
        for place, tensor in enumerate(graph.inputs):
            meta = graph.tensors[tensor]
            position = zlib.crc32(meta.name.encode()) if graph.source.format == "onnx" else place
            value = _made(meta, _range(graph, tensor), run, seed, position)
            fed[meta.name] = _chosen(graph, tensor, value, runs, choice)
        runs.append(fed)
    return runs


def choices(graph: Graph) -> bool:
    """Whether `made_feeds` gives inputs values that may choose what runs."""
    return any(np.dtype(_numpy_type(graph.tensors[tensor])).kind in "biu" for tensor in graph.inputs)


def _chosen(graph: Graph, tensor: int, value: Array, before: Feeds, choice: Choice) -> Array:
    """The value of an input in the run after those `before`, where it may choose what runs; else `value`."""
    run = len(before)
    if value.dtype.kind not in "biu" or (choice == "varied" and run == 0):
        return value
    if choice != "varied" and value.dtype.kind == "b":
        return np.full_like(value, choice == "high")
    if choice == "low":
        return value
    compared = _compared_with(graph, tensor) if value.size == 1 and value.dtype.kind in "iu" else []
    if compared:
        limits = np.iinfo(value.dtype)
        chosen = compared[0] if choice == "high" else [*compared, compared[-1] + 1][run - 1]
        return np.full_like(value, min(max(chosen, limits.min), limits.max))
    if choice == "varied" and run == 1 and (value.dtype.kind == "b" or value.dtype.itemsize > 2):
        return np.asarray(1 - before[0][graph.tensors[tensor].name].astype(value.dtype), value.dtype)
    return value


def _compared_with(graph: Graph, tensor: int) -> list[int]:
    """The constants with which operators compare an input, in ascending order; none where another operator reads it, to
    which they may be invalid: an index, or a length."""
    constants: set[int] = set()
    left, seen = [tensor], {tensor}
    while left:
        value = left.pop()
        for op in graph.ops:
            if value not in op.inputs:
                continue
            others = [other for other in op.inputs if other != value]
            if _compares(graph, op) and len(others) == 1 and others[0] in graph.constants:
                constant = np.asarray(graph.constants[others[0]]()).reshape(-1)
                if constant.size != 1 or not np.isfinite(constant).all():
                    return []
                constants.add(int(constant[0]))
            elif _keeps(op) and op.inputs[0] == value:
                left += [result for result in op.outputs if result not in seen]
                seen.update(op.outputs)
            else:
                return []
    return sorted(constants)


def _compares(graph: Graph, op: Op) -> bool:
    return kind_of(op.kind).category == "binary" and graph.tensors[op.outputs[0]].dtype == "bool"


def _keeps(op: Op) -> bool:
    """Whether the result has the numbers of the first input."""
    return kind_of(op.kind).category == "shape-only" or op.kind in ("Cast", "Identity")


def _made(meta: Tensor, limits: tuple[float, float] | None, run: int, seed: int, position: int) -> Array:
    dtype = _numpy_type(meta)
    noise = random_array(meta.shape, dtype, seed=seed + run, position=position)
    if run == 0 or noise.dtype.kind not in "fiu" or (noise.dtype.kind in "iu" and noise.dtype.itemsize > 2):
        return noise
    if noise.dtype.kind in "iu":
        low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    else:
        low, high = limits or (0.0, 1.0)
    if run == 1:
        return _scaled(_waves(meta.shape, np.random.default_rng([seed, position, 1])), low, high, dtype)
    if noise.dtype.kind in "iu" or limits is None:
        return noise
    share = np.random.default_rng([seed, position, 2]).random(meta.shape)
    return _scaled(share, low, high, dtype)


def _numpy_type(meta: Tensor) -> Any:
    if meta.dtype == "string":
        return np.dtype(str)
    try:
        return np.dtype(meta.dtype)
    except TypeError:
        raise UnsupportedError(f"input {meta.name!r} of type {meta.dtype}: no values can be generated for it") from None


def _waves(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Values from 0 to 1 that vary slowly along every axis; along axes above `_LONG`, such as sound, like a tone."""
    total = np.zeros(shape)
    for axis, extent in enumerate(shape):
        if extent > 1:
            periods = random.uniform(0.5, 2.0) if extent <= _LONG else extent / random.uniform(20.0, 200.0)
            along = np.linspace(0.0, 1.0, extent) * periods + random.random()
            total = total + np.sin(2 * np.pi * along).reshape(
                [-1 if dimension == axis else 1 for dimension in range(len(shape))]
            )
    spread = float(np.ptp(total)) if total.size else 0.0
    return (total - total.min()) / spread if spread else np.full(shape, random.random())


def _scaled(share: Array, low: float, high: float, dtype: Any) -> Array:
    value = low + share * (high - low)
    return np.asarray(np.round(value) if np.dtype(dtype).kind in "iu" else value, dtype)


def _range(graph: Graph, tensor: int) -> tuple[float, float] | None:
    """The range (low, high) of an input that its quantization keeps; None where no QuantizeLinear reads the input, or
    the scale is not known."""
    for op in graph.ops:
        if tensor in op.inputs and op.kind == "QuantizeLinear":
            result = graph.tensors[op.outputs[0]]
            if result.quantization is None or result.dtype not in ("int8", "uint8", "int16"):
                return None
            limits = np.iinfo(result.dtype)
            scale, zero = result.quantization["scale"][0], result.quantization["zero_point"][0]
            return (limits.min - zero) * scale, (limits.max - zero) * scale
    return None


def read_feeds(graph: Graph, paths: Sequence[str | os.PathLike[str]]) -> Feeds:
    """The user's data, one run for each file: .npy for the only input of a network, .npz with an array for each input
    by name. Raises UsageError where names, shapes or types do not fit the network, LoadError for bad files."""
    return [_read_run(graph, Path(path)) for path in paths]


def _read_run(graph: Graph, path: Path) -> dict[str, Array]:
    names = [graph.tensors[tensor].name for tensor in graph.inputs]
    arrays = read_array(path, most_bytes=most_input_bytes(graph))
    if isinstance(arrays, np.ndarray):
        if len(names) != 1:
            listed = ", ".join(names)
            raise UsageError(f"{path} holds one array, but the inputs are {listed}; give an .npz with their names")
        arrays = {names[0]: arrays}
    if set(arrays) != set(names):
        raise UsageError(f"{path} holds {', '.join(arrays) or 'nothing'}, but the inputs are {', '.join(names)}")
    for tensor in graph.inputs:
        meta, value = graph.tensors[tensor], arrays[graph.tensors[tensor].name]
        if tuple(value.shape) != meta.shape or value.dtype != _numpy_type(meta):
            raise UsageError(
                f"{path}: {meta.name!r} is {value.dtype}{list(value.shape)}, the network takes "
                f"{meta.dtype}{list(meta.shape)}"
            )
    return {name: arrays[name] for name in names}


def most_input_bytes(graph: Graph, *, batch: int = 1) -> int:
    """A limit in bytes above the size of any file of the network's inputs, whatever their element type."""
    elements = sum(math.prod(graph.tensors[tensor].shape) for tensor in graph.inputs)
    return 16 * elements * batch + _HEADERS_BYTES


def read_array(path: str | os.PathLike[str], *, most_bytes: float, mapped: bool = False) -> Any:
    """The array of a .npy file, or the arrays of an .npz file by name. Nothing in a file is executed. With `mapped` a
    .npy array is mapped from its file and may be of any size. Raises LoadError for other or damaged files, and for one
    whose arrays take more than `most_bytes`."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise LoadError(f"{path} is a pipe or a device; give a .npy or .npz file")
        with Path(path).open("rb") as file:
            begins = file.read(len(_NPY_BEGINS))
            size = os.fstat(file.fileno()).st_size
        if not begins.startswith((_NPY_BEGINS, _NPZ_BEGINS)):
            raise LoadError(f"{path} is not a .npy or .npz file; numpy.save and numpy.savez write them")
        if begins.startswith(_NPZ_BEGINS):
            with zipfile.ZipFile(path) as archive:  # an entry is never read beyond its stated size
                size = max(size, sum(entry.file_size for entry in archive.infolist()))
        elif mapped:
            size = 0
        if size > most_bytes:
            raise LoadError(
                f"{path} holds {format_bytes(size)} bytes; the inputs take {format_bytes(int(most_bytes))} at most"
            )
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        return array if isinstance(array, np.ndarray) else dict(array)
    except LoadError:
        raise
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # numpy reads the header as text of Python: a damaged one raises anything
        reason = "it holds Python objects, not numbers" if "pickle" in str(error) else brief(error, 120)
        raise LoadError(f"cannot read {path}: {reason or type(error).__name__}") from None


@contextmanager
def saved(feeds: Feeds) -> Iterator[dict[str, Any]]:
    """Write the feeds to a temporary file. Yields the arguments with which a worker process reads it (`unpacked`)."""
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        file = Path(folder) / "feeds.npz"
        arrays: dict[str, Any] = {}
        for run, fed in enumerate(feeds):
            arrays |= {f"{run}_{index}": value for index, value in enumerate(fed.values())}
        np.savez(file, **arrays)
        yield {"feeds": str(file), "names": [list(fed) for fed in feeds]}


def unpacked(feeds: str, names: Sequence[Sequence[str]]) -> Feeds:
    """The feeds that `saved` wrote."""
    with np.load(feeds, allow_pickle=False) as arrays:
        return [
            {name: arrays[f"{run}_{index}"] for index, name in enumerate(inputs)} for run, inputs in enumerate(names)
        ]
