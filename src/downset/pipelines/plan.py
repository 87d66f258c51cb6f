"""From a graph and a cluster to a verified pipeline plan. A method is a name from a dict, or a callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from downset.clusters.model import Cluster
from downset.errors import DownsetError, InfeasibleError, LimitReached, UnsupportedError, UsageError
from downset.graph.core import Graph
from downset.pipelines.check import verify_stages_cover
from downset.pipelines.device_order import fastest_first
from downset.pipelines.drafts import Drafted, FoundPipeline
from downset.pipelines.exact import least_latency, rival_plans, total_bound_s
from downset.pipelines.least_memory import lean_pipeline
from downset.pipelines.memory import stage_memory
from downset.pipelines.network import block_units, pipeline_chain, pipeline_units, split_problem
from downset.pipelines.paper_timing import check_comm, medium_seconds, period_and_latency, stages_of
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.problem import SplitProblem
from downset.plans import Evidence, TimedPipeline, TimedStage
from downset.text import format_bytes

__all__ = ["judge_pipeline", "plan_pipeline"]

Planner = Callable[..., FoundPipeline]
_TRIES = 40
"""How often a plan that breaks a memory limit is searched again with its stages forbidden."""


def plan_pipeline(
    network: Graph | SplitProblem,
    cluster: Cluster,
    *,
    method: str | Planner = "exact",
    comm: str = "full",
    max_latency_s: float | None = None,
    time_limit_s: float = 10.0,
    engine: str = "native",
    units: Sequence[Iterable[int]] | None = None,
) -> TimedPipeline:
    """Which device computes which operators on which rows, for the least period within the limits.

    `units`: the operators by unit, in order (default: `pipeline_units`). Stages of a Graph carry the memory that each
    device needs; devices that state a memory are held to it. In the plan devices stand fastest first. An operator
    whose halo is unknown is computed whole. Raises UsageError for an unknown method or model, InfeasibleError where no
    plan is within the latency or memory limit, with the least that would do."""
    check_comm(comm)
    if max_latency_s is not None and not max_latency_s > 0:
        raise UsageError(f"max_latency_s is above 0 s; given {max_latency_s:g}")
    name = method if isinstance(method, str) else getattr(method, "__name__", "callable")
    if isinstance(method, str) and method not in PIPELINERS:
        raise UsageError(f"unknown pipeline method {method!r}; choose one of {', '.join(PIPELINERS)}")
    planner = PIPELINERS[method] if isinstance(method, str) else method
    cluster = fastest_first(cluster)  # plans do not depend on the order of a file
    if name == "blocks" and units is None and isinstance(network, Graph):
        units = block_units(network)
    relays = name == "exact" and units is None
    problem, strict, notes = _problem(network, units, time_limit_s, relays=relays)
    forbidden: set[tuple[int, int, int]] = _too_heavy(problem, cluster)
    graph = network if isinstance(network, Graph) else None
    begin = time.perf_counter()
    kept: dict[tuple[int, ...], int] = {}
    proof, lean, least = True, False, 0.0
    for attempt in range(_TRIES + 1):
        try:
            if attempt == _TRIES or (attempt and time.perf_counter() - begin > time_limit_s):
                raise LimitReached(f"{attempt} plans in a row did not fit the devices' memory; allow more time")
            found = planner(
                problem, cluster, comm=comm, max_latency_s=max_latency_s, time_limit_s=time_limit_s, engine=engine,
                forbidden=frozenset(forbidden), strict=strict,
            )  # fmt: skip
        except (InfeasibleError, LimitReached) as error:
            if name != "exact":
                raise
            lean = True
            found = _fallback(
                problem, graph, cluster, comm, max_latency_s, time_limit_s, strict, bool(forbidden), error
            )
        least = max(least, found.bound_s if proof and name == "exact" and not lean else 0.0)
        stages = stages_of(problem, cluster, found.stages, comm=comm)
        if graph is not None:
            stages = _held(problem, graph, cluster, stages, kept)
        broken = _broken(cluster, stages)
        if not broken:
            break
        if name not in ("exact", "single") or lean:
            raise _memory_error(name, cluster, stages, broken[0])
        # A smaller strip of the same segment, or of a longer one, might fit: more is forbidden than is known to be too
        # much.
        proof = False
        for place, device in broken:
            first, last = stages[place].blocks[0].start, stages[place].blocks[-1].stop
            forbidden |= {(start, stop, device) for start in range(first + 1) for stop in range(last, problem.cuts + 1)}
    if name == "exact" and graph is not None and (lean or not proof):
        found, stages = _best_that_fits(problem, graph, cluster, found, stages, comm, max_latency_s, strict, kept)
    if not proof:
        found = replace(found, bound_s=least, proven=False)  # of the plans that any memory allows
    seconds = time.perf_counter() - begin
    return judge_pipeline(
        problem, cluster, stages, found, name, comm, seconds, max_latency_s=max_latency_s,
        notes=[*notes, *([f"stopped at the limit of {time_limit_s:g} s"] if found.stopped else [])],
    )  # fmt: skip


def judge_pipeline(
    problem: SplitProblem, cluster: Cluster, stages: tuple[TimedStage, ...], found: FoundPipeline, name: str,
    comm: str, seconds: float, *, max_latency_s: float | None = None, notes: Sequence[str] = (),
) -> TimedPipeline:  # fmt: skip
    """Stages as a plan with its evidence; checks the limit and that the stages cover the network once."""
    verify_stages_cover(problem, stages)
    period, latency = period_and_latency(cluster, stages)
    if max_latency_s is not None and latency > max_latency_s * (1 + 1e-12):
        least = least_latency(problem, cluster, comm=comm)[0]
        advice = "the least of any pipeline is" if least > max_latency_s else "method exact finds one; the least is"
        raise InfeasibleError(
            f"{name}'s pipeline has a latency of {latency:.6g} s, above {max_latency_s:g} s; {advice} {least:.6g} s"
        )
    bound = min(period, max(total_bound_s(problem, cluster), found.bound_s))
    proven = found.proven or bound >= period * (1 - 1e-12)
    if proven:
        bound = period
    evidence = Evidence(name, period, bound, proven, found.states, seconds)
    medium = medium_seconds(cluster, stages)
    note = "; ".join([*notes, *([found.note] if found.note else [])])
    return TimedPipeline(cluster, comm, stages, period, latency, medium, evidence, note, found.stopped and not proven)


def _problem(
    network: Graph | SplitProblem, units: Sequence[Iterable[int]] | None, seconds: float, *, relays: bool
) -> tuple[SplitProblem, tuple[int, ...] | None, list[str]]:
    """The chain of cuts, those of them that planners without relays may use (None: all), and notes."""
    if isinstance(network, SplitProblem):
        return network, None, []
    notes = []
    if not network.ops:
        raise UnsupportedError(f"{network.name}: no operators, nothing to split")
    strict = None
    if units is None and relays:
        chain = pipeline_chain(network, seconds=seconds)
        units, strict = chain.units, chain.strict
    elif units is None:
        units = pipeline_units(network, seconds=seconds)
    try:
        problem = split_problem(network, units)
    except UnsupportedError as error:
        notes.append(f"not split there: {error}")
        problem = split_problem(network, units, strict=False)
    if all(problem.tensors[tensor].rows <= 1 for op in problem.ops for tensor in op.outputs):
        notes.append(f"{network.name} has no rows to split: whole operators only")
    return problem, strict, notes


def _too_heavy(problem: SplitProblem, cluster: Cluster) -> set[tuple[int, int, int]]:
    """(start, stop, device) whose weights alone are more than the device's memory."""
    found = set()
    for device, described in enumerate(cluster.devices):
        if described.memory_bytes is None:
            continue
        for start in range(problem.cuts):
            for stop in range(start + 1, problem.cuts + 1):
                if problem.weight_bytes(start, stop) > described.memory_bytes:
                    found.add((start, stop, device))
    return found


