"""Writes a network with its merges as an .onnx file for other runtimes, where that is faster in ONNX Runtime.

Each candidate, the merges of some families, is first proven from its file, then timed in turns with the original, both
in new processes. The fastest that is not slower by any measure runs again in fresh processes, because the rounds in
which it won flatter it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from downset.equivalence.prove import prove
from downset.errors import DownsetError, InvalidPlan, UnsupportedError, UsageError
from downset.formats.onnx.data_files import check_room_for_weights, link_weights, weights_beside, weights_brought
from downset.formats.onnx.open_axes import open_axes, other_shapes
from downset.formats.onnx.read import without_defaults
from downset.formats.onnx.write import export_onnx
from downset.formats.onnx.written import copy_model
from downset.formats.reading import load
from downset.graph.core import Graph
from downset.messages import Message, Setting
from downset.process.whole_files import check_output
from downset.reports.comparisons import difference
from downset.results.merged import LIMIT, FileTimes, MergedFile, MergedNetwork, worst
from downset.results.open_axes import OpenAxis
from downset.rewrites.merge.families import FAMILIES, merge_families, merges_of
from downset.rewrites.merge.sites import MergeSite
from downset.runtimes.compare import compare
from downset.runtimes.feeds import made_feeds
from downset.runtimes.ort_timed import turns
from downset.runtimes.outputs import in_ort
from downset.runtimes.versions import versions_of
from downset.text import counted, unheard
from downset.tuning.search import Progress

__all__ = ["MERGED_NAMES", "export_merged"]

Named = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]

MERGED_NAMES = (*FAMILIES, "all", "greedy")
"""The names of all candidates that a network can have. `all`: every family. `greedy`: the families that are faster
alone, one more at a time, as long as that is faster."""
_FRESH = 3
"""How often the chosen file and the original are opened again for the rounds after the choice."""
_LEAST_SEARCHED = 5
"""The fewest rounds of a candidate in the search, where it has half of the rounds after the choice."""


def export_merged(  # noqa: PLR0913 - users know its keywords
    model: Named,
    output: Named | None = None,
    *,
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    threads: Sequence[int] = (1, 2),
    runs: int = 15,
    seed: int = 0,
    candidate: str | None = None,
    progress: Progress = unheard,
) -> MergedNetwork:
    """Merge operators of an .onnx file into fewer (stacked kernels, pools swapped with 1x1 convolutions, separable
    convolutions side by side), and write it to `output` if the result is faster in ONNX Runtime. Each family of merges,
    all of them, and a greedy choice are proven and timed: latency and processor time, with each of `threads`, in rounds
    in which the file and the original take turns; there are about `runs` after the choice, in fresh processes. A file
    is taken that is faster and in no measure slower than 1.02 times the original, or the one named `candidate`
    (MERGED_NAMES) whatever its time is; otherwise nothing is written.

    Inputs, outputs, their names and what is open stay. `shapes` and `dims` fix open sizes for proofs and times, as
    `load` does; the file that is taken is also proven and run at other sizes. Raises UnsupportedError for a file that
    is no .onnx file, that ONNX Runtime does not run or that has no merge named `candidate`, and UsageError for other
    names and bad numbers.
    """
    check_merged_candidate(candidate)
    if runs < 1 or not threads or min(threads) < 1 or seed < 0:
        raise UsageError(f"runs and threads must be at least 1, seed at least 0; given {runs}, {list(threads)}, {seed}")
    graph = without_defaults(load(model, shapes=shapes, dims=dims))
    if graph.source.format != "onnx":
        raise UnsupportedError(f"merges are written into .onnx files, and {model} is not one")
    if output is not None:
        check_output(output, source=[model, *weights_beside(graph)])
        check_room_for_weights(Path(model), Path(output))
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        job = _MergeJob(Path(model), graph, Path(folder), tuple(threads), runs, seed, progress)
        return _exported(job, candidate, None if output is None else Path(output))


def check_merged_candidate(name: str | None) -> None:
    """Raise UsageError for a name that no candidate has, with the close one."""
    if name is not None and name not in MERGED_NAMES:
        close = get_close_matches(name, MERGED_NAMES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        listed = ", ".join(map(repr, MERGED_NAMES))
        raise UsageError(Setting("candidate"), f" must be one of {listed}; given {name!r}{hint}")


@dataclass(frozen=True, slots=True)
class _MergeJob:
    """`graph`: the network at the sizes for which it is timed. `folder`: for files that are tried."""

    path: Path
    graph: Graph
    folder: Path
    threads: tuple[int, ...]
    runs: int
    seed: int
    progress: Progress

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {self.graph.tensors[tensor].name: self.graph.tensors[tensor].shape for tensor in self.graph.inputs}

    def file(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '_')}.onnx"

    def times(self, name: str, *, fresh: int, rounds: int) -> tuple[FileTimes, ...]:
        """A candidate and the original in turns, opened so often in new processes, with each number of threads."""
        feeds = made_feeds(self.graph, seed=self.seed)[0]
        files = [self.path, self.file(name)]
        timed = []
        for count in self.threads:
            rows = [row for _ in range(fresh) for row in turns(files, feeds, threads=count, rounds=rounds)]
            latency, cpu = (tuple((row[0][index], row[1][index]) for row in rows) for index in (0, 1))
            timed.append(FileTimes(count, latency, cpu))
        return tuple(timed)


def _exported(job: _MergeJob, wanted: str | None, output: Path | None) -> MergedNetwork:
    axes = open_axes(job.path, job.shapes)
    others = _at_other_sizes(job, axes)
    images_open = any(axis > 0 for one in axes for _, axis in one.places)
    sites = merges_of(job.graph, others=list(others.values()), any_size=images_open)
    notes: list[str] = []
    files, names = _timed(job, sites, notes)
    result = MergedNetwork(
        len(job.graph.ops),
        tuple(files),
        chosen="",
        asked=wanted is not None,
        times=(),
        why="no candidate is proven" if notes else "no operators can be merged",
        sizes=job.shapes,
        versions=versions_of("onnx", "onnxruntime"),
        notes=tuple(notes),
    )
    if wanted is not None and wanted not in names:
        raise UsageError(f"{job.path} has no candidate {wanted!r}; it has {', '.join(map(repr, names)) or 'none'}")
    best = _best(files, None if wanted is None else names[wanted])
    if best is None:
        return result
    if wanted is None and (best.ratio >= 1 or best.worst_ratio > LIMIT):
        return replace(result, why=f"the best candidate, {best.name}, {_words(best.times)}")
    return _confirmed(job, result, best, others, output)


def _confirmed(
    job: _MergeJob, result: MergedNetwork, best: MergedFile, others: Mapping[str, Graph], output: Path | None
) -> MergedNetwork:
    """The result with a candidate timed in fresh processes, held to the original, and written, if it gains or was asked
    for."""
    job.progress("confirming the best", 0, 1)
    times = job.times(best.name, fresh=_FRESH, rounds=-(-job.runs // _FRESH))
    gains = worst(times) <= LIMIT and any(one.faster for one in times)
    why = f"{best.name} {_words(times)}, in {len(times[0].cpu_s)} fresh rounds"
    if not result.asked and not gains:
        return replace(result, times=times, why=why)
    held, refusal = _held(job, best, others)
    if refusal:
        if result.asked:
            raise InvalidPlan(f"{job.path}: the file of {best.name!r} was refused: ", refusal, "; please report it")
        note = Message(f"the file of {best.name!r} was refused: ", refusal, "; please report it")
        return replace(result, times=times, why=f"{best.name} was refused", notes=(*result.notes, note))
    if output is not None:
        with weights_brought(job.file(best.name), source=job.path, output=output):
            copy_model(job.file(best.name), output)
    return replace(
        result,
        chosen=best.name,
        times=times,
        why=why,
        other_sizes=held,
        output_path="" if output is None else str(output),
    )


def _at_other_sizes(job: _MergeJob, axes: Sequence[OpenAxis]) -> dict[str, Graph]:
    """The network at a smaller and at a larger choice of its open sizes, as far as ONNX Runtime runs it; by the sizes
    in words."""
    graphs = {}
    for larger in (False, True):
        for shapes in other_shapes(axes, job.shapes, larger=larger):
            try:
                graph = without_defaults(load(job.path, shapes=shapes))
                in_ort(job.path, made_feeds(graph, seed=job.seed)[:1])
            except DownsetError:
                continue
            words = (f"{axis.name} = {shapes[axis.places[0][0]][axis.places[0][1]]}" for axis in axes)
            graphs[", ".join(words)] = graph
            break
    return graphs


def _timed(job: _MergeJob, sites: Sequence[MergeSite], notes: list[str]) -> tuple[list[MergedFile], dict[str, str]]:
    """(the candidates that differ, proven and timed; by the name of each candidate, that of the one with its merges).
    Those that cannot be proven are left out with a note."""
    if not sites:
        return [], {}
    link_weights(job.path, job.folder)
    files: list[MergedFile] = []
    kept: dict[tuple[tuple[str, ...], ...], str] = {}
    names: dict[str, str] = {}

    def tried(name: str, families: Sequence[str]) -> MergedFile | None:
        merged, merges = merge_families(job.graph, sites, families)
        key = tuple((op.name, *map(str, op.outputs)) for op in merged.ops)
        if not merges:
            return None
        if key in kept:
            names[name] = kept[key]
            return next(file for file in files if file.name == kept[key])
        job.progress(f"timing {name}", len(files), len(MERGED_NAMES))
        try:
            export_onnx(job.file(name), merged, range(len(merged.ops)))
        except UnsupportedError as error:
            notes.append(Message(f"candidate {name!r} was left out: ", error.message))
            return None
        proof = prove(job.path, job.file(name), shapes=job.shapes)
        if not proof.proven:
            notes.append(f"candidate {name!r} was left out: not proven ({proof.reason}); please report it")
            return None
        kept[key] = names[name] = name
        times = job.times(name, fresh=1, rounds=max(job.runs // 2, _LEAST_SEARCHED))
        file = MergedFile(name, tuple(families), merges, len(merged.ops), proof, times)
        files.append(file)
        return file

    alone = {name: file for name in FAMILIES if (file := tried(name, [name])) is not None}
    tried("all", tuple(FAMILIES))
    order = sorted((name for name in alone if alone[name].ratio < 1), key=lambda name: alone[name].ratio)
    if len(order) > 1:
        _greedily(order, alone, tried)
    return files, names


def _greedily(
    order: Sequence[str],
    alone: Mapping[str, MergedFile],
    tried: Callable[[str, Sequence[str]], MergedFile | None],
) -> None:
    """Families that are faster alone, put together one after another as long as that is faster."""
    taken, best = [order[0]], alone[order[0]].ratio
    for name in order[1:]:
        file = tried("greedy", [*taken, name])
        if file is not None and file.ratio < best:
            taken, best = [*taken, name], file.ratio


def _best(files: Sequence[MergedFile], wanted: str | None) -> MergedFile | None:
    """The candidate of this name, else the fastest among those that are not slower by any measure, or the fastest of
    all where each is."""
    if wanted is not None:
        return next((file for file in files if file.name == wanted), None)
    allowed = [file for file in files if file.worst_ratio <= LIMIT]
    return min(allowed or files, key=lambda file: file.ratio, default=None)


def _words(times: Sequence[FileTimes]) -> str:
    """The ratios of a file as text."""
    each = []
    for one in times:
        told = [f"{one.cpu_ratio:.3f} of the processor time"] if one.cpu_counts else []
        told += [f"{one.latency_ratio:.3f} of the latency"] if one.latency_counts else []
        what = " and ".join(told) or "a time that is not known, as it varies too much,"
        each.append(f"{what} on {counted(one.threads, 'thread')}")
    return f"takes {', '.join(each)}"


def _held(job: _MergeJob, chosen: MergedFile, others: Mapping[str, Graph]) -> tuple[tuple[str, ...], str]:
    """(the other sizes at which the chosen file is proven, too, and was run; why it is refused, "" where it is not).
    It is refused where a proof fails at any of these sizes, or outputs differ."""
    job.progress("comparing outputs", 0, 1)
    for words, graph in {"": job.graph, **others}.items():
        shapes = {graph.tensors[tensor].name: graph.tensors[tensor].shape for tensor in graph.inputs}
        comparison = compare(job.path, job.file(chosen.name), shapes=shapes, seed=job.seed)
        if comparison.verdict() != "proven":
            why = comparison.reason if comparison.agrees() else difference(comparison)
            return (), Message(f"with {words}: " if words else "", why)
    return tuple(others), ""
