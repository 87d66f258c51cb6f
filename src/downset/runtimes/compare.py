"""Whether two model files are the same network: proven from the files where that can be, and run on the same inputs.

A proof says nothing about writers, offsets and runtimes, and runs say little where outputs depend on little: so both.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from downset.equivalence.prove import prove
from downset.errors import DownsetError, InvalidPlan, UnsupportedError, UsageError
from downset.formats.reading import load
from downset.graph.core import Graph
from downset.methods import check_choice
from downset.results import Comparison, Proof
from downset.runtimes import ort
from downset.runtimes.differences import compare_arrays, first_difference, vary
from downset.runtimes.feeds import Feeds, made_feeds, read_feeds
from downset.runtimes.ort_open import named_settings
from downset.runtimes.ort_open_sizes import keep_open_sizes
from downset.runtimes.outputs import Computed, in_litert, in_ort, in_tflm

__all__ = ["RUNTIMES", "Runtime", "RuntimeName", "compare", "compare_outputs", "prove_same", "with_offsets"]

RuntimeName = Literal["litert", "tflm", "ort"]
Named = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Runtime:
    """`suffixes`: of the files that it runs. `compute(path, feeds, inside=, ordered=)`: what a file computes there.
    `looks_inside`: it tells of tensors that are not outputs."""

    suffixes: tuple[str, ...]
    compute: Callable[..., Computed]
    looks_inside: bool = True


RUNTIMES: Mapping[RuntimeName, Runtime] = {
    "litert": Runtime((".tflite",), in_litert),
    "tflm": Runtime((".tflite",), in_tflm, looks_inside=False),
    "ort": Runtime((".onnx",), in_ort),
}
"""Runtimes by name. Among those that run files of one suffix the first is the default."""


def compare(
    first: Named,
    second: Named,
    *,
    runtime: RuntimeName | None = None,
    shapes: Shapes | None = None,
    seed: int = 0,
    inputs: Sequence[Named] = (),
) -> Comparison:
    """Whether `second` holds the network of `first`: proven from the files where that can be (`proof`), and run on
    several inputs drawn from `seed`, or on the arrays in `inputs` (.npy, or .npz by the inputs' names). A fitted .onnx
    file is run as its own metadata say, in its order or optimised by ONNX Runtime.

    `runtime`: litert (default) or tflm for .tflite, ort for .onnx. `shapes` fixes inputs by name. Nothing is raised
    where the networks differ: see `rounds_alike`, `within` and `telling` of what is returned. Raises LoadError for bad
    files, InvalidPlan for offsets that overwrite what is needed, UsageError for files of different formats, inputs that
    are not the network's or a runtime that does not run them, UnsupportedError where no runtime does or an extra is
    missing.
    """
    suffixes = {Path(first).suffix.lower(), Path(second).suffix.lower()}
    if len(suffixes) > 1:
        raise UsageError(f"{first} and {second} are of different formats")
    (suffix,) = suffixes
    able = [name for name, row in RUNTIMES.items() if suffix in row.suffixes]
    if not able:
        compared = dict.fromkeys(suffix for row in RUNTIMES.values() for suffix in row.suffixes)
        raise UnsupportedError(f"{' and '.join(compared)} files are compared, not {suffix or 'files without a suffix'}")
    chosen = able[0] if runtime is None else runtime
    if chosen not in able:
        raise UsageError(f"{chosen} does not run {suffix} files; choose {' or '.join(able)}")
    for path in (first, second):
        load(path, shapes=shapes)  # a bad file is one line from us, not a crash of the runtime
    proof = prove_same(first, second, shapes=shapes)
    settings = named_settings(second) if suffix == ".onnx" else None
    ordered = proof.proven and proof.optimised if settings is None else settings.follows_file
    comparison = compare_outputs(
        first, second, runtime=chosen, shapes=shapes, seed=seed, inputs=inputs, ordered=ordered, proof=proof
    )
    return (
        comparison
        if runtime is not None or shapes
        else with_offsets(first, second, comparison, seed=seed, inputs=inputs)
    )


def prove_same(first: Named, second: Named, *, shapes: Shapes | None = None) -> Proof:
    """`prove`, and for .onnx files also whether `second` is what ONNX Runtime's own optimisation makes of `first`: what
    `fit` writes is that file in another order."""
    proof = prove(first, second, shapes=shapes)
    if proof.proven or Path(first).suffix.lower() != ".onnx":
        return proof
    try:
        with _optimised(first, shapes) as path:
            of_optimised = prove(path, second, shapes=shapes)
    except InvalidPlan:
        raise
    except DownsetError:  # no ONNX Runtime here, or it refuses the file: the first answer stands
        return proof
    return replace(of_optimised, optimised=True) if of_optimised.proven else proof


@contextmanager
def _optimised(path: Named, shapes: Shapes | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        optimised = Path(folder) / Path(path).name
        ort.optimise_offline(path, optimised, shapes=shapes)
        keep_open_sizes(Path(path), optimised, shapes or {})
        yield optimised


def compare_outputs(
    first: Named, second: Named, *, runtime: RuntimeName, shapes: Shapes | None = None, seed: int = 0,
    ordered: bool = False, inputs: Sequence[Named] = (), proof: Proof | None = None,
) -> Comparison:  # fmt: skip
    """Run both files in `runtime` (litert, tflm or ort) on the same inputs, one after another, so that networks with
    state are compared in their state too; also tensors inside that both have, where the runtime shows them. ONNX
    Runtime runs the first file as it does by default, and the second too unless `ordered`: then in its own order, with
    nothing optimised. `proof`: what is known already. Raises UnsupportedError where the runtime cannot run them."""
    check_choice("runtime", runtime, RUNTIMES)
    row = RUNTIMES[runtime]
    graphs = [load(path, shapes=shapes) for path in (first, second)]
    feeds = read_feeds(graphs[0], inputs) if inputs else made_feeds(graphs[0], seed=seed)
    names = _common(*graphs) if row.looks_inside else []
    ours = row.compute(first, feeds, inside=names)
    theirs = row.compute(second, feeds, inside=names, ordered=ordered)
    outputs = [[value for run in computed.outputs for value in run] for computed in (ours, theirs)]
    comparison = replace(
        compare_arrays(*outputs, runtime=runtime), proof=proof, runs=len(feeds), varies=vary(ours.outputs)
    )
    if ordered and not comparison.rounds_alike and first != second:
        comparison = _as_written(row, first, feeds, theirs, comparison)
    inside = [name for name in ours.inside if name in theirs.inside]
    note = first_difference(ours.inside, theirs.inside, exact=comparison.exact)
    return replace(comparison, inside=len(inside), inside_note=note)


def _as_written(row: Runtime, first: Named, feeds: Feeds, theirs: Computed, comparison: Comparison) -> Comparison:
    """A difference may be ONNX Runtime's own optimisation of the first file, which the second one runs without: then
    both are alike as they are written, and by how much the optimisation moves the outputs is said."""
    plain = row.compute(first, feeds, inside=(), ordered=True)
    outputs = [[value for run in computed.outputs for value in run] for computed in (plain, theirs)]
    alone = compare_arrays(*outputs, runtime=comparison.runtime)
    if not alone.rounds_alike or comparison.max_abs_error is None:
        return comparison
    moved = f"ONNX Runtime's own optimisation of the original moves the outputs by {comparison.max_abs_error:.3g}"
    return replace(
        alone,
        proof=comparison.proof,
        runs=comparison.runs,
        varies=comparison.varies,
        note=f"as they are written; {moved}",
    )


def with_offsets(
    first: Named, second: Named, comparison: Comparison, *, seed: int = 0, inputs: Sequence[Named] = ()
) -> Comparison:
    """Run both files in TFLite Micro too, where the second carries offsets that were not in force yet. What differs
    there is what is returned; TFLite Micro may lack the operators, or be missing: then nothing is added."""
    if (
        comparison.proof is None
        or not comparison.proof.placed
        or comparison.runtime == "tflm"
        or not comparison.rounds_alike
    ):
        return comparison
    try:
        placed = compare_outputs(first, second, runtime="tflm", seed=seed, inputs=inputs, proof=comparison.proof)
    except UnsupportedError:
        return comparison
    return replace(comparison, placed=True) if placed.rounds_alike else placed


def _common(first: Graph, second: Graph) -> list[str]:
    """Names of tensors of one shape and type that operators make in both files, and that are not outputs."""
    ours, theirs = _made(first), _made(second)
    return [name for name, meta in ours.items() if theirs.get(name) == meta]


def _made(graph: Graph) -> dict[str, tuple[tuple[int, ...], str]]:
    results = (graph.tensors[tensor] for op in graph.ops for tensor in op.outputs if tensor >= 0)
    outputs = {graph.tensors[tensor].name for tensor in graph.outputs}
    return {
        tensor.name: (tensor.shape, tensor.dtype)
        for tensor in results
        if tensor.role == "activation" and tensor.name not in outputs and tensor.dtype not in ("opaque", "string")
    }
