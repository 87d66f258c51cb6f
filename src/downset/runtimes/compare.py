"""Whether two model files hold the same network: proven from the files where possible, and run on the same inputs.

Both are done: a proof does not cover errors of writers, offsets and runtimes, and runs show little where the outputs
hardly depend on the inputs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from downset.budget import DEFAULT_SECONDS
from downset.equivalence.prove import prove
from downset.equivalence.unshown import unshown_differences
from downset.errors import DownsetError, InvalidPlan, LimitReached, UnsupportedError, UsageError
from downset.formats.onnx.open_axes import declare_as
from downset.formats.reading import load, shared_sizes
from downset.formats.stream_records import record_of
from downset.graph.core import Graph
from downset.messages import Message
from downset.methods import check_choice
from downset.process.limits import limits
from downset.results.comparisons import Comparison, Proof
from downset.results.sessions import DEFAULT, FILE_ORDER, SessionSettings
from downset.results.streams import StreamRecord
from downset.runtimes import ort
from downset.runtimes.calls import calls_differ, calls_difference, compare_calls
from downset.runtimes.differences import compare_arrays, first_difference, not_compared, vary
from downset.runtimes.feeds import CHOICES, Feeds, FeedSource, choices, made_feeds, read_feeds
from downset.runtimes.interfaces import inputs_difference
from downset.runtimes.ort_settings import named_settings
from downset.runtimes.outputs import Array, Computed, in_litert, in_ort, in_tflm, in_torch
from downset.runtimes.reaching import Reached, reach
from downset.runtimes.rounding import HeldFile, held_to_levels, least_scales
from downset.runtimes.streams import compare_hops, record_difference, runtime_of

__all__ = ["RUNTIMES", "Opened", "RuntimeName", "compare", "compare_outputs", "with_offsets"]

RuntimeName = Literal["litert", "tflm", "ort", "torch"]
Named = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Runtime:
    """`suffixes`: those of the files that the runtime runs. `compute(path, feeds, inside=, settings=)`: runs a file and
    returns its outputs. `looks_inside`: whether it can also return tensors that are not outputs."""

    suffixes: tuple[str, ...]
    compute: Callable[..., Computed]
    looks_inside: bool = True


RUNTIMES: Mapping[RuntimeName, Runtime] = {
    "litert": Runtime((".tflite",), in_litert),
    "tflm": Runtime((".tflite",), in_tflm, looks_inside=False),
    "ort": Runtime((".onnx",), in_ort),
    "torch": Runtime((".pt2",), in_torch, looks_inside=False),
}
"""Runtimes by name. Of those that run files of one suffix the first is the default."""


def compare(  # noqa: PLR0913 - users know its keywords
    first: Named,
    second: Named,
    *,
    runtime: RuntimeName | None = None,
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    inputs: Sequence[Named] = (),
    time_limit_s: float = DEFAULT_SECONDS,
    trust: bool = False,
) -> Comparison:
    """Whether `second` holds the network of `first`: `verdict` of the result is "proven", "not proven" or "differ".

    It is proven from the files where possible (`proof`), and both are run on several inputs drawn from `seed`, or on
    the arrays in the files `inputs` (.npy, or .npz by the inputs' names). Where nothing is proven, further runs aim at
    what the files differ in, for `time_limit_s` (`tried`, `reached`); `unshown` then says what they differ in
    nevertheless, as far as that is known. A fitted .onnx file is run as its metadata say: in its order, or optimised by
    ONNX Runtime. `note` says why nothing was run: other inputs, no runtime here, a time limit, or a format of which
    nothing is proven or run (.json). `trust`: PyTorch may load .pt2 files, and run code in them.

    `runtime`: litert (default) or tflm for .tflite, ort for .onnx, torch for .pt2. `shapes` fixes the shapes of inputs
    by name, and `dims` open sizes of `first` as `load` does; a size that one file alone leaves open is that of the
    other. A difference raises nothing. Raises LoadError for bad files; InvalidPlan for offsets that overwrite bytes
    still needed; UsageError for files of different formats, inputs that do not fit the network, or a runtime that does
    not run the files; UnsupportedError where an extra is missing that reads them.
    """
    suffixes = {Path(path).suffix.lower() for path in (first, second)}
    if len(suffixes) > 1:
        raise UsageError(f"{first} and {second} are of different formats")
    (suffix,) = suffixes
    able = [name for name, row in RUNTIMES.items() if suffix in row.suffixes]
    if runtime is not None and runtime not in able:
        raise UsageError(f"{runtime} does not run {suffix} files; choose {' or '.join(able) or 'none'}")
    record, other = record_of(second), record_of(first)
    if other is not None and record is None:
        raise UsageError(f"{first} is a stream and {second} is none; name the network of its window first")
    if record is not None and other is None:
        source = FeedSource(shapes, seed, inputs)
        return _stream_compared((first, second), record, runtime_of(record, second, runtime), source, dims)
    # A bad file is an error here, not in the runtime.
    sizes = shared_sizes(first, second, shapes=shapes, dims=dims)
    shapes, source = sizes.shapes, FeedSource(sizes.shapes, seed, inputs)
    graphs = [load(path, shapes=shapes, trust=trust) for path in (first, second)]
    in_place = calls_differ(graphs)
    apart = calls_difference(graphs) if in_place else inputs_difference(first, second, graphs)
    if apart:
        return Comparison(False, None, "", f"{apart}; nothing was run", runs=0)
    chosen = runtime or ("tflm" if in_place else next(iter(able), None))
    comparison = _compared((first, second), chosen, source, None if in_place else time_limit_s, trust=trust)
    if runtime is None and not shapes:
        comparison = with_offsets(first, second, comparison, source)
    return replace(comparison, assumed=sizes.note)


def _compared(
    files: tuple[Named, Named],
    runtime: RuntimeName | None,
    source: FeedSource,
    time_limit_s: float | None,
    *,
    trust: bool,
) -> Comparison:
    """`compare` of files that take the same inputs. `runtime`: None for a format of which nothing is run.
    `time_limit_s`: None where no further runs are to be made."""
    first, second = files
    suffix = Path(first).suffix.lower()
    proof = prove_same(first, second, shapes=source.shapes)
    if runtime is None:
        return replace(not_compared(f"{suffix} files hold no weights"), proof=proof)
    named = named_settings(second) if suffix == ".onnx" else None
    usual = FILE_ORDER if proof.proven and proof.optimised else DEFAULT
    opened = Opened(named or usual, trust=trust)
    try:
        comparison = compare_outputs(first, second, runtime=runtime, source=source, opened=opened, proof=proof)
    except (UnsupportedError, LimitReached) as error:
        return replace(not_compared(error.message), proof=proof)
    if not proof.proven and suffix != ".pt2" and time_limit_s is not None:
        return _reached(first, second, comparison, source, time_limit_s)
    return comparison


def _stream_compared(
    paths: tuple[Named, Named],
    record: StreamRecord,
    runtime: str,
    source: FeedSource,
    dims: Mapping[str, int] | None,
) -> Comparison:
    """`compare` of a stream, the second of the files, with the network of its window."""
    first, second = paths
    sizes = shared_sizes(first, first, shapes=source.shapes, dims=dims)
    source = replace(source, shapes=sizes.shapes)
    graphs = [load(first, shapes=sizes.shapes), load(second)]
    apart = record_difference(graphs[0], record)
    if apart:
        return Comparison(False, None, "", f"{apart}; nothing was run", runs=0, assumed=sizes.note)
    proof = prove_same(first, second, shapes=sizes.shapes)
    try:
        comparison = compare_hops(paths, graphs, record, runtime=runtime, source=source, proof=proof)
    except (UnsupportedError, LimitReached) as error:
        comparison = replace(not_compared(error.message), proof=proof)
    return replace(comparison, assumed=sizes.note)


def _reached(
    first: Named, second: Named, comparison: Comparison, source: FeedSource, time_limit_s: float
) -> Comparison:
    """The comparison after runs that aim at what the files differ in, unless other runs show a difference already."""
    differences, outcome = unshown_differences(first, second), Reached()
    if comparison.agrees():
        outcome = reach(first, second, differences, source, time_limit_s)
    hidden = next((each for each in differences.graphs if each.first not in outcome.places), None)
    unshown = f"{hidden.what}, inside a part (If, Loop) that no run may have taken" if hidden else ""
    if not unshown and differences.constants and comparison.agrees():
        unshown = f"{differences.constants[0].what}, and outputs agree"
    shown = outcome.difference
    return replace(comparison, reached=shown, tried=outcome.tried, unshown="" if shown else unshown)


def prove_same(first: Named, second: Named, *, shapes: Shapes | None = None) -> Proof:
    """The result of `prove`. Where that proves nothing about .onnx files, `second` is also compared with the file that
    ONNX Runtime's optimisation makes of `first`, since `fit` reorders that file."""
    proof = prove(first, second, shapes=shapes)
    if proof.proven or Path(first).suffix.lower() != ".onnx":
        return proof
    record = record_of(second)
    if record is not None and record_of(first) is None:
        from downset.runtimes.plain_streams import prove_optimised_stream

        through = prove_optimised_stream(first, second, record, shapes=shapes, optimise=_optimised)
        return through or proof
    try:
        with _optimised(first) as path:
            of_optimised = prove(path, second, shapes=shapes)
    except InvalidPlan:
        raise
    except DownsetError:  # ONNX Runtime is missing or refuses the file: the first proof is the result
        return proof
    return replace(of_optimised, optimised=True) if of_optimised.proven else proof


@contextmanager
def _optimised(path: Named) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        optimised = Path(folder) / Path(path).name
        ort.optimise_offline(path, optimised)
        declare_as(optimised, Path(path))
        yield optimised


@dataclass(frozen=True, slots=True)
class Opened:
    """How the second of two files is run in ONNX Runtime. `settings`: with which it is opened. `form`: the file with
    what ONNX Runtime executes of the first, which the second is said to hold; None where that follows from a proof.
    `exact`: whether the second is said to have the operators of `form`, also without a proof. `trust`: PyTorch may load
    the two files, if they are .pt2, and run code in them."""

    settings: SessionSettings = DEFAULT
    form: Named | None = None
    exact: bool = False
    trust: bool = False


def compare_outputs(
    first: Named,
    second: Named,
    *,
    runtime: RuntimeName,
    source: FeedSource | None = None,
    opened: Opened | None = None,
    proof: Proof | None = None,
) -> Comparison:
    """Run both files in `runtime` (litert, tflm, ort or torch) on the same inputs, those
    of `source` (None: drawn from seed 0), and compare their outputs. The inputs follow one another in one session, so
    that states are compared, too. Tensors inside that both files have are compared where the runtime shows them.

    Made inputs that choose what runs are made otherwise where the first file does not run with them.

    ONNX Runtime runs the first file with its default optimisations, and the second as it is `opened`. `proof`: what is
    known already. A second file that is proven to hold the first, or is said to, is judged by how the first rounds at
    ONNX Runtime's levels of optimisation (`runtimes.rounding`). A runtime that runs one file alone is a difference.
    Raises UnsupportedError where it runs neither, or computes other outputs each time, UsageError for unknown runtimes
    and inputs that do not fit."""
    check_choice("runtime", runtime, RUNTIMES)
    source, opened = source or FeedSource(), opened or Opened()
    graphs = [load(path, shapes=source.shapes, trust=opened.trust) for path in (first, second)]
    with limits(operators=max(len(graph.ops) for graph in graphs)):
        comparison = _run_both(runtime, (first, second), graphs, source, opened, proof)
    return replace(comparison, proof=proof)


def _run_both(
    runtime: RuntimeName,
    paths: tuple[Named, Named],
    graphs: Sequence[Graph],
    source: FeedSource,
    opened: Opened,
    proof: Proof | None,
) -> Comparison:
    """`compare_outputs`, whose result has no proof yet."""
    if calls_differ(graphs):
        return compare_calls(runtime, paths, graphs, source)
    (first, second), row = paths, RUNTIMES[runtime]
    if runtime == "torch":
        row = replace(row, compute=partial(in_torch, trust=opened.trust))
    held = runtime == "ort" and (opened.form is not None or (proof is not None and proof.proven))
    names = _common(*graphs) if row.looks_inside and not held else []
    try:
        feeds, ours = _first_computed(row, first, graphs[0], names, source)
    except UnsupportedError as refused:
        try:
            _first_computed(row, second, graphs[1], (), source)
        except UnsupportedError:
            raise refused from None
        return Comparison(False, None, runtime, Message(f"it runs {second} alone: ", refused.message))
    try:
        if held:
            comparison = _held(paths, graphs, feeds, source, opened, proof)
        else:
            theirs = row.compute(second, feeds, inside=names, settings=opened.settings)
            comparison = _rounded(runtime, ours, theirs)
    except UnsupportedError as refused:
        return Comparison(False, None, runtime, Message(f"it runs {first} alone: ", refused.message))
    if not comparison.rounds_alike:
        again = row.compute(first, feeds, inside=())
        if not compare_arrays(*(_listed(computed) for computed in (ours, again))).rounds_alike:
            raise UnsupportedError(f"{runtime} computes other outputs of {first} each time on the same inputs")
    return comparison


def _rounded(runtime: RuntimeName, ours: Computed, theirs: Computed) -> Comparison:
    """The comparison by `ROUNDING`."""
    outputs = [_listed(computed) for computed in (ours, theirs)]
    comparison = compare_arrays(*outputs, runtime=runtime)
    inside = [name for name in ours.inside if name in theirs.inside]
    note = first_difference(ours.inside, theirs.inside, exact=comparison.exact)
    return replace(comparison, runs=len(ours.outputs), varies=vary(ours.outputs), inside=len(inside), inside_note=note)


def _held(
    paths: tuple[Named, Named],
    graphs: Sequence[Graph],
    feeds: Feeds,
    source: FeedSource,
    opened: Opened,
    proof: Proof | None,
) -> Comparison:
    """The comparison in ONNX Runtime with a file that holds the first, by a proof or as it is said to."""
    first, second = paths
    optimised = proof.optimised if proof is not None and proof.proven else True
    with contextlib.ExitStack() as stack:
        form: Named = first
        if optimised:
            form = opened.form or stack.enter_context(_optimised(first))
        scales = least_scales(graphs[0])
        held = HeldFile.of(second, opened.settings, form, proof, exact=opened.exact, scales=scales)
        inside: list[str] = []
        if opened.form != second:  # a file says nothing about itself
            inside = _common(graphs[0] if form == first else load(form, shapes=source.shapes), graphs[1])
        return held_to_levels(first, held, feeds, inside, ranged=not source.files)


def _listed(computed: Computed) -> list[Array]:
    return [value for run in computed.outputs for value in run]


def _first_computed(
    row: Runtime, path: Named, graph: Graph, names: Sequence[str], source: FeedSource
) -> tuple[Feeds, Computed]:
    """The inputs of the runs, and what the first file computes: the user's inputs, else the first made ones with which
    it runs."""
    if source.files or not choices(graph):
        feeds = read_feeds(graph, source.files) if source.files else made_feeds(graph, seed=source.seed)
        return feeds, row.compute(path, feeds, inside=names)
    errors: list[UnsupportedError] = []
    for choice in CHOICES:
        feeds = made_feeds(graph, seed=source.seed, choice=choice)
        try:
            return feeds, row.compute(path, feeds, inside=names)
        except UnsupportedError as error:
            errors.append(error)
    raise errors[0]


def with_offsets(first: Named, second: Named, comparison: Comparison, source: FeedSource) -> Comparison:
    """The comparison, with a run of both files in TFLite Micro added where the second holds offsets that no run has
    used yet. If their outputs differ there, that comparison is returned instead. Nothing is added where TFLite Micro is
    missing, does not run the files or takes too long."""
    if (
        comparison.proof is None
        or not comparison.proof.placed
        or comparison.runtime == "tflm"
        or not comparison.rounds_alike
    ):
        return comparison
    try:
        placed = compare_outputs(first, second, runtime="tflm", source=source, proof=comparison.proof)
    except (UnsupportedError, LimitReached):
        return comparison
    return replace(comparison, placed=True) if placed.rounds_alike else replace(placed, placed=False)


def _common(first: Graph, second: Graph) -> list[str]:
    """Names of tensors that operators make in both files, with equal shape and type, and that are not outputs."""
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
