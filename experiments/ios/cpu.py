"""The networks on this machine's CPU: every schedule against sequential execution of the same kernels (goal: >= 0.98x),
and with it Figure 6, the schedules side by side, and the paper's ResNet-50 (2-5 %).

    python -m experiments.ios.cpu [--quick] [--networks A,B] [--threads N]

Measured: interleaved rounds, medians. The goal is judged by a fresh run after the choice: the chosen plan and
sequential as two engines in rounds that take turns; where sequential was chosen, it runs against itself. Whether there
was anything to win is asked of greedy and of the best other schedule in the same way, in more rounds: `duels`, with a
confidence interval of 95 % for the median ratio, from order statistics, so of no assumed distribution. The paper's
Figure 6 is of a V100, and its text has orderings only; IOS-Both's 1.1x to 1.5x over sequential are of an RTX 2080Ti
(Figure 14).
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import comb
from statistics import median
from typing import Any

from downset import Graph, Stage, StageLimits, StagePlan, StageResult, TorchDevice, open_device, tune_stages
from downset.executor.arena import seeded_inputs
from downset.executor.stage_engine import stage_engine
from downset.stages.prepared import planned_graph, prepare
from downset.stages.unit_graph import group_units
from experiments.frame import Experiment, run
from experiments.ios.against import SPEEDUPS, against
from experiments.ios.fig6 import beside_paper, candidates
from experiments.rows import Row
from zoo import graph as zoo_graph

ALL = ("squeezenet", "inception_v3", "randwire_large", "nasnet_large", "resnet50")
GOAL = 0.98
ROUNDS = 21


def sequential_plan(graph: Graph, plan: StagePlan) -> StagePlan:
    """The same kernels one after another, on the device that this plan is for."""
    units = group_units(graph).units
    alone = tuple(Stage(((unit,),)) for unit in range(len(units)))
    return replace(plan, units=units, stages=alone, barriers=False, variant="")


def judged(graph: Graph, plan: StagePlan, device: TorchDevice, rounds: int) -> dict[str, Any]:
    """The chosen plan against sequential afresh."""
    samples = taking_turns(graph, (sequential_plan(graph, plan), plan), device, rounds)
    return judgement(*samples, itself=plan.evidence.method == "sequential")


def taking_turns(
    graph: Graph, plans: tuple[StagePlan, StagePlan], device: TorchDevice, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of each round: two engines that take turns to be first."""
    values = seeded_inputs(graph)
    engines = [stage_engine(graph, one, device, values) for one in plans]
    samples: tuple[list[float], list[float]] = ([], [])
    try:
        for turn in range(-2, rounds):
            for which in (0, 1) if turn % 2 else (1, 0):
                (taken,) = engines[which].time(1)
                if turn >= 0:
                    samples[which].append(taken)
    finally:
        for engine in engines:
            engine.close()
    return samples


def duels(graph: Graph, result: StageResult, device: TorchDevice, rounds: int) -> list[dict[str, Any]]:
    """Greedy, and the best other schedule, against sequential in fresh rounds: the median ratio with its interval."""
    others = [candidate for candidate in result.candidates if candidate.name != "sequential"]
    best = min(others, key=lambda candidate: candidate.percentile(0.5), default=None)
    results = []
    for candidate in others:
        if candidate is not best and candidate.name != "greedy":
            continue
        plan = replace(result.plan, stages=candidate.stages, barriers=candidate.barriers, variant=candidate.variant)
        plan = replace(plan, units=group_units(planned_graph(graph, plan)).units)
        one, other = taking_turns(graph, (sequential_plan(graph, result.plan), plan), device, rounds)
        ratios = sorted(before / after for before, after in zip(one, other, strict=True))
        low, high = median_interval(ratios)
        results.append(
            {
                "name": candidate.name,
                "ratio": median(ratios),
                "low": low,
                "high": high,
                "rounds": len(ratios),
                "faster_rounds": sum(ratio > 1.0 for ratio in ratios),
            }
        )
    return results