def _fallback(
    problem: SplitProblem, graph: Graph | None, cluster: Cluster, comm: str, max_latency_s: float | None,
    time_limit_s: float, strict: tuple[int, ...] | None, heavy: bool, error: DownsetError,
) -> FoundPipeline:  # fmt: skip
    """A plan for latency alone, or for memory alone, where the search found none: it forbids more than memory does, and
    on shared networks it samples. Raises `error` where no plan is within the latency, InfeasibleError where those do
    not fit or take too long."""
    if not heavy and isinstance(error, InfeasibleError):
        raise error
    known_s = max(time_limit_s, 1.0)
    quickest: tuple[float, Drafted] = (0.0, ())
    if max_latency_s is not None:
        quickest = least_latency(problem, cluster, comm=comm, time_limit_s=known_s, strict=strict)
        if quickest[0] > max_latency_s:
            raise error
        stages = stages_of(problem, cluster, quickest[1], comm=comm)
        if not heavy or (graph is not None and not _broken(cluster, _held(problem, graph, cluster, stages, {}))):
            return FoundPipeline(quickest[1], 0.0, note="planned for latency alone: no faster plan within it was found")
    if graph is None or not heavy:
        raise error
    found = lean_pipeline(problem, graph, cluster, seconds=time_limit_s)
    latency = period_and_latency(cluster, stages_of(problem, cluster, found.stages, comm=comm))[1]
    if max_latency_s is not None and latency > max_latency_s:
        raise InfeasibleError(
            f"no pipeline was found that fits the devices' memory within {max_latency_s:g} s; one that fits has a "
            f"latency of {latency:.6g} s"
        )
    return found


