"""Differences of two files that equal outputs do not rule out: constants with other values, and other graphs inside
operators (If, Loop), which a run takes or does not take.

They are asked for where there is no proof. Every operator outside such graphs runs in every run; inside, an operator
may never have run.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from downset.equivalence.bijection import Bijection, check_bijection, find_bijection, graphs_difference
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode, round_alike
from downset.equivalence.parts import without_main
from downset.equivalence.read_onnx import read_onnx
from downset.equivalence.read_tflite import read_tflite

__all__ = ["OtherGraphs", "Unshown", "unshown_differences"]

_SIZES = {("Reshape", 1), ("RESHAPE", 1)}
"""Inputs, by kind and place, that say the same sizes in several ways. Runs compare the shapes."""

_FLOAT, _FLOATS, _TENSOR = 1, 6, 4
_FLOAT_TYPES = {1: "float32", 10: "float16", 11: "float64"}


@dataclass(frozen=True, slots=True)
class OtherGraphs:
    """Graphs that differ. `what`: how, for messages. `first`, `second`: the place of the operator that holds them among
    the operators of the main graph in each file; None where the file has no such operator."""

    what: str
    first: int | None = None
    second: int | None = None


@dataclass(frozen=True, slots=True)
class Unshown:
    """`graphs`: graphs that differ. `values`: a message about a constant or a number among the settings of an operator
    that differs by more than rounding; "" where none does, or where operators do not correspond one to one."""

    graphs: tuple[OtherGraphs, ...] = ()
    values: str = ""


def unshown_differences(original: str | os.PathLike[str], other: str | os.PathLike[str]) -> Unshown:
    """The differences of two .tflite or two .onnx files that runs may not show."""
    reads = read_tflite if Path(original).suffix.lower() == ".tflite" else read_onnx
    first, second = reads(original)[0], reads(other)[0]
    pairs = find_bijection(first, second)
    graphs = (*_graphs(first, second, pairs), *_called(first, second), *_functions(first, second))
    return Unshown(graphs, _values(first, second, pairs))


def _graphs(first: FileNetwork, second: FileNetwork, pairs: Bijection) -> Iterator[OtherGraphs]:
    """The operators of the main graphs whose graphs differ."""
    places = [{index: place for place, index in enumerate(each.bodies[0].nodes)} for each in (first, second)]
    paired = set()
    for index, place in places[0].items():
        node, other = first.nodes[index], pairs.nodes.get(index)
        if not node.bodies:
            continue
        if other is None or other not in places[1] or second.nodes[other].kind != node.kind:
            yield OtherGraphs(f"{node.kind} {node.label!r} has no counterpart", place, None)
            continue
        paired.add(other)
        said = graphs_difference(first, second, pairs, index, other)
        if said:
            yield OtherGraphs(said, place, places[1][other])
    for index, place in places[1].items():
        node = second.nodes[index]
        if node.bodies and index not in paired:
            yield OtherGraphs(f"{node.kind} {node.label!r} is in one file only", None, place)


def _functions(first: FileNetwork, second: FileNetwork) -> Iterator[OtherGraphs]:
    """The functions of .onnx files that differ and have branches."""
    for key in sorted(first.settings.keys() & second.settings.keys()):
        both = (first.settings[key], second.settings[key])
        if both[0] != both[1] and any(isinstance(held, bytes) and b"then_branch" in held for held in both):
            yield OtherGraphs(f"they differ in {key.strip()}")


def _called(first: FileNetwork, second: FileNetwork) -> Iterator[OtherGraphs]:
    """Whether the graphs that operators call by number differ; those are read in .tflite files."""
    if len(first.bodies) > 1 or len(second.bodies) > 1:
        ours, theirs = without_main(first), without_main(second)
        said = check_bijection(ours, theirs, find_bijection(ours, theirs))
        if said:
            yield OtherGraphs(said)


def _values(first: FileNetwork, second: FileNetwork, pairs: Bijection) -> str:
    if not len(first.nodes) == len(second.nodes) == len(pairs.nodes):
        return ""
    for one, other in pairs.nodes.items():
        ours, theirs = first.nodes[one], second.nodes[other]
        if ours.kind != theirs.kind:
            continue
        where = f"{ours.kind} {ours.label!r}"
        name = next(_other_numbers(ours, theirs), None)
        if name is not None:
            return f"{where} has another {name}"
        for place, (mine, its) in enumerate(zip(ours.inputs, theirs.inputs, strict=False)):
            if ABSENT in (mine, its) or (ours.kind, place) in _SIZES:
                continue
            if _other_constant(first, second, mine, its):
                return f"the constant {first.values[mine].label!r} of {where} has other values"
    return ""


def _other_numbers(one: FileNode, other: FileNode) -> Iterator[str]:
    """Names of numbers among the settings of ONNX that differ by more than rounding. Other settings may say the same in
    two ways."""
    for name, value in one.settings.items():
        its = other.settings.get(name)
        if value == its or its is None:
            continue
        numbers = _numbers(value), _numbers(its)
        if one.kind == "Constant" or all(numbers):
            (dtype, form, data), (its_dtype, its_form, its_data) = (each or ("", None, b"") for each in numbers)
            if (dtype, form) != (its_dtype, its_form) or not round_alike(data, its_data, dtype):
                yield name


def _numbers(value: Hashable) -> tuple[str, Hashable, bytes] | None:
    """(numpy's type, shape, bytes) of floats among the settings of ONNX; None for other settings."""
    match value:
        case (int(kind), bytes(data)) if kind in (_FLOAT, _FLOATS):
            return "float32", (kind, len(data)), data
        case (int(kind), ((int(type_), tuple(dims), bytes(data)),)) if kind == _TENSOR and type_ in _FLOAT_TYPES:
            return _FLOAT_TYPES[type_], dims, data
    return None


def _other_constant(first: FileNetwork, second: FileNetwork, one: int, other: int) -> bool:
    """Whether two constants of one form differ by more than rounding, and not only because each file has the constant
    of the other elsewhere."""
    ours, theirs = first.values[one], second.values[other]
    if ours.content is None or theirs.content is None or ours.form != theirs.form:
        return False
    if ours.same_content(theirs) or ours.rounds_to(theirs):
        return False
    elsewhere = (
        any(value.form == wanted.form and value.same_content(wanted) for value in network.values)
        for network, wanted in ((first, theirs), (second, ours))
    )
    return not all(elsewhere)
