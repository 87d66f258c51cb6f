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
    TERMINAL,
    Column,
    Document,
    Facts,
    Medium,
    Part,
    Picture,
    Section,
    Steps,
    Table,
    Value,
    Verdict,
    columns,
    named,
)
from downset.reports.gaps import bound_text, gap_of
from downset.reports.page.timeline_figure import gantt_figure, rows_figure
from downset.reports.pipelines import (
    busy_share,
    compared_lines,
    device_loads,
    floor_is_lower,
    hand_over_line,
    message_bytes,
    one_device_line,
    period_line,
    space_line,
    stage_rows,
)
from downset.reports.serving import busiest_use, event_line, plan_in_use, rates_line, slower_than_planned
from downset.reports.simulations import simulation_lines
from downset.reports.time_steps import pipeline_next_steps, served_next_steps, simulation_next_steps
from downset.reports.timeline import Timeline, busiest_resource, planned_timeline
from downset.results.fit import NextStep
from downset.results.pipelines import Pipeline, PipelineStage
from downset.results.serving import Served, Simulation
from downset.text import counted, format_bytes, format_seconds, format_size, printable

__all__ = ["served_document", "simulation_document", "split_document"]

_Upgrades = Mapping[str, Pipeline | None]
_QUANTILES = ("p50", "p90", "p99", "max")
_TOO_FEW = "too few frames to tell a period"


