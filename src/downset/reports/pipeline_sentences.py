"""Describes a pipeline, its simulation and its run in words: rows of stages, periods, and what needs an explanation."""

from __future__ import annotations

from collections.abc import Mapping

from downset.messages import Call, Message, Setting
from downset.reports.gaps import bound_text, gap_of
from downset.results.pipelines import Pipeline, PipelineStage
from downset.results.serving import DeviceUse, Served, ServeEvent, Simulation
from downset.results.task_times import DeviceSeconds, device_seconds, occupied_seconds
from downset.text import counted, format_bytes, format_seconds, printable

__all__ = [
    "SLOWER",
    "busiest_use",
    "busy_share",
    "compared_lines",
    "device_loads",
    "event_line",
    "floor_is_lower",
    "gain_line",
    "hand_over_line",
    "idle_devices",
    "idle_line",
    "longest_computing",
    "message_bytes",
    "one_device_line",
    "period_claim",
    "plan_in_use",
    "rate_text",
    "rates_line",
    "simulation_lines",
    "slower_than_planned",
    "space_line",
    "stage_rows",
]

_ROUNDING = 1e-6
"""Bounds that differ by at most this share are equal but for rounding."""
_MOST_BLOCKS = 4
"""Blocks of a stage that are listed; the rest is counted."""
_MOST_IDLE = 8
"""Devices that do nothing whose names are listed."""
_MUCH_LONGER = 1.5
"""A latency above this many times that of one frame alone is explained."""
SLOWER = 1.15
"""A measured period above this many times the planned one is not as planned."""


def device_loads(plan: Pipeline) -> list[DeviceSeconds]:
    """The load of each device. A message counts while it occupies the network. Under `paper` only MACs take computing
    time, and nothing is sent between leaders."""
    return device_seconds(plan, occupied_seconds(plan))


def busy_share(plan: Pipeline, device: int, load: DeviceSeconds) -> float:
    """The share of a period in which the busiest resource of a device works. A device that overlaps computes, sends and
    receives at once, as far as its duplex allows; any other does one thing at a time."""
    if not plan.period_s:
        return 0.0
    network = plan.cluster.network
    if not network.overlap:
        parts = [load.computing + load.sending + load.receiving]
    elif network.kind == "links" and (plan.cluster.devices[device].duplex or network.duplex) == "full":
        parts = [load.computing, load.sending, load.receiving]
    else:
        parts = [load.computing, load.sending + load.receiving]
    return max(parts) / plan.period_s


def longest_computing(plan: Pipeline) -> str:
    """The name of the device that computes longest for one frame."""
    seconds = [load.computing for load in device_loads(plan)]
    return plan.cluster.devices[seconds.index(max(seconds))].name


def message_bytes(plan: Pipeline, stage: int) -> int:
    """The bytes of all messages of a stage for one frame, with those of its input."""
    return sum(task.transfer.nbytes for task in plan.tasks if task.transfer is not None and task.stage == stage)


def stage_rows(plan: Pipeline, stage: PipelineStage) -> list[str]:
    """A line for each block of a stage: which device computes which rows. The leader has a star, even if it computes
    none."""
    names = [printable(device.name) for device in plan.cluster.devices]
    rows = [
        " ".join(
            f"{names[strip.device]}{'*' if strip.device == stage.leader else ''}: {strip.start}-{strip.stop}"
            + (f" x {strip.columns[0]}-{strip.columns[1]}" if strip.columns else "")
            for strip in block.strips
        )
        for block in stage.blocks[:_MOST_BLOCKS]
    ]
    working = {strip.device for block in stage.blocks for strip in block.strips}
    if stage.leader >= 0 and stage.leader not in working:
        rows[0] = f"{names[stage.leader]}*: none {rows[0]}"
    if len(stage.blocks) > _MOST_BLOCKS:
        rows.append(f"... {len(stage.blocks) - _MOST_BLOCKS} more blocks")
    return rows


