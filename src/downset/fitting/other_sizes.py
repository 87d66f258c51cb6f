"""Runs at sizes other than those that a file was planned for, where the original leaves sizes open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from downset.errors import DownsetError, InvalidPlan, LimitReached, UnsupportedError
from downset.fitting.candidates import Candidate
from downset.fitting.job import Job
from downset.fitting.ranges import SizeRanges
from downset.formats.onnx.open_axes import open_axes, other_shapes, resized
from downset.graph.core import Graph
from downset.messages import Message
from downset.reports.comparisons import difference
from downset.results.open_axes import AxisGrowth, OpenAxis
from downset.runtimes.feeds import Feeds, made_feeds
from downset.runtimes.outputs import in_ort
from downset.runtimes.rounding import HeldFile, held_to_levels, same_at_a_level

__all__ = ["axes_of", "growth_by_axis", "held_at_other_sizes", "not_run_at"]

Shapes = Mapping[str, tuple[int, ...]]

_AXES = 4
"""The most axes along which the growth of memory is measured."""


def held_at_other_sizes(job: Job, graph: Graph, held: HeldFile, *, in_strips: bool = False) -> tuple[str, ...]:
    """The smaller and the larger sizes at which the file, too, computes what the original computes; none where no size
    is open. `graph`: the network at the planned sizes. `in_strips`: the file is also held to it at sizes of which some
    strips have no rows. Raises InvalidPlan where the file computes something else."""
    axes = axes_of(job)
    if not axes:
        return ()
    told = []
    for sizes, shapes in _tried(job, graph, axes, in_strips=in_strips):
        if sizes in told:
            continue
        try:
            feeds = _feeds(job, graph, shapes)
            if held.exact and same_at_a_level(job.path, held, feeds):
                told.append(sizes)
                continue
            comparison = held_to_levels(job.path, held, feeds, (), ranged=False)
        except LimitReached:  # larger inputs take longer, which says nothing about the file
            continue
        except UnsupportedError as error:
            raise InvalidPlan(f"with {sizes} ONNX Runtime runs the original alone: ", error.message) from None
        if not comparison.rounds_alike:
            raise InvalidPlan(f"with {sizes} it gave other outputs in ort (", difference(comparison), ")")
        told.append(sizes)
    return tuple(told)


def not_run_at(job: Job, graph: Graph, striped: Path) -> str:
    """The first sizes of the open axes with which ONNX Runtime runs the original alone, and not this file in strips: a
    strip may have no rows then. Empty where there are none."""
    axes = axes_of(job)
    for sizes, shapes in _tried(job, graph, axes, in_strips=True) if axes else ():
        try:
            in_ort(striped, _feeds(job, graph, shapes)[:1])
        except DownsetError:
            return sizes
    return ""


def _tried(job: Job, graph: Graph, axes: Sequence[OpenAxis], *, in_strips: bool) -> Iterator[tuple[str, Shapes]]:
    """The other sizes at which files are tried, as they are told, with which ONNX Runtime runs the original."""
    for tried in [*_others(job, axes), *(_few_rows(job, axes) if in_strips else [])]:
        shapes = _first_that_runs(job, graph, tried)
        if shapes is not None:
            yield _listed(axes, shapes), shapes


def _others(job: Job, axes: Sequence[OpenAxis]) -> list[Iterable[Shapes]]:
    """By size at which a file is held to the original: the shapes that are tried for it. These are smaller and larger
    ones; with ranges the least of these, and those in the middle, since the largest are planned."""
    if job.ranges is not None:
        return [[job.ranges.shapes_at(sizes)] for sizes in job.ranges.between()]
    return [other_shapes(axes, job.options.shapes or {}, larger=larger) for larger in (False, True)]


def _few_rows(job: Job, axes: Sequence[OpenAxis]) -> list[Iterable[Shapes]]:
    """Shapes in which one open axis has half its size, and in which it has the size 1."""
    shapes = job.options.shapes or {}
    sizes = [(axis, size) for axis in axes for size in dict.fromkeys((axis.size // 2, 1)) if 0 < size < axis.size]
    return [[resized([axis], shapes, {axis.name: size})] for axis, size in sizes]


def growth_by_axis(job: Job, graph: Graph, chosen: Candidate) -> tuple[AxisGrowth, ...]:
    """How the bytes in use grow with each open axis alone, as far as the original runs at a larger size of it."""
    sessions = job.target.sessions
    if sessions is None or chosen.measured is None or chosen.settings is None:
        return ()
    axes, grown = axes_of(job), []
    if job.ranges is not None:
        return tuple(filter(None, (_curve(job, job.ranges, name, chosen) for name in job.ranges.ranges)))
    if axes:
        job.listener.progress("measuring at other sizes of the open axes")
    for axis in axes[:_AXES]:
        larger = list(other_shapes([axis], job.options.shapes or {}, larger=True))
        shapes = _first_that_runs(job, graph, larger[::-1])
        if shapes is None:
            continue
        name, place = axis.places[0]
        try:
            (taken,) = sessions.measure(chosen.path, [chosen.settings], shapes=shapes, seed=job.options.seed)
        except DownsetError as error:
            job.notes.add(Message(f"bytes for each {axis.name} not measured: ", error.message))
            continue
        in_use = (chosen.measured["in_use_bytes"], taken.nbytes["in_use_bytes"])
        grown.append(AxisGrowth(axis.name, axis.size, in_use[0], shapes[name][place], in_use[1]))
    return tuple(grown)


def _curve(job: Job, ranges: SizeRanges, name: str, chosen: Candidate) -> AxisGrowth | None:
    """The bytes in use at sizes of a range, the others as planned; None, with a note, where a run failed."""
    assert job.target.sessions is not None
    assert chosen.measured is not None
    job.listener.progress(f"measuring at other sizes of {name}")
    points = []
    for size in ranges.curve(name):
        try:
            (taken,) = job.target.sessions.measure(
                chosen.path, [chosen.settings], shapes=ranges.shapes_at({name: size}), seed=job.options.seed
            )
        except DownsetError as error:
            job.notes.add(Message(f"bytes at {name} = {size} not measured: ", error.message))
            continue
        points.append((size, taken.nbytes["in_use_bytes"]))
    if not points:
        return None
    largest = (ranges.ranges[name][-1], chosen.measured["in_use_bytes"])
    return AxisGrowth(name, *largest, *points[0], (*points, largest))


def axes_of(job: Job) -> tuple[OpenAxis, ...]:
    """The sizes of inputs that the model leaves open."""
    if job.form != ".onnx" or not job.options.shapes:
        return ()
    return tuple(open_axes(job.path, job.options.shapes))


def _listed(axes: Iterable[OpenAxis], shapes: Shapes) -> str:
    return ", ".join(f"{axis.name} = {shapes[axis.places[0][0]][axis.places[0][1]]}" for axis in axes)


def _first_that_runs(job: Job, graph: Graph, tried: Iterable[Shapes]) -> Shapes | None:
    """The first of these shapes with which ONNX Runtime runs the original."""
    for shapes in tried:
        try:
            in_ort(job.path, _feeds(job, graph, shapes)[:1])
        except DownsetError:
            continue
        return shapes
    return None


def _feeds(job: Job, graph: Graph, shapes: Shapes) -> Feeds:
    """Inputs of these shapes."""
    tensors = list(graph.tensors)
    for tensor in graph.inputs:
        tensors[tensor] = replace(tensors[tensor], shape=shapes.get(tensors[tensor].name, tensors[tensor].shape))
    return made_feeds(replace(graph, tensors=tuple(tensors)), seed=job.options.seed)
