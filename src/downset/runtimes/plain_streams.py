"""The proof of an .onnx stream that ONNX Runtime has optimised, through the same stream as operators of ONNX.

That one is written again, for what the record states. It is a statement like any other: it is proven against the window
by the proof that trusts no writer, and the file is then proven to hold its network in ONNX Runtime's layouts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from downset.equivalence.prove import prove, same_in_layouts
from downset.errors import DownsetError
from downset.formats.onnx.read import without_defaults
from downset.formats.reading import load
from downset.formats.stream_files import write_stream
from downset.graph.core import Graph
from downset.partial.stream_rows import moving_input, stream_rows
from downset.partial.streams import Stream, check_streamable, stream_of
from downset.results.comparisons import Proof
from downset.results.streams import StreamRecord

__all__ = ["prove_optimised_stream"]

Named = str | os.PathLike[str]


def prove_optimised_stream(
    window: Named,
    stream: Named,
    record: StreamRecord,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None,
    optimise: Callable[[Named], AbstractContextManager[Path]],
) -> Proof | None:
    """The proof through the same stream without layouts; None where there is none. It has `optimised` where only
    what `optimise` makes of that stream is in the file."""
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        plain = Path(folder) / Path(stream).name
        try:
            again = _again(without_defaults(load(window, shapes=shapes)), record)
            if again is None or again.record != record:
                return None
            write_stream(plain, again.graph, again.record)
            proof = prove(window, plain, shapes=shapes)
            if not proof.proven:
                return None
            if not same_in_layouts(plain, stream):
                return replace(proof, exact=False)
            with optimise(plain) as optimised:
                proven = prove(optimised, stream).proven or not same_in_layouts(optimised, stream)
        except DownsetError:  # the record fits no stream of the window, or ONNX Runtime is missing
            return None
    return replace(proof, exact=False, optimised=True) if proven else None


def _again(graph: Graph, record: StreamRecord) -> Stream | None:
    """The stream of a window that this version writes for what a record states."""
    tensor = next((one for one in graph.inputs if graph.tensors[one].name == record.input), None)
    if tensor is None or record.form != "states" or not 0 <= record.axis < len(graph.tensors[tensor].shape):
        return None
    check_streamable(graph)
    return stream_of(stream_rows(moving_input(graph, tensor, record.axis), record.hop), record.form)
