"""Figure 6: the schedules side by side, throughput normalised to the best of each network.

    python -m experiments.ios.fig6 [--quick]

Simulated device here, schedules by the whole dynamic programming at r = 3 and s = 8; the measured figure is
`python -m experiments.ios.cpu` (and `gpu` where there is one). Of Figure 6 (V100, batch 1) the paper's text has
orderings only: IOS-Both is the fastest on every network, greedy degrades SqueezeNet. Its 1.1x to 1.5x over sequential
are of Figure 14, the same on an RTX 2080Ti.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence

from downset.stages.greedy import greedy
from downset.tuning.timer import block_problem, renamed
from experiments.frame import Experiment, run
from experiments.ios.against import BOTH_OVER_SEQUENTIAL, RTX_2080TI, SPEEDUPS, against, agreement
from experiments.ios.networks import NETWORKS
from experiments.ios.search import Priced, full, sequential
from experiments.rows import Row

EQUAL = 1e-4
"""Costs are rounded to the nanosecond stage by stage: equal schedules differ by less than this share."""
MEASURED = {
    "sequential": ("sequential",),
    "greedy": ("greedy",),
    "merge": ("merge",),
    "parallel": ("parallel, barriers", "parallel"),
    "both": ("both, barriers", "both"),
}
"""The paper's schedules among ours: with its barriers where the same was timed with and without."""
METHODS = {
    "sequential": "sequential",
    "greedy": "greedy",
    "merge": "IOS-Merge",
    "parallel": "IOS-Parallel",
    "both": "IOS-Both",
}
APPENDIX_C = SPEEDUPS.figure(of="Appendix C, Inception V3")
Statement = tuple[str, bool | None]


def statements(name: str, costs: Mapping[str, float]) -> list[Statement]:
    """Statements of the paper's text about Figure 6 for this network, and whether these costs agree; None where a
    schedule that the statement is about is not among them."""

    def holds(wanted: Sequence[str], told: Callable[..., bool]) -> bool | None:
        return told(*(costs[method] for method in wanted)) if all(method in costs for method in wanted) else None

    pairs: list[Statement] = [
        (
            "IOS-Both is the fastest of the five schedules, or as fast",
            holds(
                ("both", "sequential", "greedy", "merge", "parallel"),
                lambda both, *others: both <= min(others) * (1 + EQUAL),
            ),
        )
    ]
    if name == "squeezenet":
        pairs.append(
            ("greedy is slower than sequential", holds(("greedy", "sequential"), lambda greedy, alone: greedy > alone))
        )
    if name in ("randwire_large", "nasnet_large"):
        pairs += [
            ("greedy does well (faster than sequential)", holds(("greedy", "sequential"), lambda g, alone: g < alone)),
            ("IOS-Merge is sequential", holds(("merge", "sequential"), _equal)),
            ("IOS-Both is IOS-Parallel", holds(("both", "parallel"), _equal)),
        ]
    return pairs


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= EQUAL * other


def beside_paper(row: Row, gain: float, how: str) -> Iterator[str]:
    """The paper's figures and orderings next to measured candidates, at batch 1. `gain`: chosen over sequential."""
    name = row["network"]
    if name not in NETWORKS or row["batch"] != 1:
        return
    seconds = {candidate["name"]: candidate["p50_s"] for candidate in row["candidates"]}
    medians = {
        method: next(seconds[ours] for ours in names if ours in seconds)
        for method, names in MEASURED.items()
        if any(ours in seconds for ours in names)
    }
    yield "  " + against("Figure 6, chosen over sequential", None, gain, how)
    yield "  " + against("Figure 14, the same", BOTH_OVER_SEQUENTIAL, gain, how, where=RTX_2080TI)
    if name == "inception_v3":
        yield "  " + against("Appendix C, the same", APPENDIX_C, gain, how)
    yield from ("  " + agreement(statement, ours, how) for statement, ours in statements(name, medians))


def candidates(row: Row) -> Iterator[str]:
    """Lines of the timed schedules: percentiles, speed-up over sequential, throughput over the best (Figure 6)."""
    medians = {candidate["name"]: candidate["p50_s"] for candidate in row["candidates"]}
    yield f"  {'schedule':30}      p10      p50      p90 ms   speed-up  of the best (Figure 6)  stages"
    for one in row["candidates"]:
        speed_up, of_best = (other / one["p50_s"] for other in (medians["sequential"], min(medians.values())))
        taken = " ".join(f"{one[key] * 1e3:8.3f}" for key in ("p10_s", "p50_s", "p90_s"))
        chosen = " <- chosen" if one["name"] == row["chosen"] else ""
        yield f"  {one['name']:30} {taken}    {speed_up:5.2f}x     {of_best:.2f}  {one['stages']:4}{chosen}"


def cost_of(name: str, method: str) -> float:
    if method == "sequential":
        return sequential(name)
    return greedy_of(name)[0] if method == "greedy" else full(name, 3, 8, method)[0]


def greedy_of(name: str) -> tuple[float, int]:
    """(cost of the greedy schedule, its stages of several groups)."""
    priced = Priced(name)
    total, joins = 0.0, 0
    for block in priced.blocks:
        problem = block_problem(priced.units, priced.families, block)
        schedule = greedy(problem, lambda stage, block=block: priced(renamed([stage], block)[0]))
        total += schedule.cost_s
        joins += sum(len(stage.groups) > 1 for stage in schedule.stages)
    return total, joins


def rows(options: Namespace) -> Iterator[Row]:
    for name in ("inception_v3", "squeezenet") if options.quick else NETWORKS:
        simulated_s = {method: cost_of(name, method) for method in METHODS}
        yield {
            "network": name,
            "simulated_s": simulated_s,
            "greedy_joins": (joins := greedy_of(name)[1]),
            "break_even_us": 1e6 * (simulated_s["sequential"] - simulated_s["greedy"]) / joins,
        }


def of_the_best(method: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        costs = row["simulated_s"]
        return f"{min(costs.values()) / costs[method]:.2f} ({costs[method] * 1e3:.3f})"

    return cell


def gain_of(row: Row) -> float:
    return float(row["simulated_s"]["sequential"] / row["simulated_s"]["both"])


def said(rows: Sequence[Row]) -> None:
    print("\nSimulated device: throughput over the best (latency in ms).")
    for row in rows:
        title, gain = NETWORKS[row["network"]], gain_of(row)
        print(against(f"Figure 6, {title}, both over sequential", None, gain, "simulated"))
        print(against(f"Figure 14, {title}, the same", BOTH_OVER_SEQUENTIAL, gain, "simulated V100", where=RTX_2080TI))
        if row["network"] == "inception_v3":
            print(against(f"Appendix C, {title}, end to end", APPENDIX_C, gain, "simulated"))
        print(
            f"{title}: greedy has {row['greedy_joins']} stages of several groups; it is slower than sequential where "
            f"one synchronisation takes {row['break_even_us']:.1f} us more than the 2 us of the simulated device"
        )
        for statement, ours in statements(row["network"], row["simulated_s"]):
            print(f"{title}, " + agreement(statement, ours, "simulated"))


EXPERIMENT = Experiment(
    "ios_fig6",
    rows,
    (
        ("network", lambda row: NETWORKS[row["network"]]),
        *((title, of_the_best(method)) for method, title in METHODS.items()),
        ("both over sequential", lambda row: f"{gain_of(row):.2f}x"),
    ),
    quick="SqueezeNet and Inception; nothing is written",
    after=said,
)

if __name__ == "__main__":
    run(EXPERIMENT)
