"""Bytes moved and accessed in slow memory by plans of the nine cells of SERENITY, for four sizes of fast memory.

    python -m experiments.memories [--quick]

`file`: the file's order with exact residency; `least peak`: an order of least peak with exact residency; `belady`: the
file's order under Belady's rule. `ours`: order and residency planned together, before offsets; `placed`: the same with
offsets in fast memory. `bound`: no order costs less. `gap`: how far `ours` may be from the least. Conventions:
experiments/memories/cells.py.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence

from experiments.frame import Experiment, fields, run, show_table
from experiments.memories.cells import QUICK_STATES, SIZES_BYTES, STATES, cells, plan_of
from experiments.rows import Row

COLUMNS = ("file", "least_peak", "belady", "ours", "placed", "bound")


def rows(options: Namespace) -> Iterator[Row]:
    states = QUICK_STATES if options.quick else STATES
    for name in cells():
        for size in SIZES_BYTES:
            plan = plan_of(name, size, "joint", states)
            others = {
                column: int(plan_of(name, size, method, QUICK_STATES).cost_without_offsets)
                for column, method in (("file", "file_order"), ("least_peak", "least_peak"), ("belady", "belady"))
            }
            yield {
                "cell": name,
                "fast": size,
                **others,
                "ours": int(plan.cost_without_offsets),
                "placed": int(plan.evidence.value),
                "moved": plan.moved_bytes,
                "direct": plan.direct_bytes,
                "bound": int(plan.evidence.bound),
                "proven": plan.evidence.proven,
                "states": states,
            }


def sums(table: Sequence[Row]) -> None:
    lines: list[Row] = []
    for size in SIZES_BYTES:
        cut = [row for row in table if row["fast"] == size]
        total = {column: sum(row[column] for row in cut) for column in COLUMNS}
        gap = 100 * (total["ours"] / total["bound"] - 1) if total["bound"] else 0.0
        offsets = 100 * (total["placed"] / total["ours"] - 1) if total["ours"] else 0.0
        proven = sum(row["proven"] for row in cut)
        lines.append({"fast": size, **total, "gap": gap, "offsets": offsets, "proven": proven, "cells": len(cut)})
    columns = (FAST, *fields(*COLUMNS, spec=","), GAP, ("offsets cost", "{offsets:.1f} %"), *fields("proven", "cells"))
    show_table(columns, lines)


FAST = ("fast memory", lambda row: f"{row['fast'] // 1024} KB")
GAP = ("gap", "{gap:.1f} %")
EXPERIMENT = Experiment(
    "memories",
    rows,
    (*fields("cell"), FAST, *fields(*COLUMNS, spec=","), *fields("moved", "direct", spec=","), *fields("proven")),
    key=("cell", "fast"),
    quick="a fifteenth of the work, nothing written",
    after=sums,
)

if __name__ == "__main__":
    run(EXPERIMENT)
