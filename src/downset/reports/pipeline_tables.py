"""The tables of a pipeline: its stages, its devices, and the shares of the time in which they work."""

from __future__ import annotations

from typing import Any

from downset.reports.document import JSON_ONLY, PAGE, TERMINAL, Column, Medium, Table, columns, named
from downset.reports.pipeline_sentences import busy_share, device_loads, message_bytes, stage_rows
from downset.results.pipelines import Pipeline, PipelineStage
from downset.results.serving import Served, Simulation
from downset.text import format_bytes, format_seconds, format_size, printable

__all__ = ["devices_table", "shares_table", "stages_table"]

_DOING = {"computing": "utilisation", "sending": "sending", "receiving": "receiving"}
"""The activities of a device, each with the attribute of a simulation with its shares."""


def _millions(macs: int) -> str:
    """Millions, with three digits if they are few, as a whole number if they are many."""
    value = macs / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def stages_table(plan: Pipeline, on: frozenset[Medium], *, key: str = "") -> Table:
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


def devices_table(plan: Pipeline, on: frozenset[Medium], *, key: str = "") -> Table:
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


def shares_table(plan: Pipeline, simulation: Simulation | None, served: Served | None) -> Table:
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
            memory = "-" if use is None or not use.rss_bytes else format_size(use.rss_bytes)  # 0: it has told none
            row += ["-" if use is None else str(use.frames), memory]
        rows.append(row)
    titles = ["device", "computing", "sending", "receiving"]
    titles += ["redundant"] if simulation else []
    titles += ["frames", "memory"] if served else []
    order = "simulated (planned)" if served is None else "measured (planned)"
    order = "measured (planned, simulated)" if served is not None and simulation is not None else order
    several = f"; planned over the frames of all {served.replans + 1} plans" if served and served.replans else ""
    return Table(columns(*titles), rows, f"shares of the time: {order}{several}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
