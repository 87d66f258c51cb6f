"""Steps that a user can take next to gain time: after stages, pipelines, their simulations and their runs.

Each has numbers that were computed or measured. The steps that gain most seconds come first."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from downset.messages import Call, Message, Part, Setting, joined
from downset.reports.more_search import search_setting, time_setting
from downset.reports.next_steps import ranked
from downset.reports.pipeline_sentences import busiest_use, slower_than_planned
from downset.reports.timeline import resource_name
from downset.results.next_step import NextStep
from downset.results.pipelines import Pipeline, PipelineSchedule, Resource
from downset.results.serving import Served, Simulation
from downset.results.stages import StageCandidate, StageResult, is_steady, peer_times
from downset.results.task_times import occupied_seconds
from downset.text import counted, format_bytes, format_seconds, printable

__all__ = ["pipeline_next_steps", "served_next_steps", "simulation_next_steps", "stage_next_steps"]

_ROUNDING = 1e-6
"""A gap of at most this share is rounding."""
_ON_DEVICES = Message(
    "Run it on the devices: start downset worker on each, then ",
    Call("serve"),
    " with ",
    Setting("head"),
    " and ",
    Setting("keys"),
    ". What was measured here is of processes that share this machine.",
)
_SMALLER_WINDOW = Call("plan_pipeline", (Setting("window"),))
_MUCH_LONGER = 1.5
"""A latency above this many times that of one frame alone is that of a frame which waits for others."""


_TELLING_ROUNDS = 0.8
"""The share of rounds in which one of two candidates must be slower, for that to be known."""


def stage_next_steps(result: StageResult) -> list[NextStep]:
    """Steps after a search for stages: more search if a limit left stages out and the bound leaves room, a runtime that
    was faster, the unit that takes longest, and a candidate of less memory."""
    plan = result.plan
    chosen = next((one for one in result.candidates if one.name == plan.evidence.method), None)
    now_s = plan.evidence.value
    steps = []
    if result.further and result.bound_s is not None and _leaves_room(result.bound_s, now_s):
        gained = now_s - result.bound_s
        steps.append(
            NextStep(
                Message(
                    "Time more stages (",
                    _further_settings(result.further),
                    f"): limits left some out. The bound is {format_seconds(result.bound_s)}, so at most "
                    f"{format_seconds(gained)} of {format_seconds(now_s)} may still be gained.",
                ),
                gained_s=gained,
            )
        )
    times = peer_times(result.peer_s)
    for name in times.faster:
        seconds, ours = times.median_s[name], times.median_s["downset"]
        if name in times.at_least:
            steps.append(
                NextStep(
                    f"Run it in {name}: {format_seconds(seconds)} in the median of the same rounds (measured), faster "
                    f"than this plan by {times.ratio(name)}; how many seconds less is not known, because repeated "
                    "times vary too much."
                )
            )
            continue
        steps.append(
            NextStep(
                f"Run it in {name}: {format_seconds(seconds)}, {format_seconds(ours - seconds)} less than this plan "
                "in the same rounds (measured, medians).",
                gained_s=ours - seconds,
            )
        )
    if result.unit_s:
        unit = max(range(len(result.unit_s)), key=result.unit_s.__getitem__)
        seconds, every = result.unit_s[unit], sum(result.unit_s)
        name = repr(printable(result.unit_names[unit])) if result.unit_names else f"unit {unit}"
        share = f"{seconds / every:.0%} of all units one after another (measured)"
        if result.bound_s is None:
            step = NextStep(
                f"Make {name} cheaper: alone it takes {share}, the most of any; what that gains is not known, because "
                "the units were measured too slow."
            )
        else:
            step = NextStep(
                f"Make {name} cheaper: alone it takes {format_seconds(seconds)}, {share}; half of it is "
                f"{format_seconds(seconds / 2)} less at most.",
                gained_s=seconds / 2,
            )
        steps.append(step)
    smaller = [one for one in result.candidates if chosen is not None and one.live_bytes < chosen.live_bytes]
    if chosen is not None and smaller:
        least = min(smaller, key=lambda one: (one.live_bytes, one.percentile(0.5)))
        steps.append(
            NextStep(
                Message(
                    f"Where memory counts more, take the candidate {least.name} (",
                    Setting("candidate", least.name),
                    f"): {format_bytes(least.live_bytes)} B live (analytic) and not {format_bytes(chosen.live_bytes)}; "
                    f"{_time_beside(least, chosen)}.",
                )
            )
        )
    return ranked(steps)


def _further_settings(further: Mapping[str, float | int | str]) -> Message:
    """The fields of StageLimits that widen a search. Each of the wider limits on stages suffices; what ended the search
    goes with every one of them."""
    wider = {
        name: Setting(name, time_setting(float(value)).value if name == "seconds" else value)
        for name, value in further.items()
    }
    shapes = [wider.pop(name) for name in ("endings", "max_ops", "max_groups") if name in wider]
    ways: list[Part] = [joined(" or ", shapes)] if shapes else []
    return joined(", and ", [*ways, *wider.values()])


def _time_beside(other: StageCandidate, chosen: StageCandidate) -> str:
    """Words for a candidate's time compared with the chosen one's, as far as the rounds in which both ran tell."""
    differences = [theirs - ours for theirs, ours in zip(other.seconds, chosen.seconds, strict=True)]
    rounds = len(differences)
    for word, many in (("slower", sum(d > 0 for d in differences)), ("faster", sum(d < 0 for d in differences))):
        if rounds and many >= _TELLING_ROUNDS * rounds:
            rounds_text = f"it was {word} in {many} of {rounds} rounds (measured)"
            if is_steady(other.seconds) and is_steady(chosen.seconds):
                typical = format_seconds(abs(median(differences)))
                return f"{rounds_text}, by {typical} in the median"
            return f"{rounds_text}; by how much is not known, because repeated times vary too much"
    return "whether it is slower is not known: neither was faster in four fifths of the rounds (measured)"


def pipeline_next_steps(
    plan: Pipeline,
    upgraded: Mapping[str, Pipeline | None] | None = None,
    compared: Mapping[str, Pipeline | None] | None = None,
) -> list[NextStep]:
    """Steps after a plan: more search if it is not proven, another method if it is faster (`compared`: plans by
    method), and the gain of an upgrade (`upgraded`: plans by what is added), or where none was planned, what a faster
    busiest resource gains in this plan."""
    steps = _more_search(plan)
    period = plan.period_s
    for method, other in (compared or {}).items():
        if other is not None and other.period_s < period and format_seconds(other.period_s) != format_seconds(period):
            steps.append(
                NextStep(
                    Message(
                        "Plan by ",
                        Setting("method", method),
                        f": a period of {format_seconds(other.period_s)}, "
                        f"{format_seconds(period - other.period_s)} less (analytic).",
                    ),
                    gained_s=period - other.period_s,
                )
            )
    relieved = None if plan.schedule is None or upgraded else _relieved(plan, plan.schedule)
    if relieved is not None:
        resource, busy_s, left_s, what = relieved
        steps.append(
            NextStep(
                Message(
                    f"Make {what} twice as fast: {resource_name(plan, resource)} is the busiest resource, with "
                    f"{format_seconds(busy_s)} of every period. This plan would then gain at most "
                    f"{format_seconds(period - left_s)} (analytic); another plan may gain more: ",
                    Call("pipelines.replan.plan_upgraded"),
                    " looks for it.",
                ),
                gained_s=period - left_s,
            )
        )
    for added, other in (upgraded or {}).items():
        if other is not None and other.period_s < period:
            steps.append(
                NextStep(
                    f"With {printable(added)}: a period of {format_seconds(other.period_s)}, "
                    f"{format_seconds(period - other.period_s)} less (planned by {other.evidence.method}, analytic).",
                    gained_s=period - other.period_s,
                )
            )
    return ranked(steps)


def _more_search(plan: Pipeline) -> list[NextStep]:
    """The step to more search, if the period is not proven least."""
    period, bound = plan.period_s, plan.evidence.bound
    setting = search_setting(plan.evidence, "exact")
    if plan.evidence.proven or setting is None or not _leaves_room(bound, period):
        return []
    return [
        NextStep(
            Message(
                "Search further (",
                Call("plan_pipeline", (setting,)),
                f"): the period is not proven least, at most {format_seconds(period - bound)} may still be gained; the "
                f"bound is {format_seconds(bound)}.",
            ),
            gained_s=period - bound,
        )
    ]


def _leaves_room(bound_s: float, found_s: float) -> bool:
    """Whether the bound is below what was found by more than rounding: by a millionth, and in the digits printed."""
    return found_s - bound_s > _ROUNDING * found_s and format_seconds(bound_s) != format_seconds(found_s)


def simulation_next_steps(simulation: Simulation, plan: Pipeline, *, replanned: bool = False) -> list[NextStep]:
    """Steps after a simulation, and those of its plan. `replanned`: a plan without the dead devices was made."""
    steps = []
    if simulation.stalled_at_s is not None and not replanned:
        left = counted(simulation.frames - simulation.completed, "frame")
        steps.append(
            NextStep(
                Message(
                    "Plan without the dead devices (",
                    Call("pipelines.replan.replan"),
                    f"): the plan stalls at {format_seconds(simulation.stalled_at_s)}, and {left} never left.",
                ),
                suffices=True,
            )
        )
    if simulation.falls_behind and simulation.arrival_s is not None and simulation.sustained_period_s is not None:
        steps.append(
            NextStep(
                Message(
                    "Let frames come less often (",
                    Setting("arrival_s", float(f"{simulation.sustained_period_s:.4g}")),
                    f"): one every {format_seconds(simulation.arrival_s)} is more than the plan sustains, and "
                    f"{simulation.last_waiting} waited when the last one arrived (simulated).",
                ),
                suffices=True,
            )
        )
    elif (
        simulation.latency_s is not None
        and simulation.window > 1
        and simulation.latency_s[0] > _MUCH_LONGER * plan.latency_s
    ):
        steps.append(_fewer_inside(simulation.latency_s[0], plan.latency_s, _SMALLER_WINDOW, "simulated"))
    return ranked([*steps, *pipeline_next_steps(plan)])


def served_next_steps(served: Served, plan: Pipeline, *, local: bool = False) -> list[NextStep]:
    """Steps after a run on devices, by what was measured. Those that follow from the plan's own times come after them;
    what limits the plan is named only where nothing was measured. `local`: the devices were processes of this machine,
    so their times say nothing of the plan's devices."""
    if local:
        return [NextStep(_ON_DEVICES), *_more_search(plan)]
    steps = []
    ratio, busiest = slower_than_planned(served), _busiest_measured(served)
    if ratio is not None and served.period_s is not None:
        steps.append(
            NextStep(
                "Measure the devices (downset profile-cluster) and plan by that: the measured period is "
                f"{format_seconds(served.period_s)}, {ratio:.2f}x the planned "
                f"{format_seconds(served.planned_period_s)}.",
                gained_s=served.period_s - served.planned_period_s,
            )
        )
    if busiest is not None:
        steps.append(busiest)
    if served.latency_s is not None and served.latency_s[0] > _MUCH_LONGER * served.planned_latency_s > 0:
        ways: list[Part] = [Call("serve", (Setting("spare_frames", 0),))]
        if plan.schedule is not None and plan.schedule.window > 1:
            ways.append(_SMALLER_WINDOW)
        steps.append(_fewer_inside(served.latency_s[0], served.planned_latency_s, joined(", ", ways), "measured"))
    return [*ranked(steps), *(pipeline_next_steps(plan) if busiest is None else _more_search(plan))]


