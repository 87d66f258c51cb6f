"""Differences of two files that equal outputs do not rule out: constants with other values, and other graphs inside
operators (If, Loop), which a run takes or does not take.

They are asked for where there is no proof: runs then aim at them (`runtimes.reaching`). Every operator outside such
graphs runs in every run; inside, an operator may never have run.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.equivalence.bijection import Bijection, find_bijection, graphs_difference
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode, FileValue, round_alike
from downset.equivalence.read_onnx import read_onnx
from downset.equivalence.read_tflite import read_tflite
from downset.equivalence.surroundings import called_difference

__all__ = ["OtherConstant", "Unshown", "unshown_differences"]

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
class OtherConstant:
    """A constant, or a number among the settings of an operator, that differs by more than rounding. `what`: how, for
    messages. `ours`, `theirs`: its numbers in each file, with the quantization applied. `beside`: (index, label) of the
    first file's values in the main graph that the operators which read it read, too."""

    what: str
    ours: npt.NDArray[Any]
    theirs: npt.NDArray[Any]
    beside: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Unshown:
    """`graphs`: graphs that differ. `constants`: constants that differ; none where operators that outputs need do not
    correspond one to one. `operators`: pairs of operators of the main graphs, by their places, that correspond."""

    graphs: tuple[OtherGraphs, ...] = ()
    constants: tuple[OtherConstant, ...] = ()
    operators: tuple[tuple[int, int], ...] = ()


def unshown_differences(original: str | os.PathLike[str], other: str | os.PathLike[str]) -> Unshown:
    """The differences of two .tflite or two .onnx files that runs may not show."""
    reads = read_tflite if Path(original).suffix.lower() == ".tflite" else read_onnx
    first, second = reads(original)[0], reads(other)[0]
    pairs = find_bijection(first, second)
    graphs = (*_graphs(first, second, pairs), *_called(first, second))
    places = [{index: place for place, index in enumerate(each.bodies[0].nodes)} for each in (first, second)]
    operators = tuple(
        (place, places[1][pairs.nodes[index]])
        for index, place in places[0].items()
        if pairs.nodes.get(index) in places[1] and first.nodes[index].kind == second.nodes[pairs.nodes[index]].kind
    )
    return Unshown(graphs, tuple(_constants(first, second, pairs)), operators)


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
        difference = graphs_difference(first, second, pairs, index, other)
        if difference:
            yield OtherGraphs(difference, place, places[1][other])
    for index, place in places[1].items():
        node = second.nodes[index]
        if node.bodies and index not in paired:
            yield OtherGraphs(f"{node.kind} {node.label!r} is in one file only", None, place)


def _called(first: FileNetwork, second: FileNetwork) -> Iterator[OtherGraphs]:
    """Whether the graphs that operators call differ: functions of .onnx files, and other graphs of .tflite files."""
    if len(first.bodies) > 1 or len(second.bodies) > 1:
        difference = called_difference(first, second)
        if difference:
            yield OtherGraphs(difference)


def _constants(first: FileNetwork, second: FileNetwork, pairs: Bijection) -> Iterator[OtherConstant]:
    if not (_needed(first) <= pairs.nodes.keys() and _needed(second) <= set(pairs.nodes.values())):
        return
    for one, other in pairs.nodes.items():
        ours, theirs = first.nodes[one], second.nodes[other]
        if ours.kind != theirs.kind:
            continue
        where = f"{ours.kind} {ours.label!r}"
        for name, mine, its in _other_numbers(ours, theirs):
            yield OtherConstant(f"{where} has another {name}", mine, its, _beside(first, one))
        for place, (mine_at, its_at) in enumerate(zip(ours.inputs, theirs.inputs, strict=False)):
            if ABSENT in (mine_at, its_at) or (ours.kind, place) in _SIZES:
                continue
            if _other_constant(first, second, mine_at, its_at):
                constant, counterpart = first.values[mine_at], second.values[its_at]
                yield OtherConstant(
                    f"the constant {constant.label!r} of {where} has other values",
                    _read(constant),
                    _read(counterpart),
                    _beside(first, one),
                )


def _needed(network: FileNetwork) -> set[int]:
    """The operators that an output of a graph needs, or that have an effect."""
    made_by = {value: index for index, node in enumerate(network.nodes) for value in node.outputs}
    inside = [body for node in network.nodes for body in node.bodies]
    left = [made_by[value] for body in (*network.bodies, *inside) for value in body.outputs if value in made_by]
    left += [index for index, node in enumerate(network.nodes) if node.effects]
    needed: set[int] = set()
    while left:
        index = left.pop()
        if index not in needed:
            needed.add(index)
            node = network.nodes[index]
            left += [made_by[value] for value in (*node.inputs, *node.captured) if value in made_by]
    return needed


def _beside(network: FileNetwork, index: int) -> tuple[tuple[int, str], ...]:
    """The values of the main graph that an operator reads, or where it is a constant, those read with it."""
    main, node = network.bodies[0], network.nodes[index]
    varying = {*main.inputs, *(value for each in main.nodes for value in network.nodes[each].outputs)}
    fixed = {value for each in main.nodes if not network.nodes[each].inputs for value in network.nodes[each].outputs}
    readers = [node] if node.inputs else [each for each in network.nodes if set(each.inputs) & set(node.outputs)]
    read = dict.fromkeys(value for each in readers for value in each.inputs if value in varying - fixed)
    return tuple((value, network.values[value].label) for value in read)


def _read(value: FileValue) -> npt.NDArray[Any]:
    """The numbers of a constant, with the one scale of its quantization applied; none where they are not known."""
    if value.content is None or not value.dtype or value.shape is None:
        return np.zeros(0)
    numbers = np.frombuffer(value.content(), value.dtype).astype(np.float64)
    if value.scales is not None and len(value.scales[0]) == 1:
        numbers = (numbers - value.scales[1][0]) * float(np.frombuffer(value.scales[0][0], np.float32)[0])
    return numbers.reshape(value.shape) if numbers.size == np.prod(value.shape, dtype=int) else numbers


def _other_numbers(one: FileNode, other: FileNode) -> Iterator[tuple[str, npt.NDArray[Any], npt.NDArray[Any]]]:
    """Numbers among the settings of ONNX that differ by more than rounding: the name, and the numbers in each file.
    Other settings may say the same in two ways."""
    for name, value in one.settings.items():
        its = other.settings.get(name)
        if value == its or its is None:
            continue
        numbers = _numbers(value), _numbers(its)
        if one.kind == "Constant" or all(numbers):
            (dtype, form, data), (its_dtype, its_form, its_data) = (each or ("", None, b"") for each in numbers)
            if (dtype, form) != (its_dtype, its_form) or not round_alike(data, its_data, dtype):
                yield name, np.frombuffer(data, dtype or np.uint8), np.frombuffer(its_data, its_dtype or np.uint8)


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
        any(value.form == constant.form and value.same_content(constant) for value in network.values)
        for network, constant in ((first, theirs), (second, ours))
    )
    return not all(elsewhere)
