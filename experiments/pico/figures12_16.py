"""PICO's Figures 12 to 16: speed-up, period, throughput, memory and energy over devices, frequencies and methods.

    python -m experiments.pico.figures12_16 [--quick]

Analytic, by the paper's equations (`paper`) and by what devices can keep (`resources`), on 2 to 8 equal Raspberry Pis
at 0.6, 0.8 and 1 GHz, one MAC a cycle. For Figure 12 the paper's text has ratios, which stand beside ours; for the
others it says only how methods compare, and a table says in how many comparisons that holds here. `latency_ms`: periods
where every message takes that much besides its bytes, with eight devices at 1 GHz. Energy (Figure 16) is simulated on
the heterogeneous cluster with the powers in its file, which are not the paper's. Memory (Figure 15) is weights and the
arena of activations, by resources of buffers too, without a runtime. `exact` is ours and not in the paper.

Figure 12 compared with the paper: by its equations pipelines of one device a stage move nothing, so that the speed-up
is all MACs over those of the largest stage at any frequency. ResNet34's blocks have 231 MMAC each and the first layer
118: two blocks and the first layer in one of eight stages make 3664 / 580 = 6.31. Algorithm 1's pieces, as we read it,
end with one of 463 MMAC that the DP joins with 116 more: 3664 / 579 = 6.33; on finer cuts `exact` reaches 6.96, so that
the printed 6.8 needs a piece divided that ours keep whole. The printed 5 (blocks) is what hand-overs between stages
leave: by resources 5.5. Inception V3's blocks have at most 697 MMAC and come to 6.3 and 5.6, not the printed 4: a
coarser division than one unit a module would give that, but the paper does not say which blocks it takes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

from downset import Graph, load_cluster, plan_pipeline, simulate
from downset.pipelines.accounting import COMM, CommName
from downset.pipelines.network import block_units, pipeline_chain, pipeline_units, split_problem
from downset.pipelines.prices import PricedChain
from experiments.frame import Experiment, fields, names_of, printed, run, show_table
from experiments.pico.setups import equal_cluster, network
from experiments.rows import Row

METHODS = ("layerwise", "early_fused", "optimal_fused", "coedge", "pico", "exact")
BASELINES = METHODS[:4]
PAPER = printed("pico_figure12")
STATEMENTS = printed("pico_figures13_16")
SENT_MS = (None, 2.0, 10.0)
MODEL_LIMIT_S = 60.0


def speedups(comm: CommName, *, quick: bool) -> list[dict[str, Any]]:
    """Figure 12: against one device of the cluster; each method on its own chain (blocks, pieces, refined cuts)."""
    rows = []
    for name in ("resnet34",) if quick else ("resnet34", "inception_v3"):
        model = network(name)
        problem = PricedChain(split_problem(model, pipeline_units(model)))
        chains = {
            "blocks": PricedChain(split_problem(model, block_units(model))),
            "pico": problem,
            "exact": PricedChain(split_problem(model, pipeline_chain(model).units)),
        }
        for ghz in (0.6,) if quick else (0.6, 0.8, 1.0):
            for count in (8,) if quick else (2, 4, 6, 8):
                cluster = equal_cluster(count, ghz)
                one = _plan(problem, cluster, "single", comm).period_s
                row: dict[str, Any] = {"figure": 12, "comm": comm, "network": name, "ghz": ghz, "devices": count}
                for method in ("blocks", "pico", "exact"):
                    row[method] = round(one / _plan(chains[method], cluster, method, comm).period_s, 3)
                    row[f"paper_{method}"] = (
                        PAPER.figure(network=name, method=method) if count == 8 and ghz == 0.6 else None
                    )
                rows.append(row)
    return rows


def periods(comm: CommName, *, quick: bool) -> list[dict[str, Any]]:
    """Figures 13 and 14: period by method; throughput a minute with eight devices."""
    points: list[tuple[float, int, float | None]] = [(1.0, 8, None)]
    if not quick:
        points = [(ghz, count, None) for ghz in (0.6, 0.8, 1.0) for count in (2, 4, 6, 8)]
        points += [(1.0, 8, latency_ms) for latency_ms in SENT_MS[1:]]
    rows = []
    for figure, name in ((13, "vgg16"), (14, "yolov2")):
        model = network(name)
        problem = PricedChain(split_problem(model, block_units(model)))
        for ghz, count, latency_ms in points:
            cluster = equal_cluster(count, ghz)
            cluster = replace(cluster, network=replace(cluster.network, latency_s=(latency_ms or 0.0) / 1000))
            row: dict[str, Any] = {
                "figure": figure,
                "comm": comm,
                "network": name,
                "ghz": ghz,
                "devices": count,
                "latency_ms": latency_ms,
            }
            for method in METHODS:
                row[method] = round(_plan(problem, cluster, method, comm).period_s, 4)
            rows.append(row)
    return rows


def memory(comm: CommName, *, quick: bool) -> list[dict[str, Any]]:
    """Figure 15: average over the devices in use, weights and activations apart."""
    rows: list[dict[str, Any]] = []
    for name in ("vgg16",) if quick else ("vgg16", "yolov2"):
        model = network(name)
        problem = PricedChain(split_problem(model, block_units(model)))
        for count in (4,) if quick else (2, 4, 6, 8):
            for method in ("layerwise", "early_fused", "optimal_fused", "pico", "exact"):
                row = {"figure": 15, "comm": comm, "network": name, "devices": count, "method": method}
                row.update(_memory(model, problem, count, method, comm))
                rows.append(row)
    return rows


def _memory(model: Graph, problem: PricedChain, count: int, method: str, comm: CommName) -> dict[str, float]:
    plan = plan_pipeline(model, equal_cluster(count, 1.0), method=method, comm=comm, units=problem.units)
    users = len(plan.memory)
    total = sum(held.total_bytes for held in plan.memory)
    weights = sum(held.weights_bytes for held in plan.memory)
    return {"weights_mb": round(weights / users / 1e6, 2), "features_mb": round((total - weights) / users / 1e6, 2)}


def energy(comm: CommName, *, quick: bool) -> list[dict[str, Any]]:
    """Figure 16: joules a frame on the heterogeneous cluster, simulated."""
    rows = []
    links = load_cluster("pico_1mac")
    for name, latency_ms in product(("vgg16",) if quick else ("vgg16", "yolov2"), (None,) if quick else SENT_MS):
        model = network(name)
        problem = PricedChain(split_problem(model, block_units(model)))
        cluster = replace(links, network=replace(links.network, latency_s=(latency_ms or 0.0) / 1000))
        row: dict[str, Any] = {"figure": 16, "comm": comm, "network": name, "latency_ms": latency_ms}
        for method in ("early_fused", "optimal_fused", "coedge", "pico", "exact"):
            row[method] = round(simulate(_plan(problem, cluster, method, comm), frames=100).energy_j or 0.0, 1)
        rows.append(row)
    return rows


def _plan(problem: PricedChain, cluster: Any, method: str, comm: CommName) -> Any:
    return plan_pipeline(problem, cluster, method=method, comm=comm, time_limit_s=MODEL_LIMIT_S)


FIGURES = {"12": speedups, "13": periods, "15": memory, "16": energy}
KEY = ("figure", "comm", "network", "ghz", "devices", "latency_ms", "method")


def rows(options: Namespace) -> Iterator[Row]:
    for number, make in FIGURES.items():
        for comm in options.comm if number in options.figures else ():
            yield from make(comm, quick=options.quick)


def results(row: Row) -> str:
    """The figures of a row, and the paper's with ours over them."""
    said = [f"{name} {value}" for name, value in row.items() if name not in KEY and not name.startswith("paper_")]
    papers = {name: value for name, value in row.items() if name.startswith("paper_") and value}
    beside = [f"{name} {value} (ours {row[name[6:]] / value:.2f}x)" for name, value in papers.items()]
    return "; ".join(said + beside)


