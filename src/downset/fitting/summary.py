"""The result of a fit: the figures of what ships, and notes about what it costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

from downset.budget import INTERRUPTED
from downset.errors import DownsetError, UnsupportedError
from downset.fitting.candidates import Candidate, Original
from downset.fitting.choosing import Candidates, FileChoice
from downset.fitting.fronts import measured_front
from downset.fitting.job import Job, policy_of
from downset.fitting.measuring import growth
from downset.fitting.offer import fit_call, offer_strips
from downset.fitting.other_sizes import axes_of, growth_by_axis
from downset.fitting.planning import Planned, strip_limits
from downset.fitting.proving import processes_of_program, run_program
from downset.fitting.strip_notes import note_arithmetic
from downset.fitting.strips import search_strips
from downset.fitting.trials import disk_bytes, in_strips, shipped_bytes
from downset.fitting.verdict import running_bodies
from downset.formats.onnx.metadata import foreign_operators
from downset.graph.core import Graph
from downset.graph.kinds import GROUP_QUERY_ATTENTION
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.models import memory_model, without_overlaps
from downset.messages import Call, Message, Setting
from downset.results.fit import Figure, Fit, Measured
from downset.results.plans import Order
from downset.results.policy import Policy
from downset.results.processes import LitertKernels, LitertProcess, ProcessFit, middle_growth
from downset.runtimes.versions import versions_of_target
from downset.text import counted, format_bytes

__all__ = ["complete", "summarise"]

_LARGER = 1.05
"""A file that is at least this many times as large as the original is reported."""


def summarise(job: Job, original: Original, planned: Planned, candidates: Candidates, choice: FileChoice) -> Fit:
    """The figures of the file that ships, next to those of the original."""
    chosen, options = choice.file, job.options
    # The best plan stands in the result where a file without a plan ships.
    plan = planned.best if chosen.plan is None else chosen.plan
    measured = _measured(job, candidates, choice)
    if in_strips(chosen) and choice.process is None:
        note_arithmetic(job, planned.best.graph, [chosen])
    _note_costs(job, choice)
    _note_hurry(job, planned, candidates)
    _note_plan(job, chosen, plan.together.arena.arena_bytes, measured)
    job.notes.add(*_bodies(plan.graph), *_one_buffer(original.graph))
    return Fit(
        str(options.model),
        job.target.name,
        plan.graph,
        original.before,
        plan.together,
        _peak(job, planned.best.graph, chosen, plan.together.order),
        _figure(original.before.arena_bytes, chosen.arena_bytes, int(plan.together.order.evidence.bound)),
        chosen.name,
        measured,
        choice.outputs,
        None,
        rewrites=chosen.rewrites,
        not_measured=job.notes.not_measured if measured is None and job.target.measures else "",
        not_in_tflm=job.notes.not_in_tflm,
        policy=policy_of(options, job.target) if choice.process is None else _policy_of_process(choice.process),
        beyond_policy=candidates.beyond,
        disk_bytes=(disk_bytes(job.path), shipped_bytes(chosen)),
        session=None if measured is None else chosen.settings,
        original=planned.best.graph,
        int8_form=original.int8_form,
        kernels=options.kernels,
        time_limit_s=options.time_limit_s,
        work_limit=options.work_limit,
        versions=versions_of_target(job.target.name),
        command=_command(job),
        seed=options.seed,
        interrupted=INTERRUPTED.is_set(),
        open_axes=axes_of(job),
        process=choice.process,
    )


def _policy_of_process(process: ProcessFit) -> Policy:
    return Policy(None if process.slower == math.inf else process.slower, process.larger)


def _command(job: Job) -> Call:
    """The call that asks for this result. It names the target, unless that follows from what TFLite Micro refuses."""
    if job.notes.not_in_tflm:
        return fit_call(job.stated, "time_limit_s", "rewrite")
    return fit_call(replace(job.stated, target=job.target.name), "target", "time_limit_s", "rewrite")


def complete(job: Job, planned: Planned, candidates: Candidates, choice: FileChoice, result: Fit) -> Fit:
    """The result with what is found out about the file that ships: its times, the front of plans in strips, what more
    strips could gain, what the written program holds, and the notes."""
    result = _with_front(job, planned, candidates, choice, _with_times(job, choice, result))
    result = _with_processes(job, candidates, choice, result)
    result = _with_offer(job, candidates, result)
    if result.session is not None:
        count = processes_of_program(result.session)
        job.listener.progress(f"running the program that opens it in {count} processes")
        result = run_program(job, choice.file, result)
    result = replace(result, growth=growth_by_axis(job, planned.best.graph, choice.file))
    return replace(result, notes=tuple(job.notes))


def _figure(before: int, after: int, bound: int) -> Figure:
    return Figure(before, after, min(bound, after), after <= bound)


def _peak(job: Job, graph: Graph, chosen: Candidate, order: Order) -> Figure:
    """The peak of the file's order and of the chosen file's. Nothing overlaps in the original, which the runtime
    places."""
    problem = order_problem(graph, without_overlaps(memory_model(job.target.memory)))
    before = peak_bytes(problem, range(len(graph.ops)))
    return _figure(before, before if chosen.plan is None else order.peak_bytes, int(order.evidence.bound))


def _measured(job: Job, candidates: Candidates, choice: FileChoice) -> Measured | None:
    first, chosen = candidates.original.measured, choice.file
    if first is None or chosen.measured is None:
        return None
    details = {item.label: item.measured for item in candidates.files if item.measured is not None}
    details[chosen.label] = chosen.measured
    return Measured(
        job.target.name,
        first["total_bytes"],
        chosen.measured["total_bytes"],
        details,
        rows=choice.rows,
        front=choice.front,
        kernel_bytes=(first.get("kernel_bytes", 0), chosen.measured.get("kernel_bytes", 0)),
    )


def _note_hurry(job: Job, planned: Planned, candidates: Candidates) -> None:
    """Add a note where time ended a search on which the choice depends."""
    searches = [*candidates.searches, *([candidates.strips] if candidates.strips else [])]
    plans = [plan.together for plan in planned.plans]
    ended = [one.evidence.stopped_by for together in plans for one in (together.order, together.arena)]
    ended += [search.front.stopped_by for search in searches]
    ended += [arena.evidence.stopped_by for search in searches for _, arena in search.placing.files_of.values()]
    hurried = "time" in ended or any(search.placing.cut for search in searches)
    if (hurried or job.search_time.cut or job.search_time.left_s == 0) and not INTERRUPTED.is_set():
        limit = Setting("time_limit_s", job.options.time_limit_s)
        said = "the time limit ended a search ("
        job.notes.add(Message(said, limit, "): under another load of this machine another file may be chosen"))


def _note_costs(job: Job, choice: FileChoice) -> None:
    """Add notes about what the shipped file costs: foreign operators, a larger file, a larger process."""
    job.notes.add(*_foreign_operators(job, choice.file), *_file_size(job, choice.file), *growth(choice.rows))


def _note_plan(job: Job, chosen: Candidate, arena_bytes: int, measured: Measured | None) -> None:
    """Add a note where a plan takes less memory than the file that ships, unless the policy left it out, as another
    note then says."""
    if arena_bytes >= chosen.arena_bytes:
        return
    exists = f"a plan of {format_bytes(arena_bytes)} B exists, but "
    if job.target.place is not None and not job.target.offsets:
        job.notes.add(f"{exists}{job.target.name} places tensors by itself and follows no offsets")
    elif measured is not None and measured.is_least():
        job.notes.add(f"{exists}the runtime took less memory in all for the {chosen.name} file")


def _file_size(job: Job, chosen: Candidate) -> list[str]:
    """A note where the shipped file is larger than the original."""
    before, after = disk_bytes(job.path), shipped_bytes(chosen)
    if after < _LARGER * before:
        return []
    return [
        f"the file is {after / before:.2f} times as large as the original: {format_bytes(after)} B in place of "
        f"{format_bytes(before)}"
    ]


def _foreign_operators(job: Job, chosen: Candidate) -> list[str]:
    """A note where the shipped file holds operators of ONNX Runtime that are not standard ONNX and not in the
    original."""
    if job.form != ".onnx" or chosen.name == "original":
        return []
    had = foreign_operators(job.path)
    has = {kind: count for kind, count in foreign_operators(chosen.path).items() if kind not in had}
    if not has:
        return []
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(has.items()))
    return [f"the file holds operators of ONNX Runtime's own, which other runtimes do not read: {listed}"]


def _bodies(graph: Graph) -> list[str]:
    """A note for networks with operators that run bodies (If, Loop, Scan)."""
    running = running_bodies(graph)
    if not running:
        return []
    return [
        f"{running}: the memory of a body while it runs is in no figure of the plan, and the proof does not cover it"
    ]


_OVER_INPUT = {GROUP_QUERY_ATTENTION: ((3, 1), (4, 2)), "TensorScatter": ((0, 0),)}
"""By kind: the inputs over which ONNX Runtime's kernels write an output, as positions of both, where a caller binds one
buffer to them."""


def _one_buffer(graph: Graph) -> list[str]:
    """A note for decoders whose past and present may be one buffer of the caller's."""
    ends, saved = [], 0
    for op in graph.ops:
        for source, result in _OVER_INPUT.get(op.kind, ()):
            if max(source - len(op.inputs), result - len(op.outputs)) >= 0:
                continue
            past, present = op.inputs[source], op.outputs[result]
            if past in graph.inputs and present in graph.outputs:
                one, other = graph.tensors[past], graph.tensors[present]
                if (one.shape, one.dtype) == (other.shape, other.dtype):
                    ends.append(f"{one.name} and {other.name}")
                    saved += one.nbytes
    if not ends:
        return []
    listed = ", ".join(ends[:2]) + (f", and {counted(len(ends) - 2, 'other pair')}" if len(ends) > 2 else "")
    return [
        f"a caller may bind one buffer as input and output (io_binding): {listed}; {format_bytes(saved)} B less for it"
    ]


