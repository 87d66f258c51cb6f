"""Graph -> `.pt2`: the exported program with its calls in another order, or with those that a rewrite made."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

from downset.errors import LoadError, UnsupportedError
from downset.extras import torch_library
from downset.formats.certificates import write_certificate
from downset.formats.torch.archive import Archive
from downset.formats.torch.exported import reordered
from downset.formats.torch.read import archive_program, trusted_program
from downset.formats.torch.strip_nodes import rewritten_body
from downset.graph.core import Graph
from downset.orders.check import verify_steps
from downset.process.whole_files import write_whole
from downset.text import brief

__all__ = ["export_torch"]

_ALIGNMENT = 64
"""Weights begin at multiples of it, as torch.export.save lays them, so that they can be mapped into memory."""


def export_torch(path: str | os.PathLike[str], graph: Graph, steps: Sequence[int]) -> None:
    """Write the `.pt2` file the graph was loaded from with its operators in the order `steps`, also a rewrite of it.

    The archive is copied with other calls in its JSON; no code in it runs. If the graph was loaded with trust, PyTorch
    loads and saves it. Raises UnsupportedError for a graph that is not from a .pt2 file and for a rewrite of a file
    that was loaded with trust, InvalidPlan for an invalid order.
    """
    if graph.source.format != "torch" or not graph.source.path:
        raise UnsupportedError(f"{graph.name} was not read from a .pt2 file: it cannot be written as one")
    if graph.source.trusted and graph.source.rewritten:
        raise UnsupportedError(f"{graph.name}: a rewritten network is written of a file that is read as data alone")
    verify_steps(graph.predecessors(), steps)
    source, buffer = Path(graph.source.path), io.BytesIO()
    if graph.source.trusted:
        torch = torch_library("writing .pt2 files with trust")
        torch.export.save(reordered(trusted_program(source), steps), buffer)
    else:
        _copy_changed(Archive(source), graph, steps, buffer)
    write_whole(path, buffer.getvalue(), source=source)


def _copy_changed(archive: Archive, graph: Graph, steps: Sequence[int], buffer: io.BytesIO) -> None:
    try:
        model = json.loads(archive.read(archive.model_entry))
    except (ValueError, RecursionError) as error:  # reading the graph did not test all of the entry
        raise LoadError(f"{archive.path}: {archive.model_entry} is damaged ({brief(error)})") from None
    body, added = model["graph_module"]["graph"], {}
    if graph.source.rewritten:
        body, parts = rewritten_body(body, archive_program(archive), graph, steps)
        model["graph_module"]["graph"] = body
        added[archive.certificate_entry] = write_certificate(parts)
    elif len(body["nodes"]) != len(steps):
        raise UnsupportedError(f"{archive.path} holds {len(body['nodes'])} operators, and the order {len(steps)}")
    else:
        body["nodes"] = [body["nodes"][step] for step in steps]
    with zipfile.ZipFile(buffer, "w") as written:
        for name in (*(name for name in archive.names if name not in added), *added):
            changed = json.dumps(model).encode() if name == archive.model_entry else added.get(name)
            data = archive.read(name) if changed is None else changed
            entry = zipfile.ZipInfo(name)  # with a fixed date, so that equal plans give equal files
            start = buffer.tell() + 30 + len(name.encode()) + 4
            entry.extra = b"FB" + (padding := -start % _ALIGNMENT).to_bytes(2, "little") + b"Z" * padding
            written.writestr(entry, data)