def median_interval(ordered: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Two of the ascending values, as close as can be, that hold the median between them with at least this confidence;
    the first and the last where there are too few for that."""
    count = len(ordered)
    outside, rank = 0.0, 0  # the chance that fewer than `rank` of the values lie below the median
    while rank < (count - 1) // 2:
        outside += comb(count, rank) / 2**count
        if 2 * outside > 1 - confidence:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[count - 1 - rank]


def verdict(duel: Mapping[str, Any]) -> str:
    """The verdict that the interval allows, in words."""
    if duel["low"] > 1.0:
        return "faster"
    return "slower" if duel["high"] < 1.0 else "not told apart"


def judgement(sequential_s: Sequence[float], chosen_s: Sequence[float], *, itself: bool) -> dict[str, Any]:
    """`ratio`: the median over rounds of sequential by chosen: what the goal is judged by, and can miss. Where
    sequential itself runs there is nothing to miss: the ratio is then the noise of the machine."""
    ratios = [before / after for before, after in zip(sequential_s, chosen_s, strict=True)]
    ratio = median(ratios)
    return {
        "ratio": ratio,
        "met": itself or ratio >= GOAL,
        "rounds": len(ratios),
        "faster_rounds": sum(one > 1.0 for one in ratios),
        "sequential_p50_s": median(sequential_s),
        "chosen_p50_s": median(chosen_s),
        "against_itself": itself,
    }


def goal_line(row: Row) -> str:
    judgement = row.get("judged")
    if judgement is None:
        return f"goal {GOAL}x: not judged in this row"
    verdict = "met" if judgement["met"] else "missed"
    said = f"afresh {judgement['ratio']:.3f}x in the median of {judgement['rounds']} rounds"
    if judgement["against_itself"]:
        return f"goal {GOAL}x met: sequential is what runs; against itself {said}, which is the machine's noise"
    return f"goal {GOAL}x {verdict}: {row['chosen']} against sequential {said}"


def row_of(name: str, threads: int | None, *, rounds: int, timings: int) -> Row:
    device = open_device("cpu", threads=threads)
    graph = prepare(zoo_graph(name))
    begin = time.perf_counter()
    result = tune_stages(graph, device, limits=StageLimits(timings=timings), runs=rounds)
    searched_s = time.perf_counter() - begin
    return {
        "network": name,
        "device": device.name,
        "versions": device.versions,
        "batch": 1,
        "chosen": result.plan.evidence.method,
        "speedup": result.speedup,
        "why": result.why,
        "timings_used": result.timings_used,
        "bound_s": result.bound_s,
        "search_s": searched_s,
        "judged": judged(graph, result.plan, device, rounds),
        "duels": duels(graph, result, device, 2 * rounds - 1),
        "load": os.getloadavg()[0],
        "candidates": [
            {
                "name": c.name,
                "p10_s": c.percentile(0.1),
                "p50_s": c.percentile(0.5),
                "p90_s": c.percentile(0.9),
                "stages": len(c.stages),
            }
            for c in result.candidates
        ],
    }


def rows(options: Namespace) -> Iterator[Row]:
    rounds, timings = (5, 60) if options.quick else (ROUNDS, 200)
    for name in ["squeezenet"] if options.quick else options.networks.split(","):
        yield row_of(name, options.threads, rounds=rounds, timings=timings)


def lines(row: Row, mark: str) -> Iterator[str]:
    timed = f"{row['timings_used']} stages timed in {row['search_s']:.0f} s"
    yield f"\n{row['network']} on {row['device']}{mark}: {timed}"
    yield from candidates(row)
    yield f"  chosen {row['chosen']}: {row['why']}"
    yield f"  {goal_line(row)}"
    for duel in row.get("duels", ()):
        yield (
            f"  {duel['name']} against sequential: {verdict(duel)}, {duel['ratio']:.3f}x in the median of "
            f"{duel['rounds']} rounds, 95 % interval {duel['low']:.3f} to {duel['high']:.3f}, faster in "
            f"{duel['faster_rounds']} (load of the machine {row['load']:.1f})"
        )
    judgement = row.get("judged")
    gain = judgement["ratio"] if judgement and not judgement["against_itself"] else row["speedup"]
    if row["network"] == "resnet50":
        paper = SPEEDUPS.figure(of="ResNet-50")
        yield "  " + against("ResNet-50, chosen over sequential", paper, gain, "measured, CPU")
    yield from beside_paper(row, gain, "measured, CPU")


EXPERIMENT = Experiment(
    "ios_cpu",
    rows,
    key=("network", "device", "batch"),
    quick="SqueezeNet, few rounds; the committed table is left alone",
    options={"--networks": {"default": ",".join(ALL)}, "--threads": {"type": int}},
    lines=lines,
)

if __name__ == "__main__":
    run(EXPERIMENT)
