"""Describes stages and their measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from downset.graph.float_types import OWN
from downset.results.plans import StagePlan
from downset.results.stages import StageResult, peer_times
from downset.text import format_bytes

__all__ = ["choice_lines", "peer_lines", "stage_plan_lines", "stage_result_lines", "type_text"]


def stage_plan_lines(plan: StagePlan) -> list[str]:
    """The plan with a line for each stage: the units of each group, or the merged units."""
    waits = "with barriers" if plan.barriers else "without barriers"
    lines = [
        f"{len(plan.units)} units in {len(plan.stages)} stages {waits}: {plan.evidence.in_seconds()}",
        f"for {plan.device_name}, {type_text(plan)}, batch {plan.batch}, {plan.versions}"
        if plan.device
        else "from prices, for no device",
    ]
    for number, stage in enumerate(plan.stages):
        groups = ["[" + " ".join(map(str, group)) + "]" for group in stage.groups]
        lines.append(f"stage {number}: {'merged ' if stage.merged else ''}{' '.join(groups)}")
    return lines


def type_text(plan: StagePlan) -> str:
    """The element type in which the plan computes floats."""
    return "the model's float types" if plan.dtype == OWN else plan.dtype


def choice_lines(result: StageResult) -> list[str]:
    """The chosen stages with the reason, and the bound if one is known."""
    bound = "bound: not known (see the note)"
    if result.bound_s is not None:
        bound = (
            f"bound: {result.bound_s * 1e3:.3f} ms, the longest path of units timed alone, or all arithmetic at its "
            "best rate"
        )
    return [
        f"chosen: {result.plan.evidence.method}; {result.why}",
        f"{bound}; {result.timings_used} stages timed",
        *peer_lines(result.peer_s),
    ]


def peer_lines(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """The medians of other runtimes beside ours ("downset"), and which of them are faster if the measurements show
    that."""
    if len(seconds) < 2:
        return []
    times = peer_times(seconds)
    fastest_first = sorted(times.median_s.items(), key=itemgetter(1))
    text = "; ".join(f"{name} {cost_s * 1e3:.3f} ms" for name, cost_s in fastest_first)
    lines = [f"compared with other runtimes, in rounds with rests between them, medians: {text}"]
    for name in times.faster:
        spread = "; repeated times vary too much for a ratio of medians" if name in times.at_least else ""
        lines.append(f"{name} is faster than this plan, {times.ratio(name)}{spread}")
    if times.not_known:
        names = " and ".join(times.not_known)
        lines.append(
            f"it is not known whether {names} {'is' if len(times.not_known) == 1 else 'are'} faster than this plan: "
            "repeated times vary too much (p90 over p10)"
        )
    return lines


def stage_result_lines(result: StageResult) -> list[str]:
    """The candidates with their measured times in milliseconds, and the choice."""
    plan = result.plan
    lines = [f"{plan.device_name}, {type_text(plan)}, batch {plan.batch} (measured, ms)"]
    for candidate in result.candidates:
        low, middle, high = (candidate.percentile(share) * 1e3 for share in (0.1, 0.5, 0.9))
        times = f"p10 {low:.3f}  p50 {middle:.3f}  p90 {high:.3f}"
        lines.append(f"  {candidate.name:24} {times}  live {format_bytes(candidate.live_bytes)} B (analytic)")
    return lines + choice_lines(result)
