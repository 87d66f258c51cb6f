"""The documents of stages: of a plan, and of a search with its measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Literal

from downset.graph.float_types import OWN
from downset.messages import Message
from downset.reports.document import (
    PAGE,
    TERMINAL,
    ChartGroup,
    Column,
    Document,
    Facts,
    Picture,
    Section,
    Steps,
    Table,
    Value,
    Verdict,
    named,
)
from downset.reports.time_steps import stage_next_steps
from downset.reports.timeline import stage_timeline
from downset.results.plans import StagePlan
from downset.results.stages import StageCandidate, StageResult, StageRun, is_steady, peer_times, percentile
from downset.text import counted, format_bytes, format_seconds, printable

__all__ = ["peer_lines", "run_document", "stage_document", "stage_plan_document"]


def stage_plan_document(plan: StagePlan, *, title: str = "Stages") -> Document:
    """A plan alone: the units of each group, or the merged units."""
    verdict = Verdict("plain", f"{_count(plan)}: {format_seconds(plan.evidence.value)}")
    how = "measured, median" if plan.device else "from prices, for no device"
    figures = (Value("latency", plan.evidence.value, format_seconds, how),)
    waits = "with barriers" if plan.barriers else "without barriers"
    sections = (
        Section("Stages", (Picture(lambda: _lanes(plan, (), ())), Facts((waits, *_stage_lines(plan)), TERMINAL))),
    )
    return Document(printable(title), _subtitle(plan), verdict, sections, figures, _foot(plan))


def stage_document(result: StageResult, *, title: str = "Stages", notes: Sequence[str] = ()) -> Document:
    """The result of a search for stages; docs/schemas/stage.json has its keys. `notes`: more of them for JSON."""
    plan = result.plan
    state, headline = _verdict(result)
    kept = plan.evidence.method == result.candidates[0].name
    first = "" if kept else f"{format_seconds(result.candidates[0].percentile(0.5))} → "
    how_bound = "the longest path of units timed alone, or all arithmetic at its best rate"
    chosen = frozenset(place for place, one in enumerate(result.candidates) if one.name == plan.evidence.method)
    figures = (
        Value("latency, measured", f"{first}{format_seconds(plan.evidence.value)}", remark=_spread(result), on=PAGE),
        Value("bound", result.bound_s, format_seconds, how_bound, key="bound_s", missing="not known"),
        Value("stages timed", result.timings_used, key="timings_used"),
    )
    lanes = Picture(lambda: _lanes(plan, result.unit_s, result.unit_names))
    caption = f"candidates, {counted(len(result.candidates[0].seconds), 'run')} each"
    table = Table(_candidate_columns(result), result.candidates, caption, key="candidates", marked=chosen, on=TERMINAL)
    peers = Table(_PEERS, list(result.peer_s.items()), "runtimes, in rounds with rests between them", key="peers")
    sections = (
        Section("Stages", (lanes,)),
        Section("Candidates", (table, Picture(lambda: _candidates(result)))),
        Section("Other runtimes", (peers, *_facts(peer_lines(result.peer_s)))),
        Section("What could be done next", (Steps(tuple(stage_next_steps(result))),)),
        Section("In words", _facts([Message("note: ", note) for note in result.notes], page=True)),
    )
    data = named(plan, "versions", "dtype", "batch") | {"device": plan.device_name, "chosen": plan.evidence.method}
    data |= named(result, "asked", "speedup", "why") | {"notes": [*result.notes, *notes]}
    verdict = Verdict(state, headline, result.why)
    return Document(printable(title), _subtitle(plan), verdict, sections, figures, _foot(plan), data)


def run_document(run: StageRun, outputs: Sequence[str]) -> Document:
    """A run of a plan of stages; docs/schemas/run.json has its keys. `outputs`: a line on each output."""
    worst = run.max_relative_error
    finite = worst is None or worst < float("inf")  # JSON has no infinity
    difference = Value(
        "largest difference from ONNX Runtime, as a share of the largest value",
        worst if finite else None,
        lambda error: f"{error:.1e}",
        f"allowed: {run.allowed_error}",
        key="max_relative_error",
    )
    figures = (Value("runs", len(run.seconds), key="runs"), difference)
    median_s = percentile(run.seconds, 0.5)
    lines = (*outputs, *([run.cast] if run.cast else []))
    verdict = Verdict("good" if run.agrees else "bad", f"{run.device_name}: median {format_seconds(median_s)}")
    data = {"device": run.device_name, "p50_s": median_s, "cast": run.cast or None}
    return Document("", "", verdict, (Section("Outputs", (Facts(lines),)),), figures, data=data)


def _facts(lines: Sequence[str], *, page: bool = False) -> tuple[Facts, ...]:
    if not lines:
        return ()
    return (Facts(tuple(lines), PAGE) if page else Facts(tuple(lines)),)


def _count(plan: StagePlan) -> str:
    return f"{counted(len(plan.units), 'unit')} in {counted(len(plan.stages), 'stage')}"


def _subtitle(plan: StagePlan) -> str:
    device = f"{plan.device_name}, {_type_text(plan)}, batch {plan.batch}" if plan.device else "no device"
    return f"{_count(plan)} on {device}"


def _foot(plan: StagePlan) -> tuple[Value, ...]:
    return (
        Value("device", plan.device_name),
        Value("type", _type_text(plan)),
        Value("batch", plan.batch),
        Value("versions", plan.versions),
    )


def _type_text(plan: StagePlan) -> str:
    """The element type in which the plan computes floats."""
    return "the model's float types" if plan.dtype == OWN else plan.dtype


def _stage_lines(plan: StagePlan) -> list[str]:
    lines = []
    for number, stage in enumerate(plan.stages):
        groups = ["[" + " ".join(map(str, group)) + "]" for group in stage.groups]
        lines.append(f"stage {number}: {'merged ' if stage.merged else ''}{' '.join(groups)}")
    return lines


_PEERS = (
    Column("runtime", itemgetter(0), key="name", left=True),
    Column("p10", lambda item: percentile(item[1], 0.1), format_seconds, key="p10_s"),
    Column("p50", lambda item: percentile(item[1], 0.5), format_seconds, key="p50_s"),
    Column("p90", lambda item: percentile(item[1], 0.9), format_seconds, key="p90_s"),
)


def peer_lines(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """A line on the runtimes of which it is not known whether they are faster than ours ("downset"). The verdict names
    those that are."""
    not_known = peer_times(seconds).not_known
    if not not_known:
        return []
    verb = "is" if len(not_known) == 1 else "are"
    return [
        f"it is not known whether {' and '.join(not_known)} {verb} faster than this plan: repeated times vary too much "
        "(p90 over p10)"
    ]


def _verdict(result: StageResult) -> tuple[Literal["good", "unknown", "plain"], str]:
    """(the state, the headline) of a search: good only where no other candidate and no runtime is known to be faster,
    and the times tell."""
    method, sequential = result.plan.evidence.method, result.candidates[0]
    times = peer_times(result.peer_s)
    if result.asked:
        headline = f"{method} taken, as asked for"
        if method != sequential.name:
            gain = f"{result.speedup:.2f}x against one after another"
            headline += f": {gain if is_steady(sequential.seconds) else 'not known whether it is faster'}"
    elif method != sequential.name:
        headline = f"{method} chosen: {result.speedup:.2f}x against one after another"
    elif len(result.candidates) == 1:
        headline = "One after another: there is no other schedule"
    else:
        headline = "One after another is kept: no other candidate is known to be faster"
    if times.faster:
        headline += "; " + ", ".join(f"{name} is faster than this plan, {times.ratio(name)}" for name in times.faster)
    if result.asked or times.faster:
        return "plain", headline
    return ("good" if is_steady(sequential.seconds) else "unknown"), headline


def _spread(result: StageResult) -> str:
    """Words for a measured latency: the median of how many runs, and how far they spread."""
    chosen = next(one for one in result.candidates if one.name == result.plan.evidence.method)
    low, high = format_seconds(chosen.percentile(0.1)), format_seconds(chosen.percentile(0.9))
    spread = "" if is_steady(chosen.seconds) else "; they vary too much to compare"
    return f"median of {counted(len(chosen.seconds), 'run')}, p10 {low} to p90 {high}{spread}"


def _candidate_columns(result: StageResult) -> tuple[Column, ...]:
    base_s = result.candidates[0].percentile(0.5)

    def speed_up(candidate: StageCandidate) -> str:
        return f"{base_s / candidate.percentile(0.5):.2f}x"

    return (
        Column("candidate", "name", key="name", left=True),
        Column("p10", lambda one: one.percentile(0.1), format_seconds, key="p10_s"),
        Column("p50", lambda one: one.percentile(0.5), format_seconds, key="p50_s"),
        Column("p90", lambda one: one.percentile(0.9), format_seconds, key="p90_s"),
        Column("speed-up", speed_up),
        Column("stages", lambda one: len(one.stages), key="stages"),
        Column("live bytes (analytic)", "live_bytes", format_bytes, key="live_bytes"),
    )


def _lanes(plan: StagePlan, unit_s: Sequence[float], unit_names: Sequence[str]) -> ChartGroup:
    """Stages as lanes over time."""
    from dataclasses import replace

    from downset.reports.page.timeline_figure import gantt_figure

    timeline = stage_timeline(plan, unit_s, unit_names)
    title = "Stages: groups side by side, a stage after the one before it"
    figure = gantt_figure(title, [timeline], unit="stage", timed=bool(unit_s))
    if not unit_s:
        return figure
    note = (
        f"The figure lays out units as timed alone, {format_seconds(timeline.end_s)} in all; a whole run took "
        f"{format_seconds(plan.evidence.value)} in the median (measured)."
    )
    return replace(figure, note=note)


def _candidates(result: StageResult) -> ChartGroup:
    """A chart with a bar from the 10th to the 90th percentile of each candidate; a mark shows the median."""
    from downset.reports.axes import Axis
    from downset.reports.charts import Chart, Mark

    marks, chosen = [], set[int]()
    for place, candidate in enumerate(result.candidates):
        low, middle, high = (candidate.percentile(share) for share in (0.1, 0.5, 0.9))
        best = candidate.name == result.plan.evidence.method
        chosen |= {place} if best else set()
        marks.append(Mark(low, place + 0.25, max(high - low, 1e-9), 0.5, "c1" if best else "c0", f"k{place}"))
        marks.append(Mark(middle - 0.0015 * high, place + 0.1, 0.003 * high, 0.8, "moved", f"k{place}"))
    last = max((candidate.percentile(0.9) for candidate in result.candidates), default=1.0)
    names = tuple(candidate.name for candidate in result.candidates)
    chart = Chart(
        "Candidates",
        Axis(0.0, 1.1 * last, "one run", "s"),
        Axis(0, max(1, len(names)), "", "lanes", names),
        tuple(marks),
        height_px=max(40, 24 * len(names)),
    )
    ids = tuple(f"k{place}" for place in range(len(names)))
    table = Table(_candidate_columns(result), result.candidates, "Candidates", ids=ids, marked=frozenset(chosen))
    return ChartGroup(
        "Candidates, measured in interleaved rounds: bars from p10 to p90, the median marked.",
        (("", chart),),
        (("c1", "chosen"), ("c0", "other candidates")),
        (table,),
    )
