"""How fast the least peak is found and proven, compared with the heuristics, in one run on one core.

    python -m experiments.speed.order [--quick] [--only files|steps|random]

Graphs come from ../shared/data/orders where it exists; `step_…` are whole training steps (experiments.speed.steps), and
random ones are made here from seeds. Rows of absent graphs are printed from the committed table, marked `recorded`. CPU
seconds; each proof is the median of five runs where it is short. Limits are 10 s of the wall clock, and 60 s for
`optimal`, which takes less than 10 CPU s of them: what it leaves open does not depend on what else runs.
`inductor` is the best of the file's order and PyTorch inductor's three heuristics, `beam` the best of widths 4, 32 and
300, from both ends; SERENITY is the paper's algorithm in Python, not its authors' code.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from downset import OrderProblem, Storage, load, order_problem, peak_bytes
from downset.orders.planners import ORDERS
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.speed.steps import load_steps

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "orders"


def random_problem(operators: int, window: int, seed: int) -> OrderProblem:
    """Every operator makes a tensor of 1 to 100 bytes and reads one to three of the `window` made before it."""
    generator = random.Random(f"{operators}/{window}/{seed}")
    readers: list[list[int]] = [[] for _ in range(operators)]
    predecessors: list[tuple[int, ...]] = [()] * operators
    for operator in range(1, operators):
        earlier = range(max(0, operator - window), operator)
        predecessors[operator] = tuple(sorted(generator.sample(earlier, min(len(earlier), generator.randint(1, 3)))))
        for source in predecessors[operator]:
            readers[source].append(operator)
    storages = tuple(
        Storage(generator.randint(1, 100), (v,), tuple(readers[v]) or (v,), kept=not readers[v])
        for v in range(operators)
    )
    return OrderProblem(tuple(predecessors), storages)


def row_of(name: str, problem: OrderProblem, time_limit_s: float) -> Row:
    count = len(problem.predecessors)
    row: Row = {"graph": name, "operators": count, "file": peak_bytes(problem, range(count))}
    for heuristic in ("kahn", "dfs", "greedy", "inductor", "liu", "beam"):
        method = ORDERS[heuristic]
        row[heuristic] = peak_bytes(problem, method(problem, **method.taken(time_limit_s=time_limit_s)).solution)
    begin = time.process_time()
    paper = ORDERS["serenity"](problem, time_limit_s=time_limit_s)
    row.update(serenity=peak_bytes(problem, paper.solution), serenity_proven=paper.proven)
    row["serenity_cpu_s"] = round(time.process_time() - begin, 4)
    runs = []
    for _ in range(5):
        begin = time.process_time()
        result = ORDERS["optimal"](problem, time_limit_s=6 * time_limit_s)
        runs.append(time.process_time() - begin)
        if runs[0] > 1.0:
            break
    value = peak_bytes(problem, result.solution)
    row.update(optimal=value, bound=result.bound, proven=result.proven, states=result.states)
    row.update(gap=round((value - result.bound) / max(result.bound, 1), 5), cpu_s=round(statistics.median(runs), 4))
    return row


def instances(*, quick: bool, only: str | None = None) -> list[tuple[str, OrderProblem]]:
    problems: list[tuple[str, OrderProblem]] = []
    if only in (None, "files") and SHARED.is_dir():
        problems += [(path.stem, order_problem(load(path), "live")) for path in sorted(SHARED.glob("*.json"))]
    if only in (None, "steps"):
        problems += load_steps()
    if only not in (None, "random"):
        return problems
    sizes = [(100, 30), (200, 12), (200, 30), (500, 12), (500, 30)]
    for operators, window in sizes[: 1 if quick else None]:
        seeds = range(1 if quick else 4)
        problems += [(f"random_{operators}_{window}_{seed}", random_problem(operators, window, seed)) for seed in seeds]
    if not quick:
        problems.append(("random_5000_30_0", random_problem(5000, 30, 0)))
    return problems


def rows(options: Namespace) -> Iterator[Row]:
    for name, problem in instances(quick=options.quick, only=options.only):
        yield row_of(name, problem, 2.0 if options.quick else 10.0)


def paper(row: Row) -> str:
    """SERENITY's own algorithm in the same run: its peak, and how long it took or that it ran out of time."""
    took = f"{1000 * row['serenity_cpu_s']:,.1f} ms" if row["serenity_proven"] else "not finished"
    return f"{row['serenity']:,} ({took})"


def proof(row: Row) -> str:
    return "proven" if row["proven"] else f"bound {row['bound']:,} (gap {row['gap']:.2%})"


def totals(rows: Sequence[Row]) -> None:
    gaps = sorted(row["gap"] for row in rows if row["graph"].startswith("random_"))
    if gaps:
        print(f"random graphs: {len(gaps)}, median gap {statistics.median(gaps):.2%}, worst {gaps[-1]:.2%}")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


EXPERIMENT = Experiment(
    "speed_order",
    rows,
    (
        *fields("graph", "operators"),
        *fields("file", "kahn", "dfs", "greedy", "inductor", "liu", "beam", spec=","),
        ("SERENITY", paper),
        *fields("optimal", spec=","),
        ("proof", proof),
        *fields("states", spec=","),
        ("CPU ms", "{cpu_s!m:,.1f}"),
    ),
    key=("graph",),
    quick="the short ones, nothing written",
    options={"--only": {"choices": ("files", "steps", "random"), "help": "one kind of graph"}},
    after=totals,
)

if __name__ == "__main__":
    run(EXPERIMENT)
