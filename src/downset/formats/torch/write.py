"""Graph order -> `.pt2`: the exported program with its calls in another order."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.formats.torch.read import reordered
from downset.formats.whole_files import write_whole
from downset.graph.core import Graph

__all__ = ["export_torch"]


def export_torch(path: str | os.PathLike[str], graph: Graph, steps: Sequence[int]) -> None:
    """Write the `.pt2` file the graph was loaded from with its operators in the order `steps`."""
    if graph.source.format != "torch" or not graph.source.path:
        raise UnsupportedError(f"{graph.name} was not read from a .pt2 file: it cannot be written as one")
    torch = torch_library("writing .pt2 files")
    program = reordered(torch.export.load(graph.source.path), steps)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_whole(path, buffer.getvalue())