def hand_over_line(plan: Pipeline) -> str | None:
    """A line on where frames appear and results stay, if rows are handed over directly; None if leaders hand over."""
    if any(stage.leader >= 0 for stage in plan.stages):
        return None
    entry, exit_ = (printable(plan.cluster.devices[device].name) for device in (plan.entry, plan.exit))
    return f"rows are handed over directly; frames appear at {entry}, results stay at {exit_}"


def _used(plan: Pipeline) -> set[int]:
    return {device for stage in plan.stages for device in (*stage.devices, stage.leader) if device >= 0}


def idle_devices(plan: Pipeline) -> list[str]:
    """The names of the devices that do nothing for a frame."""
    used = _used(plan)
    return [device.name for place, device in enumerate(plan.cluster.devices) if place not in used]


def idle_line(plan: Pipeline) -> str | None:
    """A line on the devices that do nothing, and why; None if all work, or if `single` asked for one."""
    idle = idle_devices(plan)
    if not idle or plan.evidence.method == "single":
        return None
    names = ", ".join(map(printable, idle[:_MOST_IDLE])) + (", ..." if len(idle) > _MOST_IDLE else "")
    why = "no plan of the searched kind is faster with" if plan.evidence.proven else "no faster plan was found with"
    return f"{counted(len(idle), 'device')} idle: {names}; {why} {'it' if len(idle) == 1 else 'them'}"


def gain_line(plan: Pipeline, alone: Pipeline | None) -> str | None:
    """How many times the frames of the fastest device alone; None where no device can do it alone, or where `single`
    asked for one."""
    if alone is None or not plan.period_s or plan.evidence.method == "single":
        return None
    devices, used = len(plan.cluster.devices), len(_used(plan))
    share = f"{used} of {devices}" if used < devices else f"{devices}"
    return f"{alone.period_s / plan.period_s:.2f}x the frames of one device, with {share} devices"


def one_device_line(plan: Pipeline) -> str | None:
    """A line that says that no split was faster than one device. None if several devices work, if there is only one, or
    if `single` asked for one."""
    used = _used(plan)
    evidence = plan.evidence
    if len(used) != 1 or len(plan.cluster.devices) < 2 or evidence.method == "single":
        return None
    name = printable(plan.cluster.devices[used.pop()].name)
    none = "no split of the searched kind" if evidence.proven else f"{evidence.method} found no split"
    faster = "is faster" if evidence.proven else "that is faster"
    return f"one device computes everything: {none} over several devices {faster} than {name} alone"


def floor_is_lower(plan: Pipeline) -> bool:
    """Whether plans outside the searched space may have a shorter period than the bound."""
    return 0 < plan.floor_s < plan.evidence.bound * (1 - _ROUNDING)


def rate_text(period_s: float) -> str:
    """The frames a second of a period."""
    rate = 1 / period_s if period_s else 0.0
    return f"{rate:,.0f} frames/s" if rate >= 1000 else f"{rate:.4g} frames/s" if rate else "-"


def period_claim(plan: Pipeline) -> str:
    """The proof or the bound of the plan's period, with its method and its model of time."""
    evidence = plan.evidence
    bound = bound_text(format_seconds(evidence.bound), gap_of(evidence.value, evidence.bound))
    claim = "proven least" if evidence.proven else bound if evidence.bound > 0 else "no bound is known"
    among = " among plans of its kind" if floor_is_lower(plan) else ""
    priced = "by the paper's equations"
    if plan.schedule is not None:
        priced = f"by resources, up to {counted(plan.schedule.window, 'frame')} inside"
    return f"{claim}{among}, by {evidence.method}; analytic, {priced}"


def space_line(plan: Pipeline) -> str:
    """A line on which plans the proof or the bound covers, and what is known of all others."""
    space = f"{'proven' if plan.evidence.proven else 'bound'} among: {plan.space}"
    if not floor_is_lower(plan):
        return space
    gap, floor = 1 - plan.floor_s / plan.period_s, format_seconds(plan.floor_s)
    return f"{space}; a plan of any other kind takes {floor} or more, {gap:.1%} less than this one at best"


