"""Files in which graphs that operators hold are run for certain: .onnx files with the conditions of If and Loop fixed,
.tflite files whose main graph is one that an operator calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from downset.equivalence.tflite_file import subgraphs_of
from downset.formats.onnx.bodies import subgraphs
from downset.formats.onnx.data_files import save_linked
from downset.formats.onnx.model_file import onnx_library, read_unfixed
from downset.formats.tflite.flatbuffer import Flatbuffer, read_flatbuffer
from downset.runtimes.outputs import with_outputs

__all__ = ["ways", "with_output"]

Named = str | os.PathLike[str]
_Route = tuple[tuple[int, int], ...]
"""The way from an operator to one inside it: (number of the graph, place of the operator in it), step by step."""


@dataclass(frozen=True, slots=True)
class Way:
    """Two files in which one graph is run. `what`: which, for messages. `place`: the operator of the first file's main
    graph that holds it; None where graphs are called by number. `whole`: whether there are ways for all graphs of that
    operator, or for all that are called."""

    what: str
    place: int | None
    first: Path
    second: Path
    whole: bool = True


def ways(first: Named, second: Named, operators: Sequence[tuple[int, int]], folder: Path) -> Iterator[Way]:
    """A way for each graph inside the operators that correspond (by their places in the main graphs), written into
    `folder` one after the other. Graphs whose operators hold other numbers of graphs are left out, but for the first
    ones."""
    folders = [folder / "first", folder / "second"]
    for each in folders:
        each.mkdir(exist_ok=True)
    if Path(first).suffix.lower() == ".tflite":
        yield from _called(first, second, operators, folders)
    else:
        yield from _forced(Path(first), Path(second), operators, folders)


def with_output(path: Named, label: str, index: int, folder: Path) -> Path:
    """A copy of the file whose last output is a tensor of the main graph: of this label in an .onnx file, of this index
    in a .tflite file."""
    if Path(path).suffix.lower() != ".tflite":
        return with_outputs(Path(path), folder, [label])
    file = read_flatbuffer(path)
    main = file.model.subgraphs[0]
    main.outputs = np.append(np.asarray(main.outputs, np.int32), np.int32(index))
    return _written(file, folder / Path(path).name)


def _written(file: Flatbuffer, path: Path) -> Path:
    path.write_bytes(file.packed())
    return path


def _forced(first: Path, second: Path, operators: Sequence[tuple[int, int]], folders: Sequence[Path]) -> Iterator[Way]:
    onnx = onnx_library()
    models = [read_unfixed(path) for path in (first, second)]
    for pair in operators:
        nodes = [model.graph.node[place] for model, place in zip(models, pair, strict=True)]
        ours, theirs = ([*_choices(node)] for node in nodes)
        whole = [kind for kind, _ in ours] == [kind for kind, _ in theirs]
        if not whole:
            ours, theirs = ([each for each in choices if len(each[1]) == 1] for choices in (ours, theirs))
        for (kind, choice), (_, other) in zip(ours, theirs, strict=False):
            files = []
            for path, place, taken, folder in zip((first, second), pair, (choice, other), folders, strict=True):
                model = read_unfixed(path)
                for route, value in taken:
                    _fix(onnx, model.graph, _follow(model.graph.node[place], route), value)
                files.append(save_linked(model, path, folder))
            label = _follow(nodes[0], choice[-1][0]).name or nodes[0].name or nodes[0].output[0]
            how = "made to run its body" if kind == "Loop" else f"made to take its branch for {choice[-1][1]}"
            yield Way(f"{kind} {label!r} {how}", pair[0], files[0], files[1], whole)


def _choices(
    node: Any, route: _Route = (), needs: tuple[tuple[_Route, bool], ...] = ()
) -> Iterator[tuple[str, tuple[tuple[_Route, bool], ...]]]:
    """(kind, what must hold) for each graph in an operator that runs or does not: the operators on the way to it, by
    their routes, and the values of their conditions."""
    graphs = list(subgraphs(node))
    branches = {"If": [a.name == "then_branch" for a in node.attribute if a.type == 5], "Loop": [True]}
    values: list[bool | None] = [*branches.get(node.op_type, [None] * len(graphs))]
    for number, (graph, value) in enumerate(zip(graphs, values, strict=False)):
        choice_needs = needs if value is None else (*needs, (route, value))
        if value is not None:
            yield node.op_type, choice_needs
        for place, inner in enumerate(graph.node):
            yield from _choices(inner, (*route, (number, place)), choice_needs)


def _follow(node: Any, route: _Route) -> Any:
    for number, place in route:
        node = list(subgraphs(node))[number].node[place]
    return node


def _fix(onnx: Any, main: Any, node: Any, value: bool) -> None:
    """Let an If take the branch of `value`, or a Loop run its body."""
    constants = {weight.name for weight in main.initializer}

    def constant_of(array: Any) -> str:
        name = f"downset {array}"
        if name not in constants:
            main.initializer.append(onnx.numpy_helper.from_array(array, name))
            constants.add(name)
        return name

    if node.op_type == "If":
        node.input[0] = constant_of(np.asarray(value))
        return
    if len(node.input) > 0 and node.input[0] and node.input[0] not in constants:
        node.input[0] = constant_of(np.asarray(2))
    if len(node.input) > 1 and node.input[1]:
        node.input[1] = constant_of(np.asarray(True))


def _called(
    first: Named, second: Named, operators: Sequence[tuple[int, int]], folders: Sequence[Path]
) -> Iterator[Way]:
    models = [read_flatbuffer(path).model for path in (first, second)]
    pairs = _corresponding(models, operators)
    whole = all({pair[file] for pair in pairs} >= set(range(1, len(models[file].subgraphs))) for file in (0, 1))
    for pair in pairs:
        files = [
            _alone(path, number, folder) for path, number, folder in zip((first, second), pair, folders, strict=True)
        ]
        name = (models[0].subgraphs[pair[0]].name or b"").decode(errors="replace") or f"subgraph {pair[0]}"
        yield Way(f"the graph {name!r} by itself", None, files[0], files[1], whole)


def _corresponding(models: Sequence[Any], operators: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The graphs that corresponding operators call, and those that are called there: pairs of numbers."""
    left = [((0, 0), pair) for pair in operators]
    pairs: dict[tuple[int, int], None] = {}
    while left:
        graphs, places = left.pop(0)
        calls = [
            _calls(model.subgraphs[graph].operators[place])
            for model, graph, place in zip(models, graphs, places, strict=True)
        ]
        for pair in zip(*calls, strict=False):
            if pair in pairs:
                continue
            pairs[pair] = None
            inside = [
                [place for place, each in enumerate(model.subgraphs[number].operators) if _calls(each)]
                for model, number in zip(models, pair, strict=True)
            ]
            if len(inside[0]) == len(inside[1]) == 1:  # of several, it is not known which correspond
                left.append((pair, (inside[0][0], inside[1][0])))
    return list(pairs)


def _calls(operator: Any) -> list[int]:
    """The numbers of the graphs that an operator calls."""
    return [
        int(value)
        for options in (operator.builtinOptions, operator.builtinOptions2)
        for _, called in sorted(subgraphs_of(options).items())
        for value in np.ravel(called if called is not None else ())
    ]


def _alone(path: Named, number: int, folder: Path) -> Path:
    """The file with this graph as its main one."""
    file = read_flatbuffer(path)
    file.model.subgraphs[0] = file.model.subgraphs[number]
    file.model.signatureDefs, file.model.metadata = [], []
    return _written(file, folder / Path(path).name)
