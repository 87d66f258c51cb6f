"""Graph order -> `.onnx`: the same file with its nodes in another order. Names, weights and metadata are untouched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from downset.errors import UnsupportedError
from downset.export.write import write_whole
from downset.graph import Graph

__all__ = ["export_onnx", "external_files"]


def external_files(path: str | os.PathLike[str]) -> list[str]:
    """The files beside an .onnx file that hold weights of it, each once."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    entries = (entry for weight in model.graph.initializer for entry in weight.external_data)
    return list(dict.fromkeys(entry.value for entry in entries if entry.key == "location"))


def export_onnx(path: str | os.PathLike[str], graph: Graph, steps: Sequence[int]) -> None:
    """Write the file the graph was loaded from with its nodes in the order `steps`.

    External weights are neither loaded nor copied: where the new file lies in another folder, the references are kept
    and the data files have to be put beside it. Raises UnsupportedError for a graph from elsewhere.
    """
    if graph.source.format != "onnx":
        raise UnsupportedError(f"{graph.name} was not read from an .onnx file: it cannot be written as one")
    try:
        import onnx
    except ImportError:
        raise UnsupportedError("writing .onnx files needs an extra: pip install 'downset[onnx]'") from None
    model = onnx.load(graph.source.path, load_external_data=False)
    nodes = list(model.graph.node)
    positions = [graph.source.op_index[operator] for operator in steps]
    if sorted(positions) != list(range(len(nodes))):
        raise UnsupportedError(
            f"{graph.name}: this graph is not a reordering of its file; a rewrite cannot be exported"
        )
    copied = [type(nodes[position])() for position in positions]
    for copy, position in zip(copied, positions, strict=True):
        copy.CopyFrom(nodes[position])
    del model.graph.node[:]
    model.graph.node.extend(copied)
    write_whole(path, model.SerializeToString(), source=Path(graph.source.path))
