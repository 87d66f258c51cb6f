"""Figure 12: memory while SwiftNet's cell A runs, with and without the allocator: paper | ours | ratio.

    python -m experiments.serenity.figure12 [--quick]

Draws experiments/results/serenity_figure12.svg. Memory model `serenity` (zero-copy concatenations, partial sums in
place) but for TFLite's own line with the allocator, which is `live`: TFLite copies. The allocator is TFLite's of 2020:
tensors as they are produced, each into the smallest gap, rounded up to 64 bytes. Orders of equal peak need different
arenas: `of equal peak` gives the range over others found by a seeded walk, and how many give the paper's figure to the
0.1 KB. The paper's 551.0 KB does not fit this cell, whose
tensors have multiples of 12,544 bytes: 44 of them are 551.9 KB, the arena of the whole network in the file's order.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence

from downset import Graph, Record, plan_arena, plan_order
from downset.budget import Budget
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.orders.alternatives import alternatives
from experiments.frame import Experiment, beside, printed, run
from experiments.rows import FOLDER, Row
from experiments.serenity.subjects import CELLS_OF_THE_PAPER, ROUNDED, rewritten
from experiments.serenity.swiftnet import MODEL

NAME = "serenity_figure12"
DRAWING = FOLDER / f"{NAME}.svg"
PAPER = printed("serenity_figure12")


def arena_over_time(records: tuple[Record, ...], steps: int) -> list[int]:
    """By step: where the highest live record ends in the arena."""
    offsets = plan_arena(records, method="greedy_in_order").offsets
    ends = [(record, offset + record.nbytes) for record, offset in zip(records, offsets, strict=True)]
    return [max((end for r, end in ends if r.start <= step < r.stop), default=0) for step in range(steps)]


def series_of(what: str, graph: Graph, steps: tuple[int, ...], memory: str, orders: int) -> list[Row]:
    """One row without and one with the allocator."""
    problem = order_problem(graph, ROUNDED[memory])
    bare = profile(problem, steps)
    placed = arena_over_time(lifetimes(graph, steps, ROUNDED[memory]).records, len(steps))
    rows: list[Row] = [
        {"part": "without the allocator", "what": what, "bytes": max(bare), "over_time": bare},
        {"part": "with the allocator", "what": what, "bytes": max(placed), "over_time": placed},
    ]
    if what.startswith("order"):
        arenas = [
            max(arena_over_time(lifetimes(graph, other, ROUNDED[memory]).records, len(steps)))
            for other in alternatives(problem, steps, max(bare), clock=Budget(60.0).start(), count=orders)
        ]
        paper = PAPER.figure(part="with the allocator", what=what)
        hits = sum(round(arena / 1000, 1) == paper for arena in arenas)
        rows[1].update(orders=len(arenas), least=min(arenas), most=max(arenas), as_in_the_paper=hits)
    return rows


def rows(options: Namespace) -> Iterator[Row]:
    if not MODEL.exists():
        return
    orders = 40 if options.quick else 1000
    cell = CELLS_OF_THE_PAPER["SwiftNet cell A"]()
    split = rewritten(cell, "serenity")
    file_order = tuple(range(len(cell.ops)))
    table = series_of("file order, live", cell, file_order, "live", orders)
    table += series_of("file order", cell, file_order, "serenity", orders)
    table += series_of("order", cell, plan_order(cell, memory="serenity").steps, "serenity", orders)
    table += series_of("order + rewriting", split, plan_order(split, memory="serenity").steps, "serenity", orders)
    if not options.quick:
        DRAWING.write_text(drawing(table))
    yield from table


def drawing(table: list[Row]) -> str:
    """Two panels of step lines, bytes over the share of the cell that has run, as SVG."""
    colours = {
        "file order, live": "#999999",
        "file order": "#d62728",
        "order": "#1f77b4",
        "order + rewriting": "#2ca02c",
    }
    width, height, left = 420, 240, 60
    top = max(max(row["over_time"]) for row in table)
    parts = []
    for panel, part in enumerate(("with the allocator", "without the allocator")):
        x0, y0 = left + panel * (width + left + 20), 40 + height
        parts.append(f'<text x="{x0}" y="28" font-weight="bold">SwiftNet cell A {part}</text>')
        parts.append(f'<path d="M{x0},40 V{y0} H{x0 + width}" fill="none" stroke="black"/>')
        for kilobytes in range(0, top // 1000 + 1, 100):
            y = y0 - height * kilobytes * 1000 / top
            parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{kilobytes} KB</text>')
        for line, row in enumerate(row for row in table if row["part"] == part):
            points, count = [], len(row["over_time"])
            for step, nbytes in enumerate(row["over_time"]):
                y = y0 - height * nbytes / top
                points += [f"{x0 + width * end / count:.1f},{y:.1f}" for end in (step, step + 1)]
            colour = colours[row["what"]]
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            label = f"{row['what']}: {row['bytes'] / 1000:.1f} KB"
            parts.append(f'<text x="{x0}" y="{y0 + 20 + 15 * line}" fill="{colour}">{label}</text>')
    size = f'width="{2 * (width + left) + 60}" height="{height + 110}"'
    style = 'font-family="sans-serif" font-size="12"'
    sheet = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', sheet, *parts, "</svg>\n"])


def others(row: Row) -> str | None:
    if "orders" not in row:
        return None
    return f"{row['least']:,} to {row['most']:,} B in {row['orders']}; the paper's in {row['as_in_the_paper']}"


def over_time(rows: Sequence[Row]) -> None:
    print()
    for row in rows:
        print(f"{row['part']}, {row['what']}: {' '.join(f'{nbytes / 1000:.0f}' for nbytes in row['over_time'])}")


EXPERIMENT = Experiment(
    NAME,
    rows,
    (
        ("cell A", "{part}"),
        ("what", "{what}"),
        *beside(PAPER.of("figure", "part", "what"), lambda row: row["bytes"] / 1000, ".1f", of="KB"),
        ("arenas of equal peak", others),
    ),
    quick="fewer orders of equal peak, nothing written",
    after=over_time,
)

if __name__ == "__main__":
    run(EXPERIMENT)
