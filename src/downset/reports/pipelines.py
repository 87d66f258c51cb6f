"""Describes a pipeline: the rows that each stage computes on each device, and how busy each device is."""

from __future__ import annotations

from collections.abc import Mapping

from downset.reports.gaps import bound_text, gap_of
from downset.results.pipelines import Pipeline, PipelineStage
from downset.results.task_times import DeviceSeconds, device_seconds, occupied_seconds
from downset.text import counted, printable

__all__ = [
    "busy_share",
    "compared_lines",
    "device_loads",
    "floor_is_lower",
    "hand_over_line",
    "longest_computing",
    "message_bytes",
    "one_device_line",
    "period_line",
    "space_line",
    "stage_rows",
]

_ROUNDING = 1e-6
"""Bounds that differ by at most this share are equal but for rounding."""
_MOST_BLOCKS = 4
"""Blocks of a stage that are listed; the rest is counted."""


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


def one_device_line(plan: Pipeline) -> str | None:
    """A line that says that no split was faster than one device, and how that is known. None if several devices work,
    if there is only one, or if `single` asked for one."""
    used = {device for stage in plan.stages for device in (*stage.devices, stage.leader) if device >= 0}
    evidence = plan.evidence
    if len(used) != 1 or len(plan.cluster.devices) < 2 or evidence.method == "single":
        return None
    name = printable(plan.cluster.devices[used.pop()].name)
    if evidence.proven:
        other = f"; a plan of any other kind takes {plan.floor_s:.6g} s or more" if floor_is_lower(plan) else ""
        return (
            f"one device computes everything: no split of the searched kind over several devices is faster than "
            f"{name} alone, {plan.period_s:.6g} s (proven among {plan.space}{other})"
        )
    bound = f"every plan takes {evidence.bound:.6g} s or more" if evidence.bound > 0 else "no bound is known"
    return (
        f"one device computes everything: {evidence.method} found no split over several devices that is faster than "
        f"{name} alone, {plan.period_s:.6g} s (not proven; {bound}, among {plan.space})"
    )


def floor_is_lower(plan: Pipeline) -> bool:
    """Whether plans outside the searched space may have a shorter period than the bound."""
    return 0 < plan.floor_s < plan.evidence.bound * (1 - _ROUNDING)


def period_line(plan: Pipeline) -> str:
    """A line with the period, its proof or gap, latency and throughput. Analytic."""
    evidence = plan.evidence
    told = bound_text(f"{evidence.bound:.6g} s", gap_of(evidence.value, evidence.bound))
    proof = "proven" if evidence.proven else told
    return (
        f"{evidence.method}: period {plan.period_s:.6g} s ({proof}), latency {plan.latency_s:.6g} s, "
        f"{plan.throughput_per_s:.4g} frames/s; analytic, {_priced(plan)}"
    )


def space_line(plan: Pipeline) -> str:
    """A line on which plans the proof or the bound covers, and what is known of all others."""
    said = f"{'proven' if plan.evidence.proven else 'bound'} among: {plan.space}"
    if not floor_is_lower(plan):
        return said
    gap = 1 - plan.floor_s / plan.period_s
    return f"{said}; a plan of any other kind takes {plan.floor_s:.6g} s or more, {gap:.1%} less than this one at best"


def _priced(plan: Pipeline) -> str:
    if plan.schedule is None:
        return "by the paper's equations"
    schedule = plan.schedule
    return f"by resources, up to {counted(schedule.window, 'frame')} inside, busiest {schedule.load_bound_s:.6g} s"


def compared_lines(plan: Pipeline, compared: Mapping[str, Pipeline | None]) -> list[str]:
    """Lines with the periods of other methods, shortest first, next to the plan's."""
    lines = []
    for name, other in sorted(compared.items(), key=lambda item: item[1].period_s if item[1] else float("inf")):
        said = "no plan within the limits"
        if other is not None:
            ratio = f" ({other.period_s / plan.period_s:.2f}x)" if plan.period_s > 0 else ""
            said = f"{other.period_s:.6g} s{ratio}{', best so far: stopped at its limit' if other.stopped else ''}"
        lines.append(f"  {name:14} {said}")
    return lines
