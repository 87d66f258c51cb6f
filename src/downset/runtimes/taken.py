"""Whether runs of an .onnx file take the graphs that its operators hold: both branches of an If, the body of a Loop."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.extras import onnxruntime_library, optional_library
from downset.formats.onnx.bodies import subgraphs
from downset.isolation import isolated
from downset.runtimes.feeds import Feeds, saved, unpacked
from downset.runtimes.ort_settings import open_session
from downset.runtimes.outputs import run_session, with_outputs
from downset.sessions import FILE_ORDER

__all__ = ["all_taken"]

Array = npt.NDArray[Any]


def all_taken(path: str | os.PathLike[str], feeds: Feeds, places: Sequence[int]) -> bool:
    """Whether the runs take every graph that the operators at these places of the main graph hold. Graphs inside these
    graphs are not followed: it is then False. Raises UnsupportedError where ONNX Runtime cannot run the file."""
    with saved(feeds) as where:
        arguments = {"path": os.fspath(path), **where, "places": list(places)}
        arrays, _ = isolated("downset.runtimes.taken", "taken_here", arguments)
    return bool(arrays["taken"])


def taken_here(path: str, feeds: str, names: list[list[str]], places: list[int]) -> dict[str, Array]:
    """`all_taken` inside the worker process."""
    onnx = optional_library("onnx", what="reading .onnx files", extra="onnx")
    library = onnxruntime_library()
    library.set_default_logger_severity(4)
    graph = onnx.load(path, load_external_data=False).graph
    nodes = [graph.node[place] for place in places]
    if any(any(subgraphs(inner)) for node in nodes for body in subgraphs(node) for inner in body.node):
        return {"taken": np.asarray(False)}
    wanted = list(dict.fromkeys(name for node in nodes for name in _choosing(node) if name))
    shown = {value.name for value in graph.output}
    runs = unpacked(feeds, names)
    asked = [name for name in wanted if name not in runs[0]]
    if not asked:
        return {"taken": np.asarray(all(_takes_all(node, runs) for node in nodes))}
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        opened = with_outputs(Path(path), Path(folder), [name for name in asked if name not in shown])
        session = open_session(library, opened, FILE_ORDER)
        values = [dict(run) | dict(zip(asked, run_session(session, run, asked), strict=True)) for run in runs]
    return {"taken": np.asarray(all(_takes_all(node, values) for node in nodes))}


def _choosing(node: Any) -> Sequence[str]:
    """The inputs that say which graphs of an operator run; none for one that always runs them."""
    return tuple(node.input)[: {"If": 1, "Loop": 2}.get(node.op_type, 0)]


def _takes_all(node: Any, runs: Sequence[Mapping[str, Array]]) -> bool:
    if node.op_type == "If":
        return {bool(run[node.input[0]].all()) for run in runs} == {True, False}
    return any(all(not name or run[name].reshape(-1)[0] > 0 for name in _choosing(node)) for run in runs)
