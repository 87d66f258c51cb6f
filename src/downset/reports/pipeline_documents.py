"""The documents of a pipeline: of its plan, of a simulation, and of a run. Each shows the plan: its period and the
resource that decides it, what devices do when, and on which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from downset.messages import Message
from downset.reports.document import (
    EVERYWHERE,
    JSON_ONLY,
    PAGE,
    Document,
    Facts,
    Part,
    Picture,
    Section,
    Steps,
    Value,
    Verdict,
    named,
)
from downset.reports.page.timeline_figure import gantt_figure, rows_figure
from downset.reports.pipeline_sentences import (
    busiest_use,
    compared_lines,
    event_line,
    gain_line,
    hand_over_line,
    idle_devices,
    idle_line,
    one_device_line,
    period_claim,
    plan_in_use,
    rate_text,
    rates_line,
    simulation_lines,
    slower_than_planned,
    space_line,
)
from downset.reports.pipeline_tables import devices_table, shares_table, stages_table
from downset.reports.time_steps import pipeline_next_steps, served_next_steps, simulation_next_steps
from downset.reports.timeline import Timeline, busiest_resource, planned_timeline
from downset.results.next_step import NextStep
from downset.results.pipelines import Pipeline
from downset.results.serving import Served, Simulation
from downset.text import counted, format_seconds, printable

__all__ = ["served_document", "simulation_document", "split_document"]

_Upgrades = Mapping[str, Pipeline | None]
_QUANTILES = ("p50", "p90", "p99", "max")
_TOO_FEW = "too few frames to tell a period"


def split_document(
    plan: Pipeline,
    *,
    model: str = "",
    alone: Pipeline | None = None,
    compared: _Upgrades | None = None,
    upgraded: _Upgrades | None = None,
) -> Document:
    """The result of `plan_pipeline`; docs/schemas/split.json has its keys. `alone`: the plan of one device. `compared`:
    plans of other methods, None for a method without a plan within the limits. `upgraded`: plans for upgraded clusters,
    by what is added."""
    others = compared or {}
    schedule, evidence = plan.schedule, plan.evidence
    first, handed = one_device_line(plan) or gain_line(plan, alone), hand_over_line(plan)
    gained = alone is None or plan.period_s < alone.period_s
    state: Literal["good", "plain"] = "good" if evidence.proven and gained else "plain"
    headline = f"{f'{first}; ' if first else ''}a frame every {_period(plan.period_s)}"
    figures = (
        Value("period", plan.period_s, key="period_s", on=JSON_ONLY),
        Value("latency, one frame alone (analytic)", plan.latency_s, format_seconds, key="latency_s"),
    )
    words = [
        line for line in (idle_line(plan), handed, space_line(plan), *compared_lines(plan, others)) if line is not None
    ]
    sections = (
        *_pictures(plan, [], []),
        Section("Stages", (stages_table(plan, EVERYWHERE, key="stages"),)),
        Section("Devices", (devices_table(plan, EVERYWHERE, key="devices"),)),
        Section(
            "In words", (Facts(tuple(words)), *([Facts((Message("note: ", plan.note),), PAGE)] if plan.note else []))
        ),
        _next(pipeline_next_steps(plan, upgraded, others)),
    )
    data = {
        "load_bound_s": None if schedule is None else schedule.load_bound_s,
        "window": None if schedule is None else schedule.window,
        "bound_period_s": evidence.bound,
        "proven": evidence.proven,
        "floor_period_s": plan.floor_s,
        "one_device_period_s": None if alone is None else alone.period_s,
        "idle_devices": idle_devices(plan),
        **named(plan, "note", "stopped"),
        "compare": {name: None if other is None else other.period_s for name, other in others.items()},
        "what_if": {added: None if other is None else other.period_s for added, other in (upgraded or {}).items()},
        "compare_stopped": [name for name, other in others.items() if other is not None and other.stopped],
    }
    verdict = Verdict(state, headline, period_claim(plan))
    return Document(*_titles(plan, model), verdict, sections, figures, _foot(plan, keys=True), data)


def simulation_document(
    plan: Pipeline,
    simulation: Simulation,
    *,
    model: str = "",
    timelines: Sequence[Timeline] = (),
    arrives: bool = False,
    replanned: bool = False,
) -> Document:
    """The result of `simulate`; docs/schemas/simulate.json has its keys. `timelines`: of the simulated frames.
    `arrives`: frames arrived at given times; otherwise one was always waiting. `replanned`: a plan without the dead
    devices was made."""
    frames = f"{simulation.completed} of {simulation.frames} frames"
    state: Literal["good", "bad", "plain"] = "plain"
    headline = f"simulated: {frames}, "
    headline += _TOO_FEW if simulation.period_s is None else f"a frame every {format_seconds(simulation.period_s)}"
    if not simulation.completed:
        state, headline = "bad", f"none of {simulation.frames} frames was completed"
    if simulation.stalled_at_s is not None:
        stalled = f"stalled at {format_seconds(simulation.stalled_at_s)}: a dead device is needed for every frame after"
        state, headline = "bad", f"{stalled} that; {headline}"
    figures = (
        Value("period, simulated", simulation.period_s, key="period_s", on=JSON_ONLY),
        Value("period, planned", plan.period_s, format_seconds, period_claim(plan), key="analytic_period_s"),
        *_latencies(simulation.latency_s, "simulated, from arrival"),
        Value("latency, one frame alone (analytic)", plan.latency_s, format_seconds),
        Value("sustained period", simulation.sustained_period_s, format_seconds, key="sustained_period_s"),
        Value(
            "a frame arrives every",
            simulation.arrival_s,
            format_seconds,
            "" if arrives else "0.95 of the rate that is sustained",
            key="arrival_s",
        ),
        Value("energy of a frame", simulation.energy_j, lambda joules: f"{joules:.4g} J", key="energy_j"),
    )
    sections = (
        *_pictures(plan, _busiest_line(plan), timelines),
        Section("Devices", (shares_table(plan, simulation, None), devices_table(plan, PAGE))),
        Section("Stages", (stages_table(plan, PAGE),)),
        Section("In words", (Facts(tuple(simulation_lines(simulation, plan))),)),
        _next(simulation_next_steps(simulation, plan, replanned=replanned)),
    )
    names = [device.name for device in plan.cluster.devices]
    by_device = ("utilisation", "sending", "receiving", "redundancy", "buffer_bytes")
    waiting = {"most": simulation.most_waiting, "last": simulation.last_waiting, "grows": simulation.falls_behind}
    data = {
        **named(simulation, "frames", "completed", "stalled_at_s"),
        "queue": waiting,
        **{name: dict(zip(names, getattr(simulation, name), strict=True)) for name in by_device},
    }
    if simulation.latency_s is None:
        data["latency_s"] = dict.fromkeys(_QUANTILES)
    return Document(*_titles(plan, model), Verdict(state, headline), sections, figures, _foot(plan), data)


def served_document(
    plan: Pipeline,
    served: Served,
    *,
    model: str = "",
    simulation: Simulation | None = None,
    timelines: Sequence[Timeline] = (),
    rates_of: str = "",
) -> Document:
    """The result of a running pipeline; docs/schemas/serve.json has its keys. `simulation`: of the plan.
    `timelines`: simulated and measured. `rates_of`: if the devices were processes of this machine, which share its
    cores, the file with the rates of the plan, whose period does not hold there."""
    frames = f"{served.completed} of {served.frames} frames"
    ratio = slower_than_planned(served)
    whose = f" by {plan_in_use(served)}" if served.replans else ""
    measured = f"a frame every {_period(served.period_s)}, measured" if served.period_s else _TOO_FEW
    slower = "" if ratio is None else f" ({ratio:.2f}x the planned)"
    headline = f"{frames}: {measured}; planned {_period(served.planned_period_s)}{whose}{slower}"
    state: Literal["good", "bad", "plain"] = "good" if ratio is None else "plain"
    if served.completed != served.frames:
        state = "bad"
    figures = (
        Value("period, measured", served.period_s, key="period_s", on=JSON_ONLY),
        Value("period, planned", served.planned_period_s, key="planned_period_s", on=JSON_ONLY),
        Value(
            "period, planned by the first plan",
            served.first_planned_period_s,
            _period,
            period_claim(plan),
            key="first_planned_period_s",
            on=EVERYWHERE if served.replans else JSON_ONLY,
        ),
        *_latencies(served.latency_s, "measured"),
        Value(
            f"latency, one frame alone, planned{whose}",
            served.planned_latency_s,
            format_seconds,
            key="planned_latency_s",
        ),
        Value(
            "planned again",
            served.replans,
            lambda times: counted(times, "time"),
            key="replans",
            on=EVERYWHERE if served.replans else JSON_ONLY,
        ),
    )
    if simulation is not None:
        figures = (*figures, Value("period, simulated", simulation.period_s, _period, missing=_TOO_FEW, on=PAGE))
    events = tuple(event_line(event) for event in served.events)
    sections = (
        *_pictures(plan, [*_measured_line(served), *_busiest_line(plan)], timelines),
        Section("Devices", (shares_table(plan, simulation, served), devices_table(plan, PAGE))),
        Section("Stages", (stages_table(plan, PAGE),)),
        *([Section("In words", (Facts(events),))] if events else []),
        _next(served_next_steps(served, plan, local=bool(rates_of))),
    )
    data: dict[str, Any] = named(served, "frames", "completed", "seconds", "devices", "events")
    data |= {"method": plan.evidence.method}
    if served.latency_s is None:
        data["latency_s"] = None
    claim = [] if served.replans else [f"the plan: {period_claim(plan)}"]
    detail = "\n".join([*([rates_line(rates_of)] if rates_of else []), *claim])
    return Document(*_titles(plan, model), Verdict(state, headline, detail), sections, figures, _foot(plan), data)


def _titles(plan: Pipeline, model: str) -> tuple[str, str]:
    used = len({device for stage in plan.stages for device in stage.devices})
    title = f"{printable(model)} on {counted(len(plan.cluster.devices), 'device')}" if model else "Pipeline"
    return title, f"{counted(len(plan.stages), 'stage')} over {counted(used, 'device')}"


def _foot(plan: Pipeline, *, keys: bool = False) -> tuple[Value, ...]:
    figures = {
        "method": ("method", plan.evidence.method),
        "topology": ("hand-over", plan.topology),
        "comm": ("times by", plan.comm),
        "source": ("source", plan.source),
        "sink": ("sink", plan.sink),
        "space": ("proven among", plan.space),
    }
    return tuple(Value(title, value, key=key if keys else "") for key, (title, value) in figures.items())


def _next(steps: Sequence[NextStep]) -> Section:
    return Section("What could be done next", (Steps(tuple(steps)),))


def _period(period_s: float) -> str:
    return f"{format_seconds(period_s)}, {rate_text(period_s)}"


def _latencies(latency_s: Sequence[float] | None, how: str) -> list[Value]:
    pairs = zip(_QUANTILES, latency_s or (), strict=False)
    return [
        Value(f"latency {quantile}, {how}", seconds, format_seconds, key=f"latency_s.{quantile}")
        for quantile, seconds in pairs
    ]


def _pictures(plan: Pipeline, lines: Sequence[str], timelines: Sequence[Timeline]) -> tuple[Section, Section]:
    """Pictures of what devices do when, and on which rows. `lines`: on the busiest resource."""
    facts = (*lines, *(() if lines else _busiest_line(plan)))

    def draw() -> Any:
        every = [planned_timeline(plan), *timelines]
        return gantt_figure("What each device does when: computes, sends (out), receives (in)", every)

    time: tuple[Part, ...] = (Picture(draw),)
    if facts:
        time = (Facts(tuple(facts), PAGE), *time)
    return Section("Time", time), Section("Rows", (Picture(lambda: rows_figure(plan)),))


def _busiest_line(plan: Pipeline) -> list[str]:
    """The busiest resource as planned."""
    busiest = busiest_resource(plan)
    if busiest is None:
        return []
    name, seconds = busiest
    share = seconds / plan.period_s if plan.period_s else 0.0
    return [f"Busiest resource, planned: {name}, {format_seconds(seconds)} of every period ({share:.0%})."]


def _measured_line(served: Served) -> list[str]:
    """The busiest resource as measured."""
    busiest = busiest_use(served)
    if busiest is None:
        return []
    use, doing, share, planned = busiest
    return [f"Busiest, measured: {doing} of {printable(use.name)}, {share:.0%} of the time (planned {planned:.0%})."]