def _best_that_fits(
    problem: SplitProblem, graph: Graph, cluster: Cluster, found: FoundPipeline, stages: tuple[TimedStage, ...],
    comm: str, max_latency_s: float | None, strict: tuple[int, ...] | None, kept: dict[tuple[int, ...], int],
) -> tuple[FoundPipeline, tuple[TimedStage, ...]]:  # fmt: skip
    """The plan found under memory limits, or a rival's that fits as well and is faster."""
    limit = float("inf") if max_latency_s is None else max_latency_s
    for drafts in rival_plans(problem, cluster, comm=comm, strict=strict):
        other = stages_of(problem, cluster, drafts, comm=comm)
        period, latency = period_and_latency(cluster, other)
        if latency <= limit and period < period_and_latency(cluster, stages)[0]:
            other = _held(problem, graph, cluster, other, kept)
            if not _broken(cluster, other):
                found, stages = replace(found, stages=drafts, note="faster plans that were found do not fit"), other
    return found, stages


def _held(
    problem: SplitProblem, graph: Graph, cluster: Cluster, stages: tuple[TimedStage, ...],
    kept: dict[tuple[int, ...], int],
) -> tuple[TimedStage, ...]:  # fmt: skip
    """The stages with the memory that each device needs."""
    return tuple(replace(s, memory_bytes=stage_memory(problem, graph, cluster, s, kept)) for s in stages)


def _broken(cluster: Cluster, stages: Sequence[TimedStage]) -> list[tuple[int, int]]:
    """(stage, device) where a device's memory is exceeded."""
    found = []
    for place, stage in enumerate(stages):
        for device, nbytes in zip(stage.devices, stage.memory_bytes, strict=False):
            memory = cluster.devices[device].memory_bytes
            if memory is not None and nbytes > memory:
                found.append((place, device))
    return found


def _memory_error(
    name: str, cluster: Cluster, stages: Sequence[TimedStage], broken: tuple[int, int]
) -> InfeasibleError:
    place, device = broken
    stage = stages[place]
    nbytes = stage.memory_bytes[stage.devices.index(device)]
    described = cluster.devices[device]
    return InfeasibleError(
        f"{name}: device {described.name!r} would need {format_bytes(nbytes)} bytes for stage {place}, more than its "
        f"{format_bytes(described.memory_bytes or 0)}; give it that much, more devices, or method exact"
    )
