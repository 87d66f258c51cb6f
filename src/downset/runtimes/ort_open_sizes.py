"""Keeps the sizes that a file leaves open also open in the files written from it, where the network does not depend on
them.

ONNX Runtime's offline optimisation with fixed sizes folds operators that compute sizes; the result is right only for
those sizes. Where the optimisation with open sizes gives the same nodes and weights, nothing depended on the sizes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downset.errors import DownsetError
from downset.formats.onnx.bodies import is_fixed
from downset.formats.onnx.data_files import link_weights
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.skeleton import digest, save
from downset.process.isolation import isolated

__all__ = ["keep_open_sizes"]

Shapes = Mapping[str, tuple[int, ...]]


def keep_open_sizes(path: Path, optimised: Path, shapes: Shapes) -> str:
    """Replace the file `optimised`, whose sizes are fixed, by one with the open sizes of `path`, if the nodes and
    weights of both are the same. Returns a note that says whether it did; "" where `path` leaves no size open."""
    original = read_skeleton(path)
    open_sizes = {value.name: _shown(value) for value in original.graph.input if not _fixed(value)}
    if not open_sizes:
        return ""
    listed = ", ".join(
        f"{name!r} {shown}" + (f" at {list(shapes[name])}" if name in shapes else "")
        for name, shown in open_sizes.items()
    )
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        link_weights(path, Path(folder))
        candidate = Path(folder) / "optimised.onnx"
        try:
            isolated(
                "downset.runtimes.ort_session",
                "optimise_here",
                {"path": str(path), "output": str(candidate)},
            )
            same = _same_network(optimised, candidate)
        except DownsetError:
            same = False
        if same:
            model = read_skeleton(candidate)
            _restore_interface(model.graph, original.graph)
            save(model, optimised)
            return f"sizes that the file leaves open stay open; planned and measured for {listed}"
    return f"every candidate but the original has fixed sizes: {listed}; operators that compute sizes are constants"


def _same_network(one: Path, other: Path) -> bool:
    """Whether two files have the same nodes and weights, byte for byte, in any order."""
    ours, theirs = (read_skeleton(path).graph for path in (one, other))
    return all(
        sorted(map(digest, mine)) == sorted(map(digest, their))
        for mine, their in (
            (ours.node, theirs.node),
            (ours.initializer, theirs.initializer),
            (ours.sparse_initializer, theirs.sparse_initializer),
        )
    )


def _restore_interface(graph: Any, original: Any) -> None:
    """Declare inputs and outputs as the original does. Declarations of the values between them are removed, so that
    ONNX Runtime infers them."""
    declared = {value.name: value for value in (*original.input, *original.output)}
    for value in (*graph.input, *graph.output):
        if value.name in declared:
            value.CopyFrom(declared[value.name])
    del graph.value_info[:]


def _fixed(value: Any) -> bool:
    kind = value.type.tensor_type
    return not value.type.HasField("tensor_type") or (kind.HasField("shape") and all(map(is_fixed, kind.shape.dim)))


def _shown(value: Any) -> str:
    dims = value.type.tensor_type.shape.dim
    return f"[{', '.join(str(dim.dim_value) if is_fixed(dim) else '?' for dim in dims)}]"
