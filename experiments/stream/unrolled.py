"""Published streaming files as networks of windows, and the streams that `fit --stream` makes of these.

    python -m experiments.stream.unrolled [--quick]

The files are those of `published`. Unrolled, a file has no variables: a ring of old rows and new ones is the last rows
of a tensor that the window computes whole, and the input has as many rows as one output depends on. `fit --stream` is
then called with the rows that a call of the published file takes, with states in place for TFLite Micro. The published
file and the stream are called on the same random rows; 200 calls are compared from the first on of which the outputs do
not depend on initial states. Bytes are measured in TFLite Micro (64-bit host, reference kernels).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

import downset as ds
from experiments.frame import Column, Experiment, run
from experiments.rows import Row
from experiments.stream.published import CALLS, equal_calls, rows_by

VARIABLES = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")
KINDS = {number: name for name, number in vars(schema.BuiltinOperator).items() if name[0] != "_"}
COLUMNS: tuple[Column, ...] = (
    ("file", "{file}"),
    ("window, hop", "{window}, {hop}"),
    ("published", "{published_bytes:,}"),
    ("published, in place", "{published_in_place_bytes:,}"),
    ("window, fitted", "{fitted_bytes:,}"),
    ("stream, in place", "{stream_bytes:,}"),
    ("states", "{published_state_bytes:,} → {state_bytes:,}"),
    ("MACs of a call", "{macs:,}"),
    ("proven", "{proven}"),
    ("equal calls", "{equal} of {calls}"),
)


@dataclass(slots=True)
class Unrolling:
    """The main subgraph of a published file. `rows`: by tensor, how many of its last rows one output depends on."""

    model: Any
    rows: dict[int, int]

    def kind(self, operator: Any) -> str:
        return KINDS[self.model.operatorCodes[operator.opcodeIndex].builtinCode]

    def whole(self) -> None:
        """Make the window's network of the file."""
        main = self.model.subgraphs[0]
        rings = self._rings(main)
        kept = [one for one in main.operators if self.kind(one) not in VARIABLES and int(one.outputs[0]) not in rings]
        heights = {id(one): int(main.tensors[one.inputs[0]].shape[1]) for one in kept}
        for operator in kept:
            operator.inputs = np.asarray([rings.get(int(tensor), int(tensor)) for tensor in operator.inputs], np.int32)
        main.operators = self._needed(main, kept, heights)
        for operator in main.operators:
            self._widen(main, operator)
        for tensor, rows in self.rows.items():
            if len(main.tensors[tensor].shape) > 2:
                main.tensors[tensor].shape[1] = rows
        self.model.subgraphs = [main]

    def _rings(self, main: Any) -> dict[int, int]:
        """By joined ring of old rows and new ones: the tensor of the new ones."""
        old = {int(one.outputs[0]) for one in main.operators if self.kind(one) == "READ_VARIABLE"}
        joined = [one for one in main.operators if self.kind(one) == "CONCATENATION" and int(one.inputs[0]) in old]
        return {int(one.outputs[0]): int(one.inputs[1]) for one in joined}

    def _needed(self, main: Any, operators: list[Any], heights: dict[int, int]) -> list[Any]:
        """The operators on which an output depends, with the rows that each reads; what a variable was assigned is
        no output. `heights`: by operator, the rows that it reads in a call of the published file. One whose result has
        no rows reads all of them."""
        self.rows |= {int(tensor): 1 for tensor in main.outputs}
        needed = []
        for operator in reversed(operators):
            wanted = [self.rows.get(int(tensor), 0) for tensor in operator.outputs]
            if not any(wanted):
                continue
            needed.append(operator)
            read = max(wanted)
            self.rows |= {int(tensor): read for tensor in operator.outputs}
            if self.kind(operator) in ("CONV_2D", "DEPTHWISE_CONV_2D"):
                kernel = main.tensors[operator.inputs[1]].shape[1]
                read = (read - 1) * operator.builtinOptions.strideH + int(kernel)
            elif len(main.tensors[operator.outputs[0]].shape) < 3 <= len(main.tensors[operator.inputs[0]].shape):
                read = heights[id(operator)]
            for tensor in map(int, operator.inputs):
                if not self._is_constant(main, tensor):
                    self.rows[tensor] = max(self.rows.get(tensor, 0), read)
        return needed[::-1]

    def _is_constant(self, main: Any, tensor: int) -> bool:
        data = self.model.buffers[main.tensors[tensor].buffer].data
        return data is not None and len(data) > 0

    def _widen(self, main: Any, operator: Any) -> None:
        """Let an operator that states a number of rows state that of the window. Slices take the last rows."""
        rows = self.rows.get(int(operator.outputs[0]), 0)
        slices = self.kind(operator) == "STRIDED_SLICE"
        if slices or (self.kind(operator) == "RESHAPE" and len(main.tensors[operator.outputs[0]].shape) > 2):
            stated = self.model.buffers[main.tensors[operator.inputs[1]].buffer].data
            changed = np.frombuffer(bytes(stated), "<i4").copy()
            changed[1] = -rows if slices else rows
            operator.inputs[1] = self._constant(main, changed)

    def _constant(self, main: Any, value: np.ndarray[Any, Any]) -> int:
        buffer, tensor = schema.BufferT(), schema.TensorT()
        buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        tensor.name, tensor.shape = f"rows/{len(main.tensors)}".encode(), np.asarray(value.shape, np.int32)
        tensor.type, tensor.buffer, tensor.hasRank = schema.TensorType.INT32, len(self.model.buffers), True
        self.model.buffers.append(buffer)
        main.tensors.append(tensor)
        return len(main.tensors) - 1