def compared_lines(plan: Pipeline, compared: Mapping[str, Pipeline | None]) -> list[str]:
    """Lines with the periods of the other methods, shortest first, next to the plan's."""
    lines = []
    for name, other in sorted(compared.items(), key=lambda item: item[1].period_s if item[1] else float("inf")):
        if name == plan.evidence.method:
            continue
        text = "no plan within the limits"
        if other is not None:
            ratio = f" ({other.period_s / plan.period_s:.2f}x)" if plan.period_s > 0 else ""
            stopped = ", best so far: stopped at its limit" if other.stopped else ""
            text = f"{format_seconds(other.period_s)}{ratio}{stopped}"
        lines.append(f"  {name:14} {text}")
    return lines


def simulation_lines(simulation: Simulation, plan: Pipeline) -> list[str]:
    """Lines on latencies that are long, queues that grow, and frames that are too few."""
    lines: list[str] = []
    if simulation.latency_s is not None and simulation.latency_s[0] > _MUCH_LONGER * plan.latency_s:
        lines.append(
            Message(
                f"a frame waits for those ahead of it, up to {counted(simulation.window, 'frame')} inside: ",
                "fewer inside (",
                Call("plan_pipeline"),
                " ",
                Setting("window"),
                ") or frames that come less often (",
                Setting("arrival_s"),
                ") make latencies shorter",
            )
        )
    if simulation.falls_behind:
        lines.append(
            f"frames arrive faster than the plan sustains, one every {simulation.sustained_period_s:.6g} s: queues "
            f"grow; {simulation.last_waiting} frames waited when the last one arrived"
        )
    if simulation.stalled_at_s is None and 0 < simulation.completed < 3 * simulation.window:
        lines.append(f"few frames: the pipeline fills and drains in {simulation.window} each; give more frames")
    return lines


def plan_in_use(served: Served) -> str:
    """Which of several plans the planned period and latency are of."""
    return f"the last of {served.replans + 1} plans"


def slower_than_planned(served: Served) -> float | None:
    """The measured period divided by the planned one, where it is above `SLOWER`; None otherwise, or if either is
    unknown."""
    if not served.period_s or not served.planned_period_s:
        return None
    ratio = served.period_s / served.planned_period_s
    return ratio if ratio > SLOWER else None


def busiest_use(served: Served) -> tuple[DeviceUse, str, float, float] | None:
    """The device and what it did (computing, sending or receiving) for the largest measured share of the time, that
    share, and the planned one; None if nothing was measured."""
    shares = [
        share
        for use in served.devices
        for share in (
            (use, "computing", use.computing, use.planned_computing),
            (use, "sending", use.sending, use.planned_sending),
            (use, "receiving", use.receiving, use.planned_receiving),
        )
    ]
    busiest = max(shares, key=lambda share: share[2], default=None)
    return None if busiest is None or busiest[2] <= 0 else busiest


def rates_line(rates_of: str) -> str:
    """Whose rates a plan is of, for devices that are processes of this machine."""
    return f"the plan is for the rates in {printable(rates_of)}; the devices here are processes of this machine"


def event_line(event: ServeEvent) -> str:
    """One line on an event and its time."""
    if event.kind == "replanned":
        why = " ".join(word for word in (printable(event.device), event.detail) if word)
        return (
            f"{event.at_s:.1f} s: another plan in use ({why}); planning "
            f"{event.plan_s:.2f} s, {format_bytes(event.moved_bytes)} bytes of shards moved and opened in "
            f"{event.move_s:.2f} s, {event.replayed} frames began again"
        )
    return f"{event.at_s:.1f} s: {printable(event.device)} {event.kind}: {printable(event.detail)}"
