"""Plans a verified pipeline of a graph on a cluster. A method is a name from a dict, or a callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from downset.budget import Budget, Clock
from downset.clusters.model import Cluster
from downset.errors import UnsupportedError, UsageError
from downset.graph.core import Graph
from downset.messages import Message
from downset.methods import ChainName, Method, choose
from downset.pipelines.accounting import CommName, TopologyName, accounting_of
from downset.pipelines.chains import MOST_CHAINS, further_chains
from downset.pipelines.check import verify_stages_cover
from downset.pipelines.device_order import fastest_first
from downset.pipelines.drafts import FoundPipeline, TimedPlan
from downset.pipelines.floors import total_bound_s
from downset.pipelines.least_memory import check_floors
from downset.pipelines.memory import PlanMemory
from downset.pipelines.network import (
    UnitChain,
    block_units,
    pipeline_chain,
    pipeline_units,
    priced_chain,
    split_problem,
)
from downset.pipelines.planners import CONTRACT, PIPELINERS, PipelineOptions
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import SplitProblem
from downset.pipelines.within_memory import SearchWithinMemory
from downset.results.pipelines import Pipeline
from downset.results.plans import Evidence

__all__ = ["plan_pipeline"]

Planner = Callable[..., FoundPipeline]
_SPACE = (
    "stages of consecutive units of one chain on disjoint sets of devices, fused strips from the fastest device down "
    "(of equal ones source and sink last), one leader a stage"
)
"""The plans of which a bound and a proof speak."""


def plan_pipeline(  # noqa: PLR0913 - users know its keywords
    network: Graph | SplitProblem | PricedChain,
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
    work_limit: int | None = None,
    units: Sequence[Iterable[int]] | None = None,
    **options: Unpack[PipelineOptions],
) -> Pipeline:
    """The pipeline of least period found within the limits: which device computes which operators on which rows, and
    sends which rows to whom, in which order.

    `comm`: the model of time, `resources` or `paper`. `source` and `sink`: names of the devices where frames appear and
    where results stay (None: outside, at no cost). `window`: the frame window, the most frames inside at once (None: as
    many as shorten the period). `units`: the operators of each unit, in order (default: `pipeline_chain`). Plans of a
    Graph state the memory that each device needs, and keep to the memory that devices state. In the plan devices stand
    fastest first. An operator whose halo is unknown is computed whole. `work_limit`: how many states searches may
    visit; unless the time ends it first, the same limit gives the same plan under any load. `options`: options of the
    method. The plan is verified.

    Raises UsageError for an unknown method, option, choice or device; InfeasibleError if it is proven that no plan is
    within the latency or memory limit, with the least that is enough; LimitReached if none was found."""
    budget = Budget(time_limit_s, work_limit)
    planner = choose(method, PIPELINERS, CONTRACT, options)
    name, can = planner.name, planner.method
    cluster = fastest_first(cluster, source, sink)  # plans do not depend on the order of devices in a file
    accounting = accounting_of(
        cluster,
        {
            "comm": comm,
            "topology": topology,
            "source": source,
            "sink": sink,
            "window": window,
            "max_latency_s": max_latency_s,
        },
    )
    graph = network if isinstance(network, Graph) else None
    clock = budget.start()
    limit_s = clock.left()
    problem, notes = _problem(network, units, clock, chain=can.chain)
    check_floors(problem, cluster, accounting, graph, clock)
    several = graph is not None and units is None and can.chain == "relays" and accounting.comm == "resources"
    part = clock.within(clock.left() * _FIRST) if several and accounting.topology == "direct" else clock
    search = SearchWithinMemory(problem, graph, cluster, accounting, planner, part.at_least(limit_s * _FIRST))
    begin = time.perf_counter()
    answer, counted = search.best()
    if graph is not None and several and counted.timed.period_s > _floor_s(problem, cluster) * (1 + 1e-9):
        search = replace(search, clock=clock)
        problem, answer, counted, tried = _on_further_chains(search, graph, answer, counted)
        notes += [f"the best of {tried} chains of cuts"] if problem is not search.problem else []
    stopped = [f"stopped at the limit of {budget}"] if answer.stopped else []
    priced, memory = counted.timed, counted.memory
    seconds = time.perf_counter() - begin
    verify_stages_cover(problem, priced.frame.stages)
    floor = min(priced.period_s, total_bound_s(problem, cluster, comm=accounting.comm))
    evidence = _evidence(answer, name, priced, floor, seconds)
    if answer.stopped and not evidence.proven:  # states as the limit counts them
        stopped_by = clock.stopped_by() or ("time" if work_limit is None else "work")
        states = evidence.states if work_limit is None else max(evidence.states, clock.states)
        evidence = replace(evidence, stopped_by=stopped_by, states=states)
    if accounting.topology == "direct" and name != "exact":
        notes.append(f"rows are handed over as method {name} does it: only exact searches plans with direct hand-over")
    note = "; ".join([*notes, *stopped, *([answer.note] if answer.note else [])])
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
        floor_s=floor,
        space=(answer.space or _SPACE) if evidence.bound > floor else "all pipelines",
        note=note,
        stopped=answer.stopped and not evidence.proven,
        frame_bytes=priced.frame.frame_bytes,
        result_bytes=priced.frame.result_bytes,
    )


def _floor_s(problem: PricedChain, cluster: Cluster) -> float:
    return total_bound_s(problem, cluster, comm="resources")


def _on_further_chains(
    first: SearchWithinMemory, graph: Graph, answer: FoundPipeline, counted: PlanMemory
) -> tuple[PricedChain, FoundPipeline, PlanMemory, int]:
    """The best plan of the first chain and of all others that the clock has time for, with its chain, and how many
    chains there were."""
    best, tried = (first.problem, answer, counted), 1
    rows = first.accounting.topology == "direct"
    for problem in further_chains(graph, first.cluster, clock=first.clock, rows=rows):
        if first.clock.late():
            break
        part = first.clock.within(first.clock.left() / max(1, MOST_CHAINS + 1 - tried))
        tried += 1
        result = replace(first, problem=problem, clock=part).at_once()
        if result is not None and result[1].timed.period_s < best[2].timed.period_s * (1 - 1e-9):
            best = (problem, *result)
    return *best, tried


def _evidence(answer: FoundPipeline, name: str, priced: TimedPlan, floor_s: float, seconds: float) -> Evidence:
    period = priced.period_s
    bound = min(period, max(floor_s, answer.bound_s))
    proven = answer.proven or bound >= period * (1 - 1e-12)
    return Evidence(name, period, period if proven else bound, proven, answer.states, seconds)


_FIRST = 0.5
"""The share of the time for plans with direct hand-over on the first chain."""
_MOST_CHAIN_S = 5.0
"""The most seconds for the chain of cuts. They do not grow with the time limit, so that a longer limit searches the
same plans for longer."""


def _check_bytes(problem: SplitProblem) -> None:
    """Raise UsageError for work whose result has no bytes: no strip would count it."""
    for index, op in enumerate(problem.ops):
        if op.macs_per_row and not any(problem.tensors[tensor].row_bytes for tensor in op.outputs):
            raise UsageError(f"operator {index} multiplies, but its results have 0 bytes a row; give row_bytes from 1")


def _problem(
    network: Graph | SplitProblem | PricedChain,
    units: Sequence[Iterable[int]] | None,
    clock: Clock,
    *,
    chain: ChainName,
) -> tuple[PricedChain, list[str]]:
    """The chain of cuts with its prices, and notes. The chain takes at most half of the clock, and at most
    `_MOST_CHAIN_S`."""
    if not isinstance(network, Graph):
        priced = PricedChain(network) if isinstance(network, SplitProblem) else network
        _check_bytes(priced.problem)
        return priced, []
    notes = []
    if not network.ops:
        raise UnsupportedError(f"{network.name}: no operators, nothing to split")
    baseline_cuts = None
    if units is None:
        part = clock.within(min(clock.left() / 2, _MOST_CHAIN_S))
        if chain == "relays":
            blocks_chain = pipeline_chain(network, clock=part)
        else:
            blocks = block_units(network) if chain == "blocks" else pipeline_units(network, clock=part)
            blocks_chain = UnitChain(blocks, tuple(range(len(blocks) + 1)))
        shorter = priced_chain(network, blocks_chain)
        if shorter is not blocks_chain:
            notes.append(
                f"{len(blocks_chain.units):,} units are planned as {len(shorter.units)}, some of them together"
            )
        units, baseline_cuts = shorter.units, shorter.baseline_cuts if chain == "relays" else None
    try:
        problem = split_problem(network, units)
    except UnsupportedError as error:
        notes.append(Message("not split there: ", error.message))
        problem = split_problem(network, units, halos_required=False)
    if all(problem.tensors[tensor].rows <= 1 for op in problem.ops for tensor in op.outputs):
        notes.append(f"{network.name} has no rows to split: only whole operators are divided")
    return PricedChain(replace(problem, baseline_cuts=baseline_cuts)), notes
