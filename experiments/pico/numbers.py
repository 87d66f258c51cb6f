"""The gain of exact planning: periods of PICO's plans and exact ones on the paper's cluster and cost model.

    python -m experiments.pico.numbers [--quick]

Analytic times, not measured ones. The cluster of section 6.1 (2 x 2.2, 2 x 1.5, 2 x 1.2, 2 x 0.8 GHz, 50 Mbit/s) at 1,
2 and 4 MAC a cycle, eight distinct devices, and eight equal ones. The paper prints no periods for these; the goals
next to the ratios are this project's own. `pico` leaves open which device leads a stage (d_f): the one whose strip has
most bytes, which eq. 10 then leaves out, or the first. Among pipelines of average devices with the same period it keeps
the first that its printed loops find; "other ties" takes the number of devices from the most down instead. On the
shared cell, PICO's plan is made as the paper makes it (without the transfers between stages, every link alone) and
evaluated on the cell.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

from downset import load_cluster, plan_pipeline
from downset.clusters.model import Cluster, Device
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import StageDrafts
from downset.pipelines.judging import timed_plan
from downset.pipelines.network import block_units, split_problem
from downset.pipelines.pico import pico
from downset.pipelines.prices import PricedChain
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from zoo import graph

GOALS = {
    ("vgg16", "paper cluster, 1 MAC/cycle"): 1.2,
    ("vgg16", "paper cluster, 2 MAC/cycle"): 1.35,
    ("vgg16", "paper cluster, 4 MAC/cycle"): 1.2,
    ("yolov2", "paper cluster, 1 MAC/cycle"): 1.4,
    ("vgg16", "8 equal devices, 1 MAC/cycle"): 1.0,
}


def networks() -> dict[str, PricedChain]:
    """The chains of the paper: VGG16 without its classifier (18 layers), YOLOv2 without its passthrough (27)."""
    problems = {}
    for name, options in (("vgg16", {"classifier": False}), ("yolov2", {"passthrough": False})):
        network = graph(name, weights=False, **options)
        problems[name] = PricedChain(split_problem(network, block_units(network)))
    return problems


def clusters(*, quick: bool) -> dict[str, Cluster]:
    by_name = {}
    for mac in (1,) if quick else (1, 2, 4):
        by_name[f"paper cluster, {mac} MAC/cycle"] = load_cluster(f"pico_{mac}mac")
    equal = load_cluster("rpi_8")
    distinct = tuple(Device(f"d{k}", (0.8 + 0.2 * k) * 1e9) for k in range(8))
    by_name["8 equal devices, 1 MAC/cycle"] = equal
    by_name["8 distinct devices, 1 MAC/cycle"] = Cluster(distinct, equal.network)
    return by_name


def link_rows(problems: dict[str, PricedChain], *, quick: bool) -> Iterator[Row]:
    for network, problem in problems.items():
        for title, cluster in clusters(quick=quick).items():
            for comm in ("paper", "resources"):
                other = plan_pipeline(problem, cluster, method=partial(pico, leader="first"), comm=comm).period_s
                ties = plan_pipeline(
                    problem, cluster, method=partial(pico, ties="last devices first"), comm=comm
                ).period_s
                best = plan_pipeline(problem, cluster, method="pico", comm=comm)
                begin = time.process_time()
                exact = plan_pipeline(problem, cluster, method="exact", comm=comm)
                took = time.process_time() - begin
                yield {
                    "network": network,
                    "cluster": title,
                    "comm": comm,
                    "pico_s": best.period_s,
                    "pico_first_leads_s": other,
                    "pico_other_ties_s": ties,
                    "exact_s": exact.period_s,
                    "bound_s": exact.evidence.bound,
                    "proven": exact.evidence.proven,
                    "note": exact.note,
                    "cpu_s": round(took, 3),
                    "goal": GOALS.get((network, title)) if comm == "paper" else None,
                }


def priced(problem: PricedChain, cluster: Cluster, stages: StageDrafts) -> float:
    """The period of stages that were planned for another cluster."""
    plan = timed_plan(problem, cluster, stages, Accounting())
    assert plan is not None
    return plan.period_s


def cell_rows(problems: dict[str, PricedChain], *, quick: bool) -> Iterator[Row]:
    for network, problem in problems.items():
        for mac in (2,) if quick else (1, 2, 4):
            links, cell = load_cluster(f"pico_{mac}mac"), load_cluster(f"pico_{mac}mac_cell")
            drafts = [
                pico(problem, links, accounting=Accounting("paper"), **options).stages
                for options in ({}, {"leader": "first"}, {"ties": "last devices first"})
            ]
            periods = [priced(problem, cell, stages) for stages in drafts]
            single = plan_pipeline(problem, cell, method="single").period_s
            begin = time.process_time()
            exact = plan_pipeline(problem, cell)
            yield {
                "network": network,
                "cluster": f"shared cell, {mac} MAC/cycle",
                "comm": "resources",
                "pico_s": periods[0],
                "pico_first_leads_s": periods[1],
                "pico_other_ties_s": periods[2],
                "single_s": single,
                "exact_s": exact.period_s,
                "bound_s": exact.evidence.bound,
                "proven": exact.evidence.proven,
                "note": exact.note,
                "cpu_s": round(time.process_time() - begin, 3),
                "goal": 2.0,
            }


def rows(options: Namespace) -> Iterator[Row]:
    problems = networks()
    yield from link_rows(problems, quick=options.quick)
    yield from cell_rows(problems, quick=options.quick)


def over_exact(period: str) -> Callable[[Row], str]:
    return lambda row: f"{row[period] / row['exact_s']:.2f}"


PERIODS = {"pico": "pico_s", "first leads": "pico_first_leads_s", "other ties": "pico_other_ties_s"}
EXPERIMENT = Experiment(
    "pico_numbers",
    rows,
    (
        *fields("network", "cluster", "comm"),
        *((f"{title} s", f"{{{period}:.3f}}") for title, period in PERIODS.items()),
        *fields("single_s", "exact_s", spec=".3f"),
        ("proof", lambda row: "proven" if row["proven"] else f"bound {row['bound_s']:.3f}"),
        *((f"{title} / exact", over_exact(period)) for title, period in PERIODS.items()),
        ("goal", lambda row: f">= {row['goal']:g}" if row["goal"] else None),
        ("CPU s", "{cpu_s}"),
    ),
    key=("network", "cluster", "comm"),
    quick="fewer clusters, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
