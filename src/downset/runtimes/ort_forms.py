"""Forms of a model that ONNX Runtime opens without optimising it again: optimised at a level, with all weights of some
size in one file that it maps, with or without the weights that its kernels packed.

All axes stay open: nothing fixes a size while the form is made. A form at the level `all`, and packed weights, are for
the processor on which they were made (`processor`), and for the version of ONNX Runtime.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.onnx.data_files import link_weights
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.mapped import align, has_packed
from downset.formats.onnx.skeleton import save
from downset.process.isolation import isolated
from downset.results.processes import ProcessorBound
from downset.results.sessions import DEFAULT, FILE_ORDER, SessionSettings
from downset.runtimes.feeds import Feeds, saved, unpacked
from downset.runtimes.inputs import run_inputs
from downset.runtimes.ort_process import plain_settings
from downset.runtimes.ort_settings import open_session, session_outputs
from downset.runtimes.processors import processor

__all__ = [
    "Level",
    "bound_to",
    "form_outputs",
    "make_form",
    "outputs_here",
    "reorder",
    "run_shapes",
    "shapes_here",
    "write_typed",
]

Level = Literal["all", "extended", "none"]
Named = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]

_LEVELS: Mapping[Level, str] = {"all": "ORT_ENABLE_ALL", "extended": "ORT_ENABLE_EXTENDED", "none": "ORT_DISABLE_ALL"}
_WORKER = "downset.runtimes.ort_session"
_LEAST_BYTES = 1024
"""Weights of fewer bytes stay in the model: a mapping has at least a page."""
_LAYOUTS = "com.microsoft.nchwc"
"""The domain of operators whose blocks have the width of the processor's registers."""


def make_form(path: Path, output: Path, level: Level) -> str:
    """Write `path` as ONNX Runtime optimises it at this level, with its weights and those that kernels packed in one
    file next to `output`, aligned. Inputs and outputs are declared as `path` declares them. Returns the version of ONNX
    Runtime. Raises UnsupportedError where it refuses the file."""
    with tempfile.TemporaryDirectory(prefix="downset-", dir=output.parent) as folder:
        whole = Path(folder) / output.name
        config = {
            "session.optimized_model_external_initializers_file_name": f"{output.name}.saved",
            "session.optimized_model_external_initializers_min_size_in_bytes": str(_LEAST_BYTES),
            "session.save_external_prepacked_constant_initializers": "1",
        }
        options = {**DEFAULT.options, "graph_optimization_level": f"GraphOptimizationLevel.{_LEVELS[level]}"}
        settings = plain_settings(SessionSettings(level, options, config))
        told, _ = isolated(_WORKER, "optimise_here", {"path": str(path), "output": str(whole), "settings": settings})
        if not whole.exists():
            raise UnsupportedError(f"ONNX Runtime wrote no optimised form of {path.name}")
        link_weights(path, Path(folder))
        model, original = read_skeleton(whole), read_skeleton(path)
        _declare(model.graph, original.graph)
        if level == "none":
            _follow(model.graph, [next(filter(None, node.output), "") for node in original.graph.node])
        align(whole, model, output)
    return str(told["version"])


def _declare(graph: Any, original: Any) -> None:
    """Declare inputs and outputs as the original does, so that open axes stay open; ONNX Runtime infers the rest."""
    declared = {value.name: value for value in (*original.input, *original.output)}
    for value in (*graph.input, *graph.output):
        if value.name in declared:
            value.CopyFrom(declared[value.name])
    del graph.value_info[:]


def reorder(path: Path, outputs: Sequence[str]) -> None:
    """Put the nodes of the file into another order, each named by its first output. Weights beside it stay there."""
    model = read_skeleton(path)
    _follow(model.graph, outputs)
    save(model, path)


def _follow(graph: Any, outputs: Sequence[str]) -> None:
    """Put the nodes into the order of these first outputs. Raises UnsupportedError where these are not those of the
    nodes, one by one."""
    place = {name: index for index, name in enumerate(outputs)}
    nodes = [(next((name for name in node.output if name), ""), node) for node in graph.node]
    if sorted(name for name, _ in nodes) != sorted(place):
        raise UnsupportedError("ONNX Runtime's form has other nodes than the file that it was made from")
    ordered = []
    for _, node in sorted(nodes, key=lambda one: place[one[0]]):
        copy = type(node)()
        copy.CopyFrom(node)
        ordered.append(copy)
    del graph.node[:]
    graph.node.extend(ordered)