def holds(name: str, rows: Iterable[Row]) -> list[bool]:
    """Whether a statement of the paper holds, comparison by comparison, in rows of one model of time."""
    rows = [row for row in rows if row.get("latency_ms") is None]
    periods = [row for row in rows if row["figure"] in (13, 14)]
    sizes = {
        (row["network"], row["method"], row["devices"]): (row["weights_mb"], row["weights_mb"] + row["features_mb"])
        for row in rows
        if row["figure"] == 15 and row["method"] != "exact"
    }
    energies = [row for row in rows if row["figure"] == 16]
    if name == "pico first":
        return [row["pico"] <= min(row[method] for method in BASELINES) for row in periods]
    if name == "coedge before layerwise":
        return [row["coedge"] < row["layerwise"] for row in periods]
    if name == "optimal before early":
        return [row["optimal_fused"] < row["early_fused"] for row in periods]
    if name == "more devices, more throughput":
        ordered = sorted(periods, key=lambda row: (row["network"], row["ghz"], row["devices"]))
        return [
            (more[method] < fewer[method])
            != (method == "layerwise" and more["network"] == "yolov2" and more["ghz"] == 1)
            for fewer, more in pairwise(ordered)
            if fewer["devices"] < more["devices"]
            for method in (*BASELINES, "pico")
        ]
    if name == "more devices, less memory":
        ordered_sizes = sorted(sizes.items())
        return [
            more[1] < fewer[1] for (key, fewer), (next_key, more) in pairwise(ordered_sizes) if key[:2] == next_key[:2]
        ]
    if name == "whole model on every device":
        whole = {network: max(size[0] for key, size in sizes.items() if key[0] == network) for network, _, _ in sizes}
        return [size[0] == whole[key[0]] for key, size in sizes.items() if key[1] != "pico"]
    if name == "pico least memory":
        return [
            sizes[network, "pico", devices][1] < size[1]
            for (network, method, devices), size in sizes.items()
            if method != "pico"
        ]
    if name == "early most energy":
        return [row["early_fused"] == max(row[method] for method in BASELINES[1:]) for row in energies]
    if name == "optimal below early":
        return [row["optimal_fused"] < row["early_fused"] for row in energies]
    return [row["pico"] < row["coedge"] for row in energies]


