"""Published streaming files of TFLite Micro with their states moved in place: wake words of microWakeWord.

    python -m experiments.stream.published [--quick]

The files are those of the package pymicro-wakeword. Each is fitted with its variables, and with its states in place;
TFLite Micro (64-bit host, reference kernels) tells what each takes. Then the published file and the one in place are
called 200 times on the same rows, the latter in an arena in which earlier calls have left noise, and again after a
reset, where what C++ from `--header` writes is written once more. A call is equal if the output and all next states
are, bit for bit.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import downset as ds
from downset.formats.tflite.states_in_place import write_with_values
from downset.graph.core import Graph
from experiments.fit.models import installed
from experiments.frame import Column, Experiment, run
from experiments.rows import Row

PACKAGE = "pymicro-wakeword"
FILES = ("okay_nabu", "alexa", "hey_jarvis", "hey_mycroft")
CALLS = 200
COLUMNS: tuple[Column, ...] = (
    ("file", "{file}"),
    ("published", "{published_bytes:,}"),
    ("fitted, variables", "{variables_bytes:,}"),
    ("fitted, in place", "{in_place_bytes:,}"),
    ("less", "{less:.1%}"),
    ("states", "{states} ({state_bytes:,} B)"),
    ("proven", "{proven}"),
    ("equal calls", "{equal} of {calls}"),
    ("after a reset", "{equal_after_reset} of {calls}"),
)


def rows_by(row_of: Callable[[Path, Path], Row]) -> Iterator[Row]:
    """Yields a row for each published file, made of its path and that of an empty folder."""
    there = {model.path.stem: model.path for model in installed() if model.source == PACKAGE}
    for name in FILES:
        if name not in there:
            yield {"file": name, "error": f"{PACKAGE} is not installed"}
            continue
        with tempfile.TemporaryDirectory() as folder:
            yield {"file": name, **row_of(there[name], Path(folder))}


def rows(options: Namespace) -> Iterator[Row]:
    del options
    return rows_by(_row)


def _row(model: Path, folder: Path) -> Row:
    kept = ds.fit(model, output=folder / "variables.tflite")
    fitted = ds.fit(model, output=folder / "in_place.tflite", states="in-place")
    assert kept.measured is not None
    assert fitted.measured is not None
    graph = ds.load(folder / "in_place.tflite")
    before, after = fitted.measured.before, fitted.measured.after
    equal, again = _calls(model, folder, graph)
    proof = fitted.outputs.proof
    return {
        "published_bytes": before,
        "variables_bytes": kept.measured.after,
        "in_place_bytes": after,
        "less": 1 - after / before,
        "states": len(graph.states),
        "state_bytes": sum(graph.tensors[state.read].nbytes for state in graph.states),
        "proven": proof is not None and proof.proven,
        "calls": CALLS,
        "equal": equal,
        "equal_after_reset": again,
        "tflite_micro": fitted.versions["tflite-micro"],
    }


def _calls(model: Path, folder: Path, graph: Graph) -> tuple[int, int]:
    """How many of the calls are equal, from a noisy arena and after a reset."""
    from tflite_micro import runtime

    shown, random = folder / "shown.tflite", np.random.default_rng(0)
    write_with_values(model, shown, [state.name for state in graph.states])
    interpreter = runtime.Interpreter.from_file(str(folder / "in_place.tflite"), arena_size=1 << 20)
    shapes = [graph.tensors[tensor].shape for tensor in graph.inputs]
    counts = []
    for _ in range(2):
        for _ in range(5):
            for place, shape in enumerate(shapes):
                interpreter.set_input(random.integers(-128, 128, shape).astype(np.int8), place)
            interpreter.invoke()
        interpreter.reset()
        for state in graph.states:
            place, nbytes = graph.inputs.index(state.read), graph.tensors[state.read].nbytes
            initial = np.frombuffer(state.initial * (nbytes // len(state.initial)), np.int8)
            interpreter.set_input(initial.reshape(shapes[place]), place)
        published = runtime.Interpreter.from_file(str(shown), arena_size=1 << 20)
        counts.append(equal_calls((published, interpreter), shapes[0], len(graph.outputs), random))
    return counts[0], counts[1]


def equal_calls(
    files: Sequence[Any], shape: tuple[int, ...], outputs: int, random: np.random.Generator, *, first: int = 0
) -> int:
    """How many of `CALLS` calls on random rows, from the call `first` on, have equal first outputs in both
    interpreters."""
    equal = 0
    for call in range(first + CALLS):
        row = np.clip(random.normal(-60, 60, shape), -128, 127).astype(np.int8)
        computed = []
        for file in files:
            file.set_input(row, 0)
            file.invoke()
            computed.append([np.array(file.get_output(place)).tobytes() for place in range(outputs)])
        equal += call >= first and computed[0] == computed[1]
    return equal


if __name__ == "__main__":
    run(Experiment("stream_published", rows, COLUMNS))
