"""The page of a pipeline: its period and the resource that decides it, what devices do when, and on which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from downset.messages import Message
from downset.reports.gaps import told_bound
from downset.reports.page.elements import Choice, Facts, Page, Section, Table, Verdict
from downset.reports.page.next_section import next_section
from downset.reports.page.timeline_figure import gantt_figure, rows_figure
from downset.reports.pipelines import (
    compared_lines,
    device_loads,
    floor_is_lower,
    message_bytes,
    one_device_line,
    period_line,
)
from downset.reports.serving import busiest_use, plan_in_use, rates_line, served_lines, slower_than_planned
from downset.reports.simulations import simulation_lines
from downset.reports.time_steps import pipeline_next_steps, served_next_steps, simulation_next_steps
from downset.reports.timeline import Timeline, busiest_resource, planned_timeline
from downset.results.fit import NextStep
from downset.results.pipelines import Pipeline
from downset.results.serving import Served, Simulation
from downset.text import counted, format_bytes, format_seconds, format_size, printable

__all__ = ["pipeline_page"]


def pipeline_page(
    plan: Pipeline,
    *,
    model: str = "",
    compared: Mapping[str, Pipeline | None] | None = None,
    upgraded: Mapping[str, Pipeline | None] | None = None,
    simulation: Simulation | None = None,
    simulated: Timeline | None = None,
    served: Served | None = None,
    measured: Timeline | None = None,
    rates_of: str = "",
    replanned: bool = False,
) -> Page:
    """The page of a plan. It shows results of a simulation or a run next to the planned figures. `compared`: plans of
    other methods. `upgraded`: plans for upgraded clusters, by what is added. `rates_of`: as in `served_lines`.
    `replanned`: as in `simulation_next_steps`."""
    timelines = [planned_timeline(plan), *(timeline for timeline in (simulated, measured) if timeline is not None)]
    busiest = busiest_resource(plan)
    sections = [
        Section(
            "Time",
            (
                *_busiest(plan, busiest, served),
                gantt_figure("What each device does when: computes, sends (out), receives (in)", timelines),
            ),
        ),
        Section("Rows", (rows_figure(plan),)),
        Section("Devices", (_devices(plan, simulation, served),)),
        Section("Planned, simulated, measured", (_figures(plan, simulation, served),)),
        Section("Stages", (_stages(plan),)),
        next_section(_next_steps(plan, upgraded, compared, simulation, served, rates_of, replanned)),
    ]
    lines: list[str] = [] if plan.note == "" else [Message("note: ", plan.note)]
    lines += [" ".join(line.split()) for line in compared_lines(plan, compared or {})]
    lines += simulation_lines(simulation, plan) if simulation is not None else []
    lines += served_lines(served, rates_of=rates_of) if served is not None else []
    if lines:
        sections.append(Section("In words", (Facts(tuple(lines)),)))
    title = f"{printable(model)} on {counted(len(plan.cluster.devices), 'device')}" if model else "Pipeline"
    facts = (
        ("method", plan.evidence.method),
        ("hand-over", plan.topology),
        ("times by", plan.comm),
        ("source", plan.source),
        ("sink", plan.sink),
        ("proven among", plan.space),
    )
    used = len({device for stage in plan.stages for device in stage.devices})
    subtitle = f"{counted(len(plan.stages), 'stage')} over {counted(used, 'device')}"
    return Page(title, subtitle, _verdict(plan, simulation, served, rates_of), tuple(sections), facts)


def _next_steps(
    plan: Pipeline,
    upgraded: Mapping[str, Pipeline | None] | None,
    compared: Mapping[str, Pipeline | None] | None,
    simulation: Simulation | None,
    served: Served | None,
    rates_of: str,
    replanned: bool,
) -> list[NextStep]:
    """The steps that the command prints which writes the page."""
    if served is not None:
        return served_next_steps(served, plan, local=bool(rates_of))
    if simulation is not None:
        return simulation_next_steps(simulation, plan, replanned=replanned)
    return pipeline_next_steps(plan, upgraded, compared)


def _verdict(plan: Pipeline, simulation: Simulation | None, served: Served | None, rates_of: str) -> Verdict:
    evidence = plan.evidence
    told = told_bound(format_seconds(evidence.bound), evidence.value, evidence.bound)
    claim = "proven least" if evidence.proven else told
    if floor_is_lower(plan):
        claim += f", among plans of this kind; any plan takes {format_seconds(plan.floor_s)} or more"
    first = " by the first plan" if served is not None and served.replans else ""
    numbers = [
        (f"period, planned{first} (analytic)", format_seconds(plan.period_s), claim),
        (f"latency, one frame alone{first} (analytic)", format_seconds(plan.latency_s), ""),
    ]
    state: Literal["good", "bad", "plain"] = "good" if evidence.proven else "plain"
    head = f"A frame every {format_seconds(plan.period_s)}, {plan.throughput_per_s:.3g} frames a second"
    if simulation is not None:
        numbers.append(("period, simulated", _seconds(simulation.period_s), f"{simulation.completed} frames"))
        if simulation.stalled_at_s is not None:
            state, head = "bad", f"Stalls at {format_seconds(simulation.stalled_at_s)}: a dead device is needed"
    if served is not None:
        frames = f"{served.completed} of {served.frames} frames"
        numbers.insert(0, ("period, measured", _seconds(served.period_s), frames))
        measured = f"a frame every {format_seconds(served.period_s)}, measured; " if served.period_s else ""
        ratio = slower_than_planned(served)
        slower = "" if ratio is None else f" ({ratio:.2f}x the planned)"
        whose = f" by {plan_in_use(served)}" if served.replans else ""
        head = f"{frames}: {measured}planned {format_seconds(served.planned_period_s)}{whose}{slower}"
        state = "bad" if served.completed != served.frames else "good" if ratio is None else "plain"
    alone = one_device_line(plan) if simulation is None and served is None else None
    said = (f"{alone}. " if alone else "") + period_line(plan) + (f"; {rates_line(rates_of)}" if rates_of else "")
    return Verdict(state, head, said, tuple(numbers))


def _busiest(plan: Pipeline, busiest: tuple[str, float] | None, served: Served | None) -> tuple[Choice, ...]:
    """The busiest resource as planned, and what was busiest as measured, which comes first."""
    lines = []
    used = None if served is None else busiest_use(served)
    if used is not None:
        use, doing, share, planned = used
        lines.append(
            f"Busiest, measured: {doing} of {printable(use.name)}, {share:.0%} of the time (planned {planned:.0%})."
        )
    if busiest is not None:
        name, seconds = busiest
        share = seconds / plan.period_s if plan.period_s else 0.0
        lines.append(
            f"Busiest resource, planned: {name}, {format_seconds(seconds)} of every period of "
            f"{format_seconds(plan.period_s)} ({share:.0%})."
        )
    return (Facts(tuple(lines)),) if lines else ()


def _devices(plan: Pipeline, simulation: Simulation | None, served: Served | None) -> Table:
    """A table with a row for each device: shares of the time by activity, planned, simulated and measured."""
    loads, held = device_loads(plan), {item.device: item for item in plan.memory}
    measured = {use.name: use for use in served.devices} if served is not None else {}
    kinds = ["planned", *(["simulated"] if simulation is not None else []), *(["measured"] if served else [])]
    apart = len(kinds) > 1
    columns = ["device"]
    columns += [f"{what}, {how}" if apart else what for what in ("computes", "sends", "receives") for how in kinds]
    columns += ["memory", "limit", *(["process memory"] if served is not None else [])]
    rows = []
    for place, (device, load) in enumerate(zip(plan.cluster.devices, loads, strict=True)):
        use = measured.get(device.name)
        row = [printable(device.name)]
        for number, (seconds, what) in enumerate(
            ((load.compute_s, "computing"), (load.send_s, "sending"), (load.receive_s, "receiving"))
        ):
            row.append(_share(seconds, plan.period_s))
            if simulation is not None:
                shares = (simulation.utilisation, simulation.sending, simulation.receiving)[number]
                row.append(f"{shares[place]:.0%}" if shares else "-")
            if served is not None:
                row.append("-" if use is None else f"{getattr(use, what):.0%}")
        row.append(format_size(held[place].total_bytes) if place in held else "-")
        row.append("-" if device.memory_bytes is None else format_size(device.memory_bytes))
        if served is not None:
            row.append("-" if use is None else format_size(use.rss_bytes))
        rows.append(tuple(row))
    first = ", by the first plan" if served is not None and served.replans else ""
    return Table(
        tuple(columns),
        tuple(rows),
        numeric=frozenset(range(1, len(columns))),
        caption=f"Shares of a period (planned: analytic{first}) or of the time, and memory",
    )


def _figures(plan: Pipeline, simulation: Simulation | None, served: Served | None) -> Table:
    """A table of period and latency: planned, simulated and measured."""
    first = " by the first plan" if served is not None and served.replans else ""
    rows: list[tuple[str, ...]] = [
        (f"planned{first} (analytic)", format_seconds(plan.period_s), format_seconds(plan.latency_s), "", "")
    ]
    for name, times in (("simulated", simulation), ("measured", served)):
        if times is not None:
            latency = times.latency_s
            rows.append(
                (
                    name,
                    _seconds(times.period_s),
                    *(
                        [format_seconds(latency[0]), format_seconds(latency[2]), format_seconds(latency[3])]
                        if latency
                        else ["-", "-", "-"]
                    ),
                )
            )
    columns = ("how it is known", "period", "latency (p50)", "p99", "longest")
    return Table(columns, tuple(rows), numeric=frozenset({1, 2, 3, 4}))


def _stages(plan: Pipeline) -> Table:
    rows = tuple(
        (
            str(place),
            str(len(stage.ops)),
            _names(plan, stage.devices),
            str(len(stage.blocks)),
            f"{stage.macs / 1e6:,.4g}",
            f"{stage.redundant_macs / max(stage.macs, 1):.1%}",
            format_bytes(message_bytes(plan, place)),
        )
        for place, stage in enumerate(plan.stages)
    )
    columns = ("stage", "operators", "devices", "blocks", "MMACs", "redundant", "bytes into it and inside")
    return Table(columns, rows, numeric=frozenset({0, 1, 3, 4, 5, 6}))


def _names(plan: Pipeline, devices: Sequence[int]) -> str:
    return ", ".join(printable(plan.cluster.devices[device].name) for device in devices)


def _share(seconds: float, period_s: float) -> str:
    return f"{seconds / period_s:.0%}" if period_s else "-"


def _seconds(value: float | None) -> str:
    return "too few frames" if value is None else format_seconds(value)