def share(name: str, comm: CommName, rows: Iterable[Row]) -> str | None:
    """How many comparisons of a statement hold, of how many; None where there are none."""
    verdicts = holds(name, (row for row in rows if row["comm"] == comm))
    return f"{sum(verdicts)} of {len(verdicts)}" if verdicts else None


def throughput(rows: Sequence[Row]) -> None:
    print("""
Figure 12: speed-up over one device (paper: up to 6.8 and 6.5 with pieces, 5 and 4 with blocks)
Figures 13 and 14: period in s; Figure 15: memory of a device in MB; Figure 16: energy in J a frame, simulated""")
    show_table(
        (
            *fields("figure", "says"),
            ("by the equations", lambda row: share(row["name"], "paper", rows)),
            ("by resources", lambda row: share(row["name"], "resources", rows)),
        ),
        STATEMENTS.rows,
        "What the paper says, and of how many comparisons of ours it holds (`exact` is not in the paper)",
    )
    for comm in COMM:
        best = [
            row["layerwise"] / row["pico"]
            for row in rows
            if "layerwise" in row and row["comm"] == comm and row.get("latency_ms") is None
        ]
        if best:
            said = f"Throughput of pico over layerwise, {comm}: {min(best):.1f} to {max(best):.1f}x"
            print(f"{said}; the abstract: 1.8 to 6.8x")


EXPERIMENT = Experiment(
    "pico_figures12_16",
    rows,
    (*fields(*KEY), ("results", results)),
    key=KEY,
    quick="a few points, nothing written",
    options={
        "--comm": {"type": names_of(COMM), "default": COMM, "help": "models of time"},
        "--figures": {"type": names_of(FIGURES), "default": list(FIGURES), "help": "13 is 13 and 14"},
    },
    after=throughput,
)

if __name__ == "__main__":
    run(EXPERIMENT)
