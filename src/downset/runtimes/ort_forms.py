"""Forms of a model that ONNX Runtime opens without optimising it again: optimised at a level, with all weights of some
size in one file that it maps, with or without the weights that its kernels packed.

All axes stay open: nothing fixes a size while the form is made. A form at the level `all`, and packed weights, are for
the processor on which they were made (`processor`), and for the version of ONNX Runtime.
"""

from __future__ import annotations

import hashlib
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
from downset.formats.onnx.mapped import map_weights, write_mapped
from downset.process.isolation import isolated
from downset.results.sessions import DEFAULT, SessionSettings
from downset.runtimes.ort_process import fixed_shapes, plain_settings

__all__ = ["Level", "for_one_processor", "make_form", "processor", "reorder", "run_shapes", "shapes_here"]

Level = Literal["all", "extended", "none"]
Named = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]

_LEVELS: Mapping[Level, str] = {"all": "ORT_ENABLE_ALL", "extended": "ORT_ENABLE_EXTENDED", "none": "ORT_DISABLE_ALL"}
_WORKER = "downset.runtimes.ort_session"
_LEAST_BYTES = 1024
"""Weights of fewer bytes stay in the model: a mapping has at least a page."""
_LAYOUTS = "com.microsoft.nchwc"
"""The domain of operators whose blocks have the width of the processor's registers."""


def make_form(path: Path, output: Path, level: Level, *, packed: bool) -> None:
    """Write `path` as ONNX Runtime optimises it at this level, with its weights in one file beside `output`, aligned;
    with `packed` also the weights that kernels packed. Inputs and outputs are declared as `path` declares them. Raises
    UnsupportedError where ONNX Runtime refuses the file."""
    with tempfile.TemporaryDirectory(prefix="downset-", dir=output.parent) as folder:
        saved = Path(folder) / output.name
        config = {
            "session.optimized_model_external_initializers_file_name": f"{output.name}.saved",
            "session.optimized_model_external_initializers_min_size_in_bytes": str(_LEAST_BYTES),
        }
        if packed:
            config["session.save_external_prepacked_constant_initializers"] = "1"
        options = {**DEFAULT.options, "graph_optimization_level": f"GraphOptimizationLevel.{_LEVELS[level]}"}
        settings = plain_settings(SessionSettings(level, options, config))
        isolated(_WORKER, "optimise_here", {"path": str(path), "output": str(saved), "settings": settings})
        if not saved.exists():
            raise UnsupportedError(f"ONNX Runtime wrote no optimised form of {path.name}")
        link_weights(path, Path(folder))
        model, original = read_skeleton(saved), read_skeleton(path)
        _declare(model.graph, original.graph)
        if level == "none":
            _follow(model.graph, [node.output[0] for node in original.graph.node if node.output])
        write_mapped(saved, model, output)


def _declare(graph: Any, original: Any) -> None:
    """Declare inputs and outputs as the original does, so that open axes stay open; ONNX Runtime infers the rest."""
    declared = {value.name: value for value in (*original.input, *original.output)}
    for value in (*graph.input, *graph.output):
        if value.name in declared:
            value.CopyFrom(declared[value.name])
    del graph.value_info[:]


def reorder(path: Path, outputs: Sequence[str]) -> None:
    """Put the nodes of the file into another order, each named by its first output."""
    with tempfile.TemporaryDirectory(prefix="downset-", dir=path.parent) as folder:
        model = read_skeleton(path)
        _follow(model.graph, outputs)
        written = Path(folder) / path.name
        write_mapped(path, model, written)
        for file in Path(folder).iterdir():
            file.replace(path.parent / file.name)


def _follow(graph: Any, outputs: Sequence[str]) -> None:
    """Put the nodes into the order of these first outputs. Nodes that are not named, and all where that is no order of
    the network, keep their place before their first reader."""
    place = {name: index for index, name in enumerate(outputs)}
    nodes = list(graph.node)
    if {node.output[0] for node in nodes if node.output} != set(place):
        return
    ordered = []
    for node in sorted(nodes, key=lambda node: place[node.output[0]]):
        copy = type(node)()
        copy.CopyFrom(node)
        ordered.append(copy)
    del graph.node[:]
    graph.node.extend(ordered)


def for_one_processor(path: Path) -> bool:
    """Whether the file has operators whose layout is that of one kind of processor: no setting makes it run on
    another."""
    return any(node.domain == _LAYOUTS for node in read_skeleton(path).graph.node)


def processor() -> str:
    """A digest of the instructions that this processor has, as Linux lists them; empty where it does not."""
    return processor_of(Path("/proc/cpuinfo"))


def processor_of(listing: Path) -> str:
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        return ""
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16] if flags else ""


def run_shapes(path: Named, *, shapes: Shapes | None = None, seed: int = 0) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(element type, shape) of the outputs of nodes, by the tensor's name, as one run of the file in its order reports
    them. Nodes without a name are not reported."""
    arguments = {"path": os.fspath(path), "shapes": fixed_shapes(shapes), "seed": seed}
    arrays, _ = isolated(__name__, "shapes_here", arguments)
    return {name: (kind, tuple(shape)) for name, (kind, shape) in json.loads(str(arrays["shapes"])).items()}


def shapes_here(path: str, shapes: Mapping[str, list[int]], seed: int) -> dict[str, npt.NDArray[Any]]:
    """`run_shapes` inside a worker."""
    from downset.results.sessions import FILE_ORDER
    from downset.runtimes.ort_session import made_feeds_of, quiet_library
    from downset.runtimes.ort_settings import open_session

    with tempfile.TemporaryDirectory() as folder:
        session = open_session(quiet_library(), path, FILE_ORDER, profile_prefix=str(Path(folder) / "profile"))
        session.run(None, made_feeds_of(session, shapes, seed))
        events = json.loads(Path(session.end_profiling()).read_text())
    outputs = {node.name: list(node.output) for node in read_skeleton(path).graph.node}
    seen: dict[str, tuple[str, list[int]]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            made = event["args"].get("output_type_shape", [])
            names = [name for name in outputs.get(event["name"].removesuffix("_kernel_time"), []) if name]
            for name, described in zip(names, made, strict=False):
                ((kind, shape),) = described.items()
                seen[name] = (kind, shape)
    return {"shapes": np.asarray(json.dumps(seen))}