def _busiest_measured(served: Served) -> NextStep | None:
    """The step to a faster device or faster links, by the largest measured share of the time. None if no period or no
    share was measured."""
    busiest = busiest_use(served)
    if busiest is None or not served.period_s:
        return None
    use, doing, share, planned = busiest
    name = printable(use.name)
    what = name if doing == "computing" else f"the links of {name}"
    # Each device does one computation at a time; what it sends and receives may overlap.
    spent = use.computing if doing == "computing" else use.sending + use.receiving
    gained = served.period_s * min(spent, 1.0) / 2
    return NextStep(
        f"Make {what} twice as fast: {doing} took {share:.0%} of the time of {name} (measured; planned {planned:.0%}), "
        f"the largest share of any device; at most {format_seconds(gained)} of every {format_seconds(served.period_s)} "
        "may be gained.",
        gained_s=gained,
    )


def _fewer_inside(latency_s: float, alone_s: float, way: Part, how: str) -> NextStep:
    return NextStep(
        Message(
            "Where latency counts more, let fewer frames in (",
            way,
            f"): a frame takes {format_seconds(latency_s)} in the median ({how}), one alone {format_seconds(alone_s)} "
            "(analytic).",
        )
    )


def _relieved(plan: Pipeline, schedule: PipelineSchedule) -> tuple[Resource, float, float, str] | None:
    """(the busiest resource, its seconds for a frame, the most seconds of any resource if what keeps it busy were twice
    as fast, what that is); None if that gains nothing."""
    took = occupied_seconds(plan)
    loads = {order.resource: [turn.task for turn in order.turns] for order in schedule.orders if order.turns}
    if not loads:
        return None
    busiest = max(loads, key=lambda resource: sum(took[task] for task in loads[resource]))
    transfers = busiest.kind in ("radio", "send", "receive", "medium")

    def faster(task: int) -> float:
        """Seconds of a task if what keeps the resource busy were twice as fast."""
        transfer = plan.tasks[task].transfer
        if transfers:
            touched = transfer is not None and (
                busiest.device < 0 or busiest.device in (transfer.source, transfer.target)
            )
        else:
            touched = transfer is None and plan.tasks[task].device == busiest.device
        return took[task] / 2 if touched else took[task]

    busy_s = sum(took[task] for task in loads[busiest])
    left_s = max(sum(map(faster, tasks)) for tasks in loads.values())
    if left_s >= plan.period_s * (1 - 1e-9):
        return None
    name = "the medium" if busiest.device < 0 else printable(plan.cluster.devices[busiest.device].name)
    what = name if not transfers else "the network" if busiest.device < 0 else f"the links of {name}"
    return busiest, busy_s, left_s, what
