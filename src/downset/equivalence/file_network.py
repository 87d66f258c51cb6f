"""The form in which two files are compared: all that a file states about its computation, in one form for all formats.

It is read from the file itself. The `Graph` of planning is not enough, as it leaves out what planning does not need.
Values and operators are named by their index. The contents of `form` and `settings` are only compared for equality, so
floats are stored as bytes: -0.0 then differs from 0.0, and NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from downset.process.file_ranges import FileRange
from downset.results.comparisons import ROUNDING

__all__ = [
    "ABSENT",
    "Body",
    "Effect",
    "FileNetwork",
    "FileNode",
    "FileValue",
    "metadata_of",
    "round_alike",
    "without_metadata",
]

ABSENT = -1
"""The index in `FileNode.inputs` and `FileNode.outputs` of an optional value that is not given."""

Effect = tuple[int | str, bool]
"""A resource that an operator uses besides its inputs and outputs, and whether the operator writes it. A number is a
value of the network that keeps its content from run to run; a string is the name of another resource."""


@dataclass(frozen=True, slots=True)
class FileValue:
    """A tensor. `label`: its name, for messages. `form`: element type, shape and quantization, as far as the file
    states them and they affect results. `content`: the bytes of a constant, read when they are compared. `default`: the
    bytes that an input holds where the caller does not give it; such an input is not a constant. `keeps`: whether it is
    a state.

    `equivalence.parts` uses three more fields, as far as they are known: `shape`, `dtype` (numpy's name), and `scales`:
    the scales of a quantization as bytes, the zero points and their axis. `stored`: the range of a file that holds
    the bytes, where they are stored as they are. `computed`: the bytes of the result of a Constant operator."""

    label: str
    form: Hashable = ()
    content: Callable[[], bytes] | None = None
    keeps: bool = False
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    scales: tuple[tuple[bytes, ...], tuple[int, ...], int] | None = None
    stored: FileRange | None = None
    default: Callable[[], bytes] | None = None
    computed: Callable[[], bytes] | None = None

    @property
    def as_constant(self) -> FileValue:
        """The value with its bytes as content, where it is the result of a Constant operator; else as it is."""
        return self if self.content is not None or self.computed is None else replace(self, content=self.computed)

    def same_content(self, other: FileValue) -> bool:
        """Whether two constants have the same bytes. Where both are `stored`, neither is held in memory."""
        if self.content is None or other.content is None:
            return False
        return self._same_bytes(other, self.content, other.content)

    def same_default(self, other: FileValue) -> bool:
        """Whether two inputs hold the same bytes where the caller does not give them, or have both to be given."""
        if self.default is None or other.default is None:
            return self.default is other.default
        return self._same_bytes(other, self.default, other.default)

    def _same_bytes(self, other: FileValue, ours: Callable[[], bytes], theirs: Callable[[], bytes]) -> bool:
        if self.stored is not None and other.stored is not None:
            return self.stored.same_bytes(other.stored)
        return ours() == theirs()

    def rounds_to(self, other: FileValue) -> bool:
        """Whether two constants of one form are floats that differ by no more than rounding."""
        if self.content is None or other.content is None or self.dtype != other.dtype:
            return False
        return round_alike(self.content(), other.content(), self.dtype)


def round_alike(one: bytes, other: bytes, dtype: str) -> bool:
    """Whether two arrays of numpy's type `dtype` are floats that differ by no more than rounding."""
    if dtype not in ("float16", "float32", "float64") or len(one) != len(other):
        return False
    ours, theirs = (np.frombuffer(data, dtype).astype(np.float64) for data in (one, other))
    finite = np.isfinite(ours)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True) or not np.isfinite(theirs[finite]).all():
        return False
    allowed = ROUNDING * max(float(np.abs(ours[finite]).max(initial=0.0)), 1e-6)
    return bool((np.abs(ours[finite] - theirs[finite]) <= allowed).all())


@dataclass(frozen=True, slots=True)
class FileNode:
    """An operator. `kind`: the name of an operator with a known meaning; of any other, a tuple of all that identifies
    it. `settings`: all that the file states about it besides its tensors. `bodies`: the graphs that it holds.
    `captured`: values that these read from the graphs around them."""

    label: str
    kind: Any
    settings: Mapping[Any, Hashable]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bodies: tuple[Body, ...] = ()
    captured: tuple[int, ...] = ()
    effects: tuple[Effect, ...] = ()

    @property
    def called(self) -> str:
        """The operator in messages."""
        kind = self.kind if isinstance(self.kind, str) else "::".join(part for part in self.kind if part)
        return f"{kind} {self.label!r}"


@dataclass(frozen=True, slots=True)
class Body:
    """A graph: its interface, and its operators in the order of the file. `settings`: what else the file states about
    it. `named`: values to which these settings refer by a name."""

    label: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]
    settings: Mapping[Any, Hashable] = field(default_factory=dict)
    named: Mapping[Any, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileNetwork:
    """The network of a file. `bodies`: the graphs that no operator holds, the main one first. `settings`: those of the
    whole file (versions of operator sets). `named`: values that callers know by a name."""

    label: str
    values: tuple[FileValue, ...]
    nodes: tuple[FileNode, ...]
    bodies: tuple[Body, ...]
    settings: Mapping[Any, Hashable] = field(default_factory=dict)
    named: Mapping[Any, int] = field(default_factory=dict)


def metadata_of(network: FileNetwork, key: str) -> bytes | None:
    """The content of the last metadata of a .tflite file with this name; None where there are none."""
    entries: Any = network.settings.get("metadata", ())
    stored = [content for name, content in entries if name == key.encode()]
    return (stored[-1] or b"") if stored else None


def without_metadata(network: FileNetwork, key: str) -> FileNetwork:
    """The network without its metadata of this name."""
    if "metadata" not in network.settings:
        return network
    entries: Any = network.settings["metadata"]
    left = tuple(entry for entry in entries if entry[0] != key.encode())
    return replace(network, settings={**network.settings, "metadata": left})
