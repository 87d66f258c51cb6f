"""From a graph and a cluster to a verified pipeline plan. A method is a name from a dict, or a callable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from downset.clusters.model import Cluster
from downset.errors import DownsetError, InfeasibleError, LimitReached, UnsupportedError, UsageError
from downset.graph.core import Graph
from downset.methods import ChainName, EngineName, Method, check_engine, choose
from downset.pipelines.accounting import Accounting, TopologyName, accounting_of, judged, latency_s
from downset.pipelines.check import verify_stages_cover
from downset.pipelines.device_order import fastest_first
from downset.pipelines.drafts import Drafted, FoundPipeline, Judged
from downset.pipelines.exact import least_latency, rival_plans, total_bound_s
from downset.pipelines.fetches import frame_tasks
from downset.pipelines.least_memory import lean_pipeline
from downset.pipelines.memory import device_memory
from downset.pipelines.network import block_units, pipeline_chain, pipeline_units, split_problem
from downset.pipelines.paper_timing import CommName
from downset.pipelines.planners import CONTRACT, PIPELINERS, PipelineOptions
from downset.pipelines.problem import SplitProblem
from downset.plans import DeviceMemory, Evidence, Pipeline
from downset.text import format_bytes

__all__ = ["plan_pipeline"]

Planner = Callable[..., FoundPipeline]
_TRIES = 40
"""How often a plan that breaks a memory limit is searched again with its stages forbidden."""
_SPACE = "stages of consecutive units on devices apart, fused strips from the fastest device down, one leader a stage"
"""Of which plans a bound speaks, and a proof."""


def plan_pipeline(
    network: Graph | SplitProblem,
    cluster: Cluster,
    *,
    method: str | Method | Planner = "exact",
    comm: CommName = "resources",
    topology: TopologyName = "leader",
    source: str | None = None,
    sink: str | None = None,
    window: int | None = None,
    max_latency_s: float | None = None,
    time_limit_s: float = 10.0,
    engine: EngineName = "native",
    units: Sequence[Iterable[int]] | None = None,
    **options: Unpack[PipelineOptions],
) -> Pipeline:
    """Which device computes which operators on which rows and sends what to whom in which order, for the least period
    within the limits.

    `comm`: the model of time, `resources` or `paper`. `source` and `sink`: names of devices that frames come from and
    results go to (None: outside, at no cost). `window`: the most frames inside at once (None: as many as help).
    `units`: the operators by unit, in order (default: `pipeline_units`). Plans of a Graph carry the memory that each
    device needs; devices that state a memory are held to it. In the plan devices stand fastest first. An operator
    whose halo is unknown is computed whole. `options`: the method's own.

    Raises UsageError for an unknown method, option, choice or device, InfeasibleError where no plan is within the
    latency or memory limit, with the least that would do."""
    check_engine(engine)
    if max_latency_s is not None and not max_latency_s > 0:
        raise UsageError(f"max_latency_s is above 0 s; given {max_latency_s:g}")
    planner = choose(method, PIPELINERS, CONTRACT, options)
    name, can = planner.name, planner.method
    cluster = fastest_first(cluster)  # plans do not depend on the order of a file
    accounting = accounting_of(cluster, comm=comm, topology=topology, source=source, sink=sink, window=window)
    problem, strict, notes = _problem(network, units, time_limit_s, chain=can.chain)
    forbidden: set[tuple[int, int, int]] = _too_heavy(problem, cluster)
    graph = network if isinstance(network, Graph) else None
    begin, deadline = time.perf_counter(), time.monotonic() + time_limit_s
    kept: dict[tuple[int, ...], int] = {}
    proof, lean, least = True, False, 0.0
    memory: tuple[DeviceMemory, ...] = ()
    for attempt in range(_TRIES + 1):
        try:
            if attempt == _TRIES or (attempt and time.perf_counter() - begin > time_limit_s):
                raise LimitReached(f"{attempt} plans in a row did not fit the devices' memory; allow more time")
            found: FoundPipeline = planner(
                problem, cluster, comm=accounting.comm, accounting=accounting, max_latency_s=max_latency_s,
                time_limit_s=time_limit_s, engine=engine, forbidden=frozenset(forbidden), strict=strict,
            )  # fmt: skip
        except (InfeasibleError, LimitReached) as error:
            if not can.proves:
                raise
            lean = True
            found = _fallback(
                problem, graph, cluster, accounting, max_latency_s, time_limit_s, strict, bool(forbidden), error
            )
        least = max(least, found.bound_s if proof and can.proves and not lean else 0.0)
        priced = found.judged or _judged(problem, cluster, found.stages, accounting, deadline)
        if graph is not None:
            memory = device_memory(problem, graph, cluster, priced.frame.stages, kept)
        broken = _broken(cluster, memory)
        if not broken:
            break
        if "forbidden" not in can.options or lean:
            raise _memory_error(name, cluster, priced, broken[0])
        # A smaller strip of the same segment, or of a longer one, might fit: more is forbidden than is known to be too
        # much.
        proof = False
        for held in broken:
            blocks = priced.frame.stages[_stage_of(priced, held.device)].blocks
            first, last = blocks[0].start, blocks[-1].stop
            forbidden |= {
                (start, stop, held.device) for start in range(first + 1) for stop in range(last, problem.cuts + 1)
            }
    if can.proves and graph is not None and (lean or not proof):
        better = _best_that_fits(problem, graph, cluster, priced, accounting, max_latency_s, strict, kept, deadline)
        if better is not None:
            priced, memory = better
            found = replace(found, note="faster plans that were found do not fit")
    if not proof:
        found = replace(found, bound_s=least, proven=False)  # of the plans that any memory allows
    seconds = time.perf_counter() - begin
    stopped = [f"stopped at the limit of {time_limit_s:g} s"] if found.stopped else []
    verify_stages_cover(problem, priced.frame.stages)
    if max_latency_s is not None and priced.latency_s > max_latency_s * (1 + 1e-12):
        raise _too_slow(problem, cluster, name, priced, accounting, max_latency_s)
    evidence = _evidence(problem, cluster, found, name, priced, seconds)
    note = "; ".join([*notes, *stopped, *([found.note] if found.note else [])])
    names = [device.name for device in cluster.devices]
    return Pipeline(
        cluster=cluster,
        comm=accounting.comm,
        topology=accounting.topology,
        entry=priced.frame.entry,
        exit=priced.frame.exit,
        source="outside" if accounting.source is None else names[accounting.source],
        sink="outside" if accounting.sink is None else names[accounting.sink],
        stages=priced.frame.stages,
        tasks=priced.frame.tasks,
        schedule=priced.schedule,
        memory=memory,
        period_s=priced.period_s,
        latency_s=priced.latency_s,
        evidence=evidence,
        space=found.space or _SPACE,
        note=note,
        stopped=found.stopped and not evidence.proven,
    )


def _judged(
    problem: SplitProblem, cluster: Cluster, drafts: Drafted, accounting: Accounting, deadline: float
) -> Judged:
    found = judged(problem, cluster, drafts, accounting, deadline=deadline)
    assert found is not None  # nothing limits it
    return found


def _evidence(
    problem: SplitProblem, cluster: Cluster, found: FoundPipeline, name: str, priced: Judged, seconds: float
) -> Evidence:
    period = priced.period_s
    bound = min(period, max(total_bound_s(problem, cluster), found.bound_s))
    proven = found.proven or bound >= period * (1 - 1e-12)
    return Evidence(name, period, period if proven else bound, proven, found.states, seconds)


def _too_slow(
    problem: SplitProblem, cluster: Cluster, name: str, priced: Judged, accounting: Accounting, max_latency_s: float
) -> InfeasibleError:
    least = least_latency(problem, cluster, accounting=accounting)[0]
    advice = "the least of any pipeline is" if least > max_latency_s else "method exact finds one; the least is"
    return InfeasibleError(
        f"{name}'s pipeline has a latency of {priced.latency_s:.6g} s, above {max_latency_s:g} s; {advice} "
        f"{least:.6g} s"
    )


def _problem(
    network: Graph | SplitProblem, units: Sequence[Iterable[int]] | None, seconds: float, *, chain: ChainName
) -> tuple[SplitProblem, tuple[int, ...] | None, list[str]]:
    """The chain of cuts, those of them that planners without relays may use (None: all), and notes."""
    if isinstance(network, SplitProblem):
        return network, None, []
    notes = []
    if not network.ops:
        raise UnsupportedError(f"{network.name}: no operators, nothing to split")
    strict = None
    if units is None and chain == "relays":
        refined = pipeline_chain(network, seconds=seconds)
        units, strict = refined.units, refined.strict
    elif units is None and chain == "blocks":
        units = block_units(network)
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
                if problem.weight_bytes(start, stop) + described.runtime_bytes > described.memory_bytes:
                    found.add((start, stop, device))
    return found


def _fallback(
    problem: SplitProblem, graph: Graph | None, cluster: Cluster, accounting: Accounting,
    max_latency_s: float | None, time_limit_s: float, strict: tuple[int, ...] | None, heavy: bool, error: DownsetError,
) -> FoundPipeline:  # fmt: skip
    """A plan for latency alone, or for memory alone, where the search found none: it forbids more than memory does, and
    on shared networks it samples. Raises `error` where no plan is within the latency, InfeasibleError where those do
    not fit or take too long."""
    if not heavy and isinstance(error, InfeasibleError):
        raise error
    known_s = max(time_limit_s, 1.0)
    quickest: tuple[float, Drafted] = (0.0, ())
    if max_latency_s is not None:
        quickest = least_latency(problem, cluster, accounting=accounting, time_limit_s=known_s, strict=strict)
        if quickest[0] > max_latency_s:
            raise error
        frame = frame_tasks(problem, cluster, quickest[1], comm=accounting.comm)
        held = () if graph is None else device_memory(problem, graph, cluster, frame.stages, {})
        if not heavy or (graph is not None and not _broken(cluster, held)):
            return FoundPipeline(quickest[1], 0.0, note="planned for latency alone: no faster plan within it was found")
    if graph is None or not heavy:
        raise error
    found = lean_pipeline(problem, graph, cluster, seconds=time_limit_s)
    latency = latency_s(problem, cluster, found.stages, accounting)
    if max_latency_s is not None and latency > max_latency_s:
        raise InfeasibleError(
            f"no pipeline was found that fits the devices' memory within {max_latency_s:g} s; one that fits has a "
            f"latency of {latency:.6g} s"
        )
    return found


def _best_that_fits(
    problem: SplitProblem, graph: Graph, cluster: Cluster, priced: Judged, accounting: Accounting,
    max_latency_s: float | None, strict: tuple[int, ...] | None, kept: dict[tuple[int, ...], int], deadline: float,
) -> tuple[Judged, tuple[DeviceMemory, ...]] | None:  # fmt: skip
    """Of the other methods' plans the fastest that fits and is faster than the one found; None where none is."""
    limit = float("inf") if max_latency_s is None else max_latency_s
    best: tuple[Judged, tuple[DeviceMemory, ...]] | None = None
    for drafts in rival_plans(problem, cluster, comm=accounting.comm, strict=strict):
        other = judged(problem, cluster, drafts, accounting, below_s=priced.period_s, deadline=deadline)
        if other is not None and other.latency_s <= limit and other.period_s < priced.period_s:
            memory = device_memory(problem, graph, cluster, other.frame.stages, kept)
            if not _broken(cluster, memory):
                priced, best = other, (other, memory)
    return best


def _broken(cluster: Cluster, memory: Sequence[DeviceMemory]) -> list[DeviceMemory]:
    """Those that hold more than their device has."""
    limits = [device.memory_bytes for device in cluster.devices]
    return [held for held in memory if held.total_bytes > (limits[held.device] or math.inf)]


def _stage_of(priced: Judged, device: int) -> int:
    return next(place for place, stage in enumerate(priced.frame.stages) if device in stage.devices)


def _memory_error(name: str, cluster: Cluster, priced: Judged, held: DeviceMemory) -> InfeasibleError:
    described = cluster.devices[held.device]
    return InfeasibleError(
        f"{name}: device {described.name!r} would need {format_bytes(held.total_bytes)} bytes for stage "
        f"{_stage_of(priced, held.device)}, more than its {format_bytes(described.memory_bytes or 0)}; give it that "
        "much, more devices, or method exact"
    )