def _with_times(job: Job, choice: FileChoice, result: Fit) -> Fit:
    """The result with the times of both files, where the target's runtime was timed without sessions."""
    latency = choice.file.latency
    if result.measured is None or job.target.time is None or latency is None:
        return result
    return replace(result, measured=replace(result.measured, before_s=latency.usual_s, latency=latency))


def _with_processes(job: Job, candidates: Candidates, choice: FileChoice, result: Fit) -> Fit:
    """The result with the growth of a new process for the original and for the file that ships, with XNNPACK and with
    the built-in kernels, where the target's runtime measures it in addition to the arena."""
    if job.target.processes is None or result.measured is None:
        return result
    job.listener.progress("measuring processes")
    paths = {"original": candidates.original.path, choice.file.name: choice.file.path}
    opened = [(name, kernels) for kernels in get_args(LitertKernels) for name in paths]
    try:
        asked = [(paths[name], kernels) for name, kernels in opened]
        readings = job.target.processes(asked, shapes=job.options.shapes, seed=job.options.seed)
    except DownsetError as error:
        job.notes.add(Message("processes were not measured: ", error.message))
        return result
    processes = tuple(
        LitertProcess(*named, middle_growth(read)) for named, read in zip(opened, readings, strict=True) if read
    )
    return replace(result, measured=replace(result.measured, processes=processes))


def _with_front(job: Job, planned: Planned, candidates: Candidates, choice: FileChoice, result: Fit) -> Fit:
    """The result with the front of plans in strips, a few of them measured, if it is asked for."""
    if not job.options.front or not (candidates.strips or job.may_search("no front")):
        return result
    try:
        search = candidates.strips or search_strips(job, planned.best, strip_limits(job, planned.share_s))
    except UnsupportedError as error:
        job.notes.add(Message("no front: ", error.message))
        return result
    return replace(result, front=measured_front(job, search, candidates.trials, choice.file))


def _with_offer(job: Job, candidates: Candidates, result: Fit) -> Fit:
    """The result with the step to segments in strips that need less, where no option asks for them."""
    options, search = job.stated, candidates.strips
    if options.limits_strips or options.front or (job.planned_bytes is not None and search is None):
        return result
    call = fit_call(replace(options, ram_bytes=None, arena_bytes=None))
    return replace(result, in_strips=offer_strips(job, candidates, result, call))