def split_document(
    plan: Pipeline, *, model: str = "", compared: _Upgrades | None = None, upgraded: _Upgrades | None = None
) -> Document:
    """The result of `plan_pipeline`; docs/schemas/split.json has its keys. `compared`: plans of other methods, None for
    a method without a plan within the limits. `upgraded`: plans for upgraded clusters, by what is added."""
    others = compared or {}
    schedule, evidence = plan.schedule, plan.evidence
    alone, handed = one_device_line(plan), hand_over_line(plan)
    state: Literal["good", "plain"] = "good" if evidence.proven else "plain"
    headline = alone or f"a frame every {format_seconds(plan.period_s)}, {_rate(plan.period_s)}"
    figures = (
        Value("period (analytic)", plan.period_s, format_seconds, _claim(plan), key="period_s"),
        Value("latency, one frame alone (analytic)", plan.latency_s, format_seconds, key="latency_s"),
    )
    words = [line for line in (handed, space_line(plan), *compared_lines(plan, others)) if line is not None]
    sections = (
        *_pictures(plan, [], []),
        Section("Stages", (_stages(plan, EVERYWHERE, key="stages"),)),
        Section("Devices", (_devices(plan, EVERYWHERE, key="devices"),)),
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
        **named(plan, "note", "stopped"),
        "compare": {name: None if other is None else other.period_s for name, other in others.items()},
        "what_if": {added: None if other is None else other.period_s for added, other in (upgraded or {}).items()},
        "compare_stopped": [name for name, other in others.items() if other is not None and other.stopped],
    }
    verdict = Verdict(state, headline, period_line(plan))
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
        Value("period, simulated", simulation.period_s, format_seconds, frames, key="period_s", missing=_TOO_FEW),
        Value("period, planned (analytic)", plan.period_s, format_seconds, _claim(plan), key="analytic_period_s"),
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
        Section("Devices", (_shares(plan, simulation, None), _devices(plan, PAGE))),
        Section("Stages", (_stages(plan, PAGE),)),
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
    return Document(
        *_titles(plan, model), Verdict(state, headline, period_line(plan)), sections, figures, _foot(plan), data
    )


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
    measured = f"a frame every {format_seconds(served.period_s)}, measured; " if served.period_s else ""
    slower = "" if ratio is None else f" ({ratio:.2f}x the planned)"
    headline = f"{frames}: {measured}planned {format_seconds(served.planned_period_s)}{whose}{slower}"
    state: Literal["good", "bad", "plain"] = "good" if ratio is None else "plain"
    if served.completed != served.frames:
        state = "bad"
    figures = (
        Value("period, measured", served.period_s, _period, frames, key="period_s", missing=_TOO_FEW),
        Value(f"period, planned{whose}", served.planned_period_s, _period, key="planned_period_s"),
        Value(
            "period, planned by the first plan (analytic)",
            served.first_planned_period_s,
            _period,
            _claim(plan),
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
        Section("Devices", (_shares(plan, simulation, served), _devices(plan, PAGE))),
        Section("Stages", (_stages(plan, PAGE),)),
        *([Section("In words", (Facts(events),))] if events else []),
        _next(served_next_steps(served, plan, local=bool(rates_of))),
    )
    data: dict[str, Any] = named(served, "frames", "completed", "seconds", "devices", "events")
    data |= {"method": plan.evidence.method}
    if served.latency_s is None:
        data["latency_s"] = None
    detail = "\n".join([*([rates_line(rates_of)] if rates_of else []), period_line(plan)])
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


def _rate(period_s: float) -> str:
    return f"{1 / period_s:.4g} frames/s" if period_s else "-"


def _period(period_s: float) -> str:
    return f"{format_seconds(period_s)}, {_rate(period_s)}"


def _claim(plan: Pipeline) -> str:
    evidence = plan.evidence
    told = bound_text(format_seconds(evidence.bound), gap_of(evidence.value, evidence.bound))
    claim = "proven least" if evidence.proven else told
    if floor_is_lower(plan):
        claim += f", among plans of this kind; any plan takes {format_seconds(plan.floor_s)} or more"
    return claim


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
    return [
        f"Busiest resource, planned: {name}, {format_seconds(seconds)} of every period of "
        f"{format_seconds(plan.period_s)} ({share:.0%})."
    ]


def _measured_line(served: Served) -> list[str]:
    """The busiest resource as measured."""
    busiest = busiest_use(served)
    if busiest is None:
        return []
    use, doing, share, planned = busiest
    return [f"Busiest, measured: {doing} of {printable(use.name)}, {share:.0%} of the time (planned {planned:.0%})."]


def _millions(macs: int) -> str:
    """Millions, with three digits if they are few, as a whole number if they are many."""
    value = macs / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _stages(plan: Pipeline, on: frozenset[Medium], *, key: str = "") -> Table:
    cut = "columns" if any(block.axis for stage in plan.stages for block in stage.blocks) else "rows"
    leads = any(stage.leader >= 0 for stage in plan.stages)
    legend = f"a line is a block of operators; 0-16: {cut} 0 to 15 of its result; messages: bytes into a stage and "
    legend += f"between its devices{f'; *: gives the others their {cut} and gathers theirs' if leads else ''}"
    devices = plan.cluster.devices

    def stage(place: int) -> PipelineStage:
        return plan.stages[place]

    def leader(place: int) -> str | None:
        return devices[stage(place).leader].name if stage(place).leader >= 0 else None

    def blocks(place: int) -> list[dict[str, Any]]:
        return [
            {
                **named(block, "axis", "frame_rows", "rule"),
                "rows": [
                    {"device": devices[strip.device].name, "start": strip.start, "stop": strip.stop}
                    | ({"columns": list(strip.columns)} if strip.columns else {})
                    for strip in block.strips
                ],
            }
            for block in stage(place).blocks
        ]

    def redundant(place: int) -> float:
        return stage(place).redundant_macs / max(stage(place).macs, 1)

    return Table(
        (
            Column("stage", lambda place: place),
            Column("operators", lambda place: stage(place).ops, lambda ops: str(len(ops)), key="ops"),
            Column("", leader, key="leader", on=JSON_ONLY),
            Column(
                "devices",
                lambda place: [devices[device].name for device in stage(place).devices],
                lambda names: ", ".join(map(printable, names)),
                key="devices",
                left=True,
                on=PAGE,
            ),
            Column(
                f"devices: {cut}{' (* leads)' if leads else ''}",
                lambda place: "\n".join(stage_rows(plan, stage(place))),
                left=True,
                on=TERMINAL,
            ),
            Column("blocks", blocks, lambda every: str(len(every)), key="blocks", on=PAGE),
            Column("MMACs", lambda place: stage(place).macs, _millions, key="macs"),
            Column("redundant", redundant, lambda share: f"{share:.1%}"),
            Column("", lambda place: stage(place).redundant_macs, key="redundant_macs", on=JSON_ONLY),
            Column("messages", lambda place: message_bytes(plan, place), format_bytes, key="bytes"),
        ),
        range(len(plan.stages)),
        key=key,
        legend=legend,
        on=on,
    )


def _devices(plan: Pipeline, on: frozenset[Medium], *, key: str = "") -> Table:
    """A row for each device: seconds of one frame as planned, and its memory."""
    loads, memory = device_loads(plan), {one.device: one for one in plan.memory}
    devices = plan.cluster.devices

    def seconds(title: str, name: str, key: str) -> Column:
        return Column(title, lambda place: getattr(loads[place], name), format_seconds, key=key)

    def part(title: str, name: str, key: str) -> Column:
        return Column(
            title, lambda place: getattr(memory[place], name) if place in memory else None, format_size, key=key
        )

    return Table(
        (
            Column("device", lambda place: devices[place].name, printable, key="device", left=True),
            seconds("computes", "computing", "compute_s"),
            seconds("sends", "sending", "send_s"),
            seconds("receives", "receiving", "receive_s"),
            Column("busy", lambda place: busy_share(plan, place, loads[place]), lambda share: f"{share:.0%}"),
            part("weights", "weights_bytes", "weights_bytes"),
            part("runtime memory", "overhead_bytes", "overhead_bytes"),
            part("arena", "arena_bytes", "arena_bytes"),
            part("memory", "total_bytes", "memory_bytes"),
            Column("limit", lambda place: devices[place].memory_bytes, format_size),
        ),
        range(len(devices)),
        key=key,
        legend="seconds of one frame (analytic); busy: the share of a period that the device is occupied",
        on=on,
    )


def _shares(plan: Pipeline, simulation: Simulation | None, served: Served | None) -> Table:
    """A row for each device: shares of the time by activity, as measured or simulated, with those that were planned."""
    loads, uses = device_loads(plan), {} if served is None else {use.name: use for use in served.devices}
    rows = []
    for place, (device, load) in enumerate(zip(plan.cluster.devices, loads, strict=True)):
        use, row = uses.get(device.name), [printable(device.name)]
        for doing, attribute in _DOING.items():
            planned = getattr(load, doing) / plan.period_s if plan.period_s else None
            shares = [planned if use is None else getattr(use, f"planned_{doing}")]
            if simulation is not None:
                simulated = getattr(simulation, attribute)
                shares.append(simulated[place] if simulated else None)
            if served is not None:
                shares.append(None if use is None else getattr(use, doing))
            *others, main = map(_percent, shares)
            row.append(f"{main} ({', '.join(others)})")
        if simulation is not None:
            row.append(f"{simulation.redundancy[place]:.1%}" if simulation.redundancy else "-")
        if served is not None:
            row += ["-", "-"] if use is None else [str(use.frames), format_size(use.rss_bytes)]
        rows.append(row)
    titles = ["device", "computing", "sending", "receiving"]
    titles += ["redundant"] if simulation else []
    titles += ["frames", "memory"] if served else []
    order = "simulated (planned)" if served is None else "measured (planned)"
    order = "measured (planned, simulated)" if served is not None and simulation is not None else order
    several = f"; planned over the frames of all {served.replans + 1} plans" if served and served.replans else ""
    return Table(columns(*titles), rows, f"shares of the time: {order}{several}")


_DOING = {"computing": "utilisation", "sending": "sending", "receiving": "receiving"}
"""The activities of a device, each with the attribute of a simulation with its shares."""


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
