"""The form in which two files are compared: everything that a file says about what it computes, alike for all formats.

It is read from the file itself, not from the `Graph` that planning works on: a graph leaves out what planning does not
need. Indices are identity. What a `form` or `settings` holds is compared by equality alone, so floats are held as
bytes: -0.0 is not 0.0, and NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

__all__ = ["ABSENT", "Body", "Effect", "FileNetwork", "FileNode", "FileValue"]

ABSENT = -1
"""Stands in `FileNode.inputs` and `FileNode.outputs` for an optional one that is not there."""

Effect = tuple[int | str, bool]
"""A resource that an operator uses beside its inputs and outputs, and whether it writes it. A number is a value of the
network that keeps its content from run to run; a string is a resource of that name."""


@dataclass(frozen=True, slots=True)
class FileValue:
    """A tensor. `label`: its name, for people. `form`: element type, shape and quantization as far as the file states
    them and they matter. `content`: the bytes of a constant, read when they are compared. `keeps`: it is a state.

    What `equivalence.parts` cuts by, as far as it is known: `shape`, `dtype` in numpy's words, and `scales`: of a
    quantization scales as bytes, zero points and their axis. `stored`: which bytes of another file it is."""

    label: str
    form: Hashable = ()
    content: Callable[[], bytes] | None = None
    keeps: bool = False
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    scales: tuple[tuple[bytes, ...], tuple[int, ...], int] | None = None
    stored: Hashable = None

    def same_content(self, other: FileValue) -> bool:
        """Whether two constants have the same bytes. Those in the same place of the same file are not read."""
        if self.stored is not None and self.stored == other.stored:
            return True
        return self.content is not None and other.content is not None and self.content() == other.content()


@dataclass(frozen=True, slots=True)
class FileNode:
    """An operator. `kind`: its name, with domain and version. `settings`: all that the file says of it beside its
    tensors. `bodies`: graphs that it holds; `captured`: what these read of the graphs around them."""

    label: str
    kind: str
    settings: Mapping[str, Hashable]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bodies: tuple[Body, ...] = ()
    captured: tuple[int, ...] = ()
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """A graph: its interface, and its operators in the order of the file."""

    label: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileNetwork:
    """`bodies`: the graphs of the file that no operator holds, the main one first. `settings`: what holds for all of it
    (versions of operator sets, functions). `named`: values that the world outside knows by a name."""

    label: str
    values: tuple[FileValue, ...]
    nodes: tuple[FileNode, ...]
    bodies: tuple[Body, ...]
    settings: Mapping[str, Hashable] = field(default_factory=dict)
    named: Mapping[str, int] = field(default_factory=dict)
