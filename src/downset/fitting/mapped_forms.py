"""Forms of a network whose weights ONNX Runtime maps: made, put into a planned order, and compared with the original.

One form is ONNX Runtime's own optimisation of the original for this processor; others are those of files with few bytes
in use, as they are, and of files in strips as ONNX Runtime optimises them: their convolutions then have the layouts of
the original's. Each exists with the weights that kernels packed, and without; both read one file with weights, which is
written once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downset.errors import DownsetError, UnsupportedError
from downset.fitting.candidates import Candidate, PlannedGraph
from downset.fitting.job import Job
from downset.fitting.trials import in_strips
from downset.formats.onnx.mapped import has_packed, leave_packed
from downset.formats.reading import load
from downset.graph.core import Graph
from downset.joint.order_and_arena import plan_together
from downset.messages import Message
from downset.results.comparisons import Comparison, Proof
from downset.results.processes import ProcessorBound
from downset.results.sessions import DEFAULT, FILE_ORDER, MAPPED, SessionSettings
from downset.runtimes.feeds import Feeds, made_feeds, read_feeds
from downset.runtimes.ort_forms import (
    Level,
    bound_to,
    form_outputs,
    make_form,
    reorder,
    write_typed,
)

__all__ = ["MadeForm", "SameOutputs", "forms_of", "levels_of"]

_Bits = list[tuple[str, tuple[int, ...], bytes]]
"""The outputs of a run, each by its element type, shape and bytes."""
_IMAGES = (0, 255), (2, -2)
"""The values of images on which forms are compared, where a smooth input has 0 and 1."""
_ORDER_SHARE = 0.2
"""The share of the time limit that planning the order of a form may take."""


@dataclass(frozen=True, slots=True)
class MadeForm:
    """A form in the scratch folder. `source`: the candidate from which it was made at this level. `settings`: those
    with which it may be opened, by regions of the arena that double, and of the size that is asked for. `bound`: the
    processor for which its packed weights and its layouts are."""

    path: Path
    source: Candidate
    level: Level
    settings: tuple[SessionSettings, ...]
    bound: ProcessorBound | None
    plan: PlannedGraph | None

    @property
    def of_original(self) -> bool:
        """Whether ONNX Runtime made it of the original alone."""
        return self.source.name == "original"

    def opened(self, settings: SessionSettings) -> Candidate:
        """The form as a candidate that is opened with these settings."""
        name = f"{self.source.name}, mapped"
        if self.of_original:
            name = "mapped, not ordered" if self.plan is None else "mapped"
        nbytes = self.source.arena_bytes if self.plan is None else self.plan.together.arena.arena_bytes
        return Candidate(name, self.path, nbytes, self.plan, settings=settings, mapped=True, bound=self.bound)


def levels_of(source: Candidate) -> tuple[Level, ...]:
    """The levels of optimisation at which forms of a file are made: the next where those of one are of no use."""
    if source.name == "original":
        return ("all",)
    return ("all", "none") if in_strips(source) else ("none",)


def forms_of(job: Job, source: Candidate, level: Level) -> Iterator[MadeForm]:
    """The forms of a file at this level. A form that cannot be made is left out, with a note."""
    try:
        yield from _forms(job, source, level)
    except DownsetError as error:
        job.notes.add(Message(f"no form of the {source.name} file with mapped weights: ", error.message))


def _forms(job: Job, source: Candidate, level: Level) -> Iterator[MadeForm]:
    folder = Path(tempfile.mkdtemp(dir=job.scratch))
    packed_path = folder / "packed.onnx"  # for any source: a form says this name for each of its weights
    version = make_form(source.path, packed_path, level)
    plan = _ordered(job, packed_path, source) if level == "all" else source.plan
    if plan is None and source.name != "original":
        return  # without a plan nothing would say that it is in strips
    paths = {True: packed_path}
    if has_packed(packed_path):
        paths[False] = folder / "plain.onnx"
        leave_packed(packed_path, paths[False])
    for packed, path in paths.items():
        settings = MAPPED[:2] if packed else MAPPED[2:]
        yield MadeForm(path, source, level, settings, bound_to(path, version), plan)


def _ordered(job: Job, path: Path, source: Candidate) -> PlannedGraph | None:
    """Put the nodes of a form into a planned order. None where no order is planned, because time is over or the form
    cannot be read."""
    if not job.may_search("the form for this processor keeps ONNX Runtime's order"):
        return None
    typed = path.with_name(f"typed_{path.name}")
    try:
        write_typed(path, typed, shapes=job.options.shapes, seed=job.options.seed)
        graph = load(typed, shapes=job.options.shapes)
        with job.search_time.running():
            budget = job.budget(_ORDER_SHARE * job.options.time_limit_s)
            together = plan_together(graph, memory=job.target.memory, seed=budget.seed, **budget.limits())
        plan = PlannedGraph(graph, together, source.rewrites)
        reorder(path, _outputs_of(plan))
    except DownsetError as error:
        job.notes.add(Message("the form for this processor keeps ONNX Runtime's order: ", error.message))
        return None
    return plan


def _outputs_of(plan: PlannedGraph) -> list[str]:
    """The first output of each operator in the planned order."""
    graph = plan.graph
    first = ((tensor for tensor in graph.ops[step].outputs if tensor >= 0) for step in plan.together.order.steps)
    return [graph.tensors[next(tensors)].name for tensors in first]


class SameOutputs:
    """Compares forms with what they stand for, bit for bit, on the user's inputs or on several others: those that ONNX
    Runtime optimised with the original as it runs it by default, others with the file that they were made from. What
    forms are compared with runs once."""

    def __init__(self, job: Job, graph: Graph) -> None:
        self._job, self._graph = job, graph
        self._feeds: Feeds = []
        self._expected: dict[Path, list[_Bits]] = {}

    def of(self, form: MadeForm) -> Comparison | None:
        """The comparison; None, with a note, where outputs differ."""
        settings, notes = form.settings[0], self._job.notes
        try:
            self._feeds = self._feeds or self._made()
            expected = self._runs_of_source(form)
            computed = _bits(form_outputs(form.path, settings, self._feeds))
        except UnsupportedError as error:
            notes.add(Message(f"not the {form.opened(settings).label} form: ", error.message))
            return None
        if expected != computed:
            which, other = f"{form.opened(settings).label} form", "what it was made from"
            if form.level == "all":
                which, other = f"form of {form.source.name} that ONNX Runtime optimises", "the original by default"
            notes.add(f"not the {which}: not equal bit for bit to {other}")
            return None
        varies = any(run != computed[0] for run in computed[1:])
        return Comparison(True, 0.0, "ort", proof=Proof(True, optimised=True), runs=len(self._feeds), varies=varies)

    def _made(self) -> Feeds:
        """The user's inputs, or those that are made, with images behind them: of bytes, by whose smaller values many
        channels of a detector stay at zero, and of numbers about zero, as images are normalised. A weight of a channel
        that stays at zero could be any."""
        options = self._job.options
        if given := read_feeds(self._graph, options.inputs):
            return given
        runs = made_feeds(self._graph, seed=options.seed)
        _, smooth, _ = runs  # from 0 to 1
        images = [
            {name: low + (high - low) * array if _is_image(array) else array for name, array in smooth.items()}
            for low, high in _IMAGES
        ]
        return [*runs, *images] if any(map(_is_image, smooth.values())) else runs

    def _runs_of_source(self, form: MadeForm) -> list[_Bits]:
        by_default = form.level == "all"
        path = self._job.path if by_default else form.source.path
        if path not in self._expected:
            usual = DEFAULT if by_default else FILE_ORDER
            self._expected[path] = _bits(form_outputs(path, usual, self._feeds))
        return self._expected[path]


def _is_image(array: Any) -> bool:
    """Whether an input may hold the values of an image: floats by batch, channel, row and column."""
    return bool(array.dtype.kind == "f" and array.ndim == 4)


def _bits(runs: Sequence[Sequence[Any]]) -> list[_Bits]:
    return [[(str(each.dtype), each.shape, each.tobytes()) for each in run] for run in runs]