def unroll(published: Path, window: Path) -> int:
    """Write the network of a window to `window`; returns the rows that a call of the published file takes."""
    model = flatbuffer_utils.read_model(str(published))
    main = model.subgraphs[0]
    hop = int(main.tensors[main.inputs[0]].shape[1])
    Unrolling(model, {}).whole()
    flatbuffer_utils.write_model(model, str(window))
    return hop


def row_of(published: Path, folder: Path) -> Row:
    """The stream of an unrolled file, compared with the published one."""
    window, stream = folder / "window.tflite", folder / "stream.tflite"
    hop = unroll(published, window)
    in_place = ds.fit(published, output=folder / "in_place.tflite", states="in-place")
    assert in_place.measured is not None
    given = ds.load(folder / "in_place.tflite")
    streamed = ds.fit(window, output=stream, stream=hop, states="in-place").stream
    assert streamed is not None
    return {
        "window": streamed.record.window,
        "hop": hop,
        "published_bytes": in_place.measured.before,
        "published_in_place_bytes": in_place.measured.after,
        "window_bytes": streamed.window_bytes,
        "fitted_bytes": streamed.fitted_bytes,
        "stream_bytes": streamed.stream_bytes,
        "published_state_bytes": sum(given.tensors[state.read].nbytes for state in given.states),
        "state_bytes": streamed.kept_bytes,
        "window_macs": streamed.window_macs,
        "macs": streamed.macs,
        "first_exact": streamed.record.first_exact,
        "proven": streamed.comparison.proven,
        "calls": CALLS,
        "equal": _equal_calls(published, stream, streamed.record.first_exact),
    }


def _equal_calls(published: Path, stream: Path, first: int) -> int:
    """How many of the calls from `first` on have equal outputs; the stream's states begin as noise."""
    from tflite_micro import runtime

    graph, random = ds.load(stream), np.random.default_rng(0)
    files = [runtime.Interpreter.from_file(str(path), arena_size=1 << 20) for path in (published, stream)]
    for state in graph.states:
        noise = random.integers(-128, 128, graph.tensors[state.read].shape).astype(np.int8)
        files[1].set_input(noise, graph.inputs.index(state.read))
    return equal_calls(files, graph.tensors[graph.inputs[0]].shape, 1, random, first=first)


def rows(options: Namespace) -> Iterator[Row]:
    del options
    return rows_by(row_of)


if __name__ == "__main__":
    run(Experiment("stream_unrolled", rows, COLUMNS))