def bound_to(path: Path, version: str) -> ProcessorBound | None:
    """The processor and the version of ONNX Runtime that the file is for: this processor, and the version that made the
    file. None for a file that runs on any."""
    layouts = any(node.domain == _LAYOUTS for node in read_skeleton(path).graph.node)
    if not layouts and not has_packed(path):
        return None
    return ProcessorBound(processor(), version, layouts)


def run_shapes(path: Named, *, shapes: Shapes | None = None, seed: int = 0) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(element type, shape) of the outputs of nodes, by the tensor's name, as one run of the file in its order reports
    them. Nodes without a name are not reported."""
    arguments = {"path": os.fspath(path), **run_inputs(shapes, seed)}
    arrays, _ = isolated(__name__, "shapes_here", arguments)
    return {name: (kind, tuple(shape)) for name, (kind, shape) in json.loads(str(arrays["shapes"])).items()}


def shapes_here(path: str, inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """`run_shapes` inside a worker."""
    from downset.runtimes.ort_session import made_feeds_of, quiet_library

    with tempfile.TemporaryDirectory() as folder:
        session = open_session(quiet_library(), path, FILE_ORDER, profile_prefix=str(Path(folder) / "profile"))
        session.run(None, made_feeds_of(session, inputs))
        events = json.loads(Path(session.end_profiling()).read_text())
    outputs = {node.name: list(node.output) for node in read_skeleton(path).graph.node}
    seen: dict[str, tuple[str, list[int]]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            described = event["args"].get("output_type_shape", [])
            names = [name for name in outputs.get(event["name"].removesuffix("_kernel_time"), []) if name]
            for name, kinds in zip(names, described, strict=False):
                ((kind, shape),) = kinds.items()
                seen[name] = (kind, shape)
    return {"shapes": np.asarray(json.dumps(seen))}


def form_outputs(path: Named, settings: SessionSettings, feeds: Feeds) -> list[list[npt.NDArray[Any]]]:
    """The outputs of each run of a file that is opened with these settings. Raises UnsupportedError where ONNX Runtime
    cannot open or run it."""
    with saved(feeds) as where:
        arguments = {"path": os.fspath(path), "settings": plain_settings(settings), **where}
        arrays, _ = isolated(__name__, "outputs_here", arguments)
    count = len(arrays) // len(feeds)
    return [[arrays[f"output_{run}_{place}"] for place in range(count)] for run in range(len(feeds))]


def outputs_here(path: str, settings: Any, feeds: str, names: list[list[str]]) -> dict[str, npt.NDArray[Any]]:
    """`form_outputs` inside a worker."""
    import msgspec

    from downset.runtimes.ort_session import quiet_library

    session = open_session(quiet_library(), path, msgspec.convert(settings, SessionSettings))
    runs = [session_outputs(session, fed) for fed in unpacked(feeds, names)]
    return {f"output_{run}_{place}": value for run, values in enumerate(runs) for place, value in enumerate(values)}


_ELEMENTS = {"float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9}
_ELEMENTS |= {"float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16}


def write_typed(path: Path, output: Path, *, shapes: Shapes | None = None, seed: int = 0) -> None:
    """Write a copy of the file to `output`, in the same folder, that declares the tensors between its nodes as a run
    with these shapes makes them (`run_shapes`): of operators of ONNX Runtime's own nothing else infers shapes."""
    model = read_skeleton(path)
    declared = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    for name, (kind, shape) in run_shapes(path, shapes=shapes, seed=seed).items():
        if name in declared or kind not in _ELEMENTS:
            continue
        tensor = model.graph.value_info.add(name=name).type.tensor_type
        tensor.elem_type = _ELEMENTS[kind]
        tensor.shape.SetInParent()
        for extent in shape:
            tensor.shape.dim.add().dim_value = extent
    save(model, output)
