"""The pictures of the pages on how it works, drawn from plans of small problems. Nothing in them is measured.

    python -m docs_site.pictures

writes docs/pictures. `tests/docs/test_pictures.py` holds the committed files to this script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

import downset as ds
from docs_site.drawing import WIDTH_PX, box, chart_sheet, line
from downset.clusters.model import Cluster, Device, Network
from downset.graph.core import Graph, Op, Source, Tensor
from downset.graph.cost import row_form
from downset.graph.row_form import equal_strips
from downset.memory.liveness import profile
from downset.orders.problem import OrderProblem
from downset.reports.arena_view import ArenaView, Operator, arena_view
from downset.reports.axes import Axis
from downset.reports.charts import Chart, Label, Mark, sheet
from downset.reports.page.memories_figure import LEGEND, memory_charts
from downset.reports.page.memory_figure import order_figure
from downset.reports.page.timeline_figure import gantt_figure, rows_figure
from downset.reports.timeline import planned_timeline, stage_timeline
from downset.results.memories_fit import CopySpan, MovedCopy
from downset.results.plans import Arena, Evidence, Stage, StagePlan
from downset.rewrites.concat.choose import choose_rewrites
from downset.stages.problem import StageProblem

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"

BRANCHES = OrderProblem(
    predecessors=((), (0,), (1,), (0,), (3,), (2, 4)),
    storages=(
        ds.Storage(100, producers=(0,), consumers=(1, 3)),
        ds.Storage(400, producers=(1,), consumers=(2,)),
        ds.Storage(20, producers=(2,), consumers=(5,)),
        ds.Storage(300, producers=(3,), consumers=(4,)),
        ds.Storage(60, producers=(4,), consumers=(5,)),
        ds.Storage(80, producers=(5,), consumers=(5,), kept=True),
    ),
)
"""Operator a, two branches b c and d e, and f that joins them."""
NAMES = "abcdef"


def live_bytes(problem: OrderProblem, downset: frozenset[int]) -> int:
    """Bytes live after a downset, by the definition: what has a producer in it and a consumer outside, or is kept."""
    return sum(
        storage.nbytes
        for storage in problem.storages
        if downset & {*storage.producers} and (storage.kept or not downset >= {*storage.consumers})
    )


def lattice() -> str:
    """The downsets of a network with two branches, each with its live bytes, and the order of least peak as a way."""
    count = len(BRANCHES.predecessors)
    downsets = [
        frozenset(some)
        for size in range(count + 1)
        for some in combinations(range(count), size)
        if all({*BRANCHES.predecessors[op]} <= {*some} for op in some)
    ]
    order = ds.plan_order(BRANCHES)
    chosen = [frozenset(order.steps[:size]) for size in range(count + 1)]
    places: dict[frozenset[int], tuple[float, float]] = {}
    for size in range(count + 1):
        level = [one for one in downsets if len(one) == size]
        for row, one in enumerate(level):
            places[one] = (80 + 132 * size, 190 + 84 * (row - (len(level) - 1) / 2))
    drawn = []
    for low in downsets:
        for high in downsets:
            if low < high and len(high) == len(low) + 1:
                way = (low, high) in set(pairwise(chosen))
                drawn.append(line(places[low], places[high], "#0072b2" if way else "#8a939c", 4 if way else 1.2))
    for one, (x, y) in places.items():
        style = "c0" if one in chosen else "c8"
        told = "".join(NAMES[op] for op in sorted(one)) or "nothing"
        drawn.append(box(x - 50, y - 24, 100, 48, style, told, f"{live_bytes(BRANCHES, one)} B live"))
    said = (
        f"Blue: the order {' '.join(NAMES[op] for op in order.steps)}, peak {order.peak_bytes} B while an operator runs"
    )
    drawn.append(f'<text x="30" y="372" font-size="13">{escape(said)} (proven least).</text>')
    return sheet("Every order is a way from nothing to everything", "".join(drawn), width_px=WIDTH_PX, height_px=392)


def segments() -> str:
    """Two branches of one operator after another, whose results meet: what is live while each operator runs, branch
    after branch and with their segments merged."""
    sizes = ((60, 20, 90, 10, 45, 30), (80, 40, 100, 5, 50, 25))
    predecessors: list[tuple[int, ...]] = []
    storages = []
    for branch in sizes:
        for place, nbytes in enumerate(branch):
            operator = len(predecessors)
            predecessors.append((operator - 1,) if place else ())
            reader = operator + 1 if place + 1 < len(branch) else 2 * len(branch)
            storages.append(ds.Storage(nbytes, (operator,), (reader,)))
    predecessors.append((len(sizes[0]) - 1, len(predecessors) - 1))
    storages.append(ds.Storage(10, (len(predecessors) - 1,), (len(predecessors) - 1,), kept=True))
    problem = OrderProblem(tuple(predecessors), tuple(storages))
    charts: list[tuple[str, Chart]] = []
    most = ds.plan_order(problem, method="file").peak_bytes
    for name, method in (("Branch after branch", "file"), ("Segments merged", "optimal")):
        order = ds.plan_order(problem, method=method)
        marks = [
            Mark(step, 0, 0.92, nbytes, f"c{min(operator // len(sizes[0]), 2)}")
            for step, (operator, nbytes) in enumerate(zip(order.steps, profile(problem, order.steps), strict=True))
        ]
        steps = Axis(0, len(predecessors), "step", "steps")
        title = f"{name}: peak {order.peak_bytes} B"
        charts.append((title, Chart(title, steps, Axis(0, most, "live", "bytes"), tuple(marks), height_px=120)))
    legend = {"c0": "first branch", "c1": "second branch", "c2": "where they meet"}
    return chart_sheet("Between two segments an order may wait at a valley", charts, legend)


def arenas() -> str:
    """The records of docs/arenas.md one behind the other, and at the offsets of `best`."""
    records = [
        ds.Record("image", 0, 2, 600),
        ds.Record("left", 1, 4, 300),
        ds.Record("right", 2, 5, 500),
        ds.Record("sum", 4, 6, 300),
    ]
    drawn = [(name, ds.plan_arena(records, method=name)) for name in ("naive", "best")]
    return ds.memory_map(drawn, caption="Records that are never live together share bytes", height_px=200)


def stages() -> str:
    """A network with two branches, unit after unit and in stages. Prices are invented: a unit's seconds, a stage's
    longest group, and half a millisecond for the barrier behind it."""
    unit_s = (2e-3, 3e-3, 2e-3, 4e-3, 2e-3)
    problem = StageProblem((0, 0b00001, 0b00010, 0b00001, 0b01100))

    def price(stage: Stage) -> float:
        return max(sum(unit_s[unit] for unit in group) for group in stage.groups) + 5e-4

    plans: list[StagePlan] = [ds.plan_stages(problem, price, method=method) for method in ("sequential", "ios")]
    charts: list[tuple[str, Chart]] = []
    longest = max(stage_timeline(plan, unit_s).end_s for plan in plans)
    for name, plan in zip(("One unit after another", "In stages"), plans, strict=True):
        timeline = stage_timeline(plan, unit_s)
        marks = [Mark(s.start_s, s.lane + 0.1, s.stop_s - s.start_s, 0.8, f"c{s.frame}") for s in timeline.slices]
        labels = [
            Label((s.start_s + s.stop_s) / 2, s.lane + 0.5, s.stop_s - s.start_s, 0.8, f"unit {s.task}")
            for s in timeline.slices
        ]
        lanes = Axis(0, len(timeline.lanes), "", "lanes", timeline.lanes)
        chart = Chart(
            name,
            Axis(0, longest, "time without barriers", "s"),
            lanes,
            tuple(marks),
            tuple(labels),
            height_px=34 * len(timeline.lanes),
        )
        said = f"{name}: {len(plan.stages)} stages, {plan.evidence.value * 1e3:g} ms with barriers"
        charts.append((said, chart))
    return chart_sheet("Two branches behind unit 0: side by side where that pays", charts)


def convolutions() -> Graph:
    """A chain of convolutions of 3 x 3, every other one at half the rows and twice the channels."""
    tensors = [Tensor("image", (1, 3, 64, 64), "float32", 4 * 3 * 64 * 64)]
    ops, constants, read, channels, rows = [], {}, 0, 3, 64
    for number in range(6):
        stride = 1 + number % 2
        filters, rows = 16 * 2 ** (number // 2 + number % 2), rows // stride
        weights = np.ones((filters, channels, 3, 3), np.float32)
        constants[len(tensors)] = lambda weights=weights: weights
        tensors.append(Tensor(f"weights{number}", weights.shape, "float32", weights.nbytes, "constant"))
        tensors.append(Tensor(f"made{number}", (1, filters, rows, rows), "float32", 4 * filters * rows * rows))
        attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [stride, stride]}
        inputs = (read, len(tensors) - 2)
        read, channels = len(tensors) - 1, filters
        ops.append(Op(f"conv{number}", "Conv", inputs, (read,), attributes))
    return Graph("convolutions", tuple(tensors), tuple(ops), (0,), (read,), constants, Source("built")).check()


def pipelines() -> str:
    """Six convolutions over three devices (`early_fused`): what each does when, over a few periods, and its rows."""
    cluster = Cluster(
        tuple(Device(f"d{place}", speed) for place, speed in enumerate((2e8, 1.5e8, 1e8))),
        Network("links", 6.25e6, overlap=True),
    )
    plan = ds.plan_pipeline(convolutions(), cluster, method="early_fused")
    gantt = gantt_figure("What each device does when", [planned_timeline(plan)])
    rows = rows_figure(plan)
    legend = {style: f"frame {number}" for number, style in enumerate(("c0", "c1", "c2", "c3"))}
    charts = [*gantt.charts, ("The rows that each device computes, block after block", rows.charts[0][1])]
    return chart_sheet("One network over three devices: frames follow each other (analytic)", charts, legend)


def partial() -> str:
    """The example of docs/partial.md: two convolutions of 3 rows on 8 rows, the result in 4 strips of 2 rows."""
    rows, strips, high = 8, 4, 2
    charts: list[tuple[str, Chart]] = []
    for name, before, after in (("Middle tensor", 1, 1), ("Result", 0, 0)):
        marks, done = [], 0
        for strip in range(strips):
            first, last = max(0, strip * high - before), min(rows, (strip + 1) * high + after)
            if before == 0:
                first = 0  # parts of the result stay until they are joined
            for row in range(rows):
                style = "c1" if first <= row < min(done, last) else "c0" if done <= row < last else "idle"
                if style != "idle":
                    marks.append(Mark(row, strip + 0.08, 0.96, 0.84, style))
            done = last
        x = Axis(0, rows, f"rows of the {name.lower()}", "count")
        y = Axis(0, strips, "", "lanes", tuple(f"strip {strip}" for strip in range(strips)))
        charts.append((name, Chart(name, x, y, tuple(marks), height_px=110)))
    legend = {"c0": "computed in this strip", "c1": "kept from the strips before"}
    return chart_sheet("A segment in four strips: few rows of the middle tensor exist at a time", charts, legend)


def cluster() -> str:
    """The processes of a running pipeline, and what goes between them."""
    boxes = [box(360, 60, 240, 54, "c1", "driver", "plan, frames, Ray's head")]
    drawn = []
    centres = [(140 + 226 * place, 250) for place in range(4)]
    for place, (x, y) in enumerate(centres):
        drawn.append(line((480, 114), (x, y - 32), "#8a939c", 1.5, dashed=True))
        boxes.append(box(x - 80, y - 32, 160, 64, "c0", f"device d{place}", "shards, rows of frames"))
    for (left, y), (right, _) in pairwise(centres):
        drawn.append(line((left + 80, y), (right - 80, y), "#0072b2", 4))
    said = (
        "Dashed: which task begins next, and when it ended. Frames go to the first device, results come from the last.",
        "Blue: rows that a device needs and another one has, straight from one to the other. All of it under TLS.",
    )
    text = [f'<text x="30" y="{330 + 20 * line}" font-size="13">{escape(one)}</text>' for line, one in enumerate(said)]
    return sheet("A pipeline on its devices", "".join([*drawn, *boxes, *text]), width_px=WIDTH_PX, height_px=368)


class _Builder:
    """A network of float tensors, built operator by operator."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.constants: dict[int, Callable[[], np.ndarray]] = {}

    def tensor(self, name: str, *shape: int) -> int:
        self.tensors.append(Tensor(name, shape, "float32", 4 * int(np.prod(shape))))
        return len(self.tensors) - 1

    def conv(self, name: str, read: int, channels: int) -> int:
        """A convolution of 1 x 1."""
        _, depth, *rows = self.tensors[read].shape
        weights = np.ones((channels, depth, 1, 1), np.float32)
        self.constants[len(self.tensors)] = lambda: weights
        self.tensors.append(Tensor(f"{name}/weights", weights.shape, "float32", weights.nbytes, "constant"))
        result = self.tensor(name, 1, channels, *rows)
        self.ops.append(Op(name, "Conv", (read, result - 1), (result,), {"kernel_shape": [1, 1]}))
        return result

    def apply(self, name: str, kind: str, reads: Sequence[int], channels: int, **attributes: int) -> int:
        """An operator of any other kind on tensors of equal rows."""
        result = self.tensor(name, 1, channels, *self.tensors[reads[0]].shape[2:])
        self.ops.append(Op(name, kind, tuple(reads), (result,), attributes))
        return result

    def graph(self, name: str, output: int) -> Graph:
        source = Source("built")
        return Graph(name, tuple(self.tensors), tuple(self.ops), (0,), (output,), self.constants, source).check()


def rewriting() -> str:
    """Four branches, their concatenation and a convolution that reads it: as they are, and taken apart by
    `choose_rewrites`, each in its best order."""
    built = _Builder()
    image = built.tensor("image", 1, 8, 32, 32)
    branches = [built.conv(f"branch {place}", image, 16) for place in range(4)]
    joined = built.apply("joined", "Concat", branches, 64, axis=1)
    graph = built.graph("branches", built.conv("reader", joined, 16))
    views = []
    for heading, one in (("as it is", graph), ("taken apart", choose_rewrites(graph, memory="ort").graph)):
        order = ds.plan_order(one, memory="ort")
        arena = ds.plan_arena(one, order)
        views.append(arena_view(heading, one, order.steps, arena, memory="ort", bound_bytes=order.peak_bytes))
    return ds.memory_map(views, caption="A concatenation taken apart: its parts are never live together", height_px=190)


def verification() -> str:
    """Two files that hold the same network in two orders: which operator corresponds to which."""
    orders = (tuple(range(len(NAMES))), ds.plan_order(BRANCHES, method="dfs").steps)
    if orders[0] == orders[1]:
        orders = (orders[0], (0, 3, 4, 1, 2, 5))
    drawn, boxes = [], []
    for row, (file, order) in enumerate(zip(("original", "other"), orders, strict=True)):
        y = 70 + 170 * row
        boxes.append(f'<text x="30" y="{y + 30}" font-size="13" font-weight="600">{file}</text>')
        for step, operator in enumerate(order):
            x = 130 + 134 * step
            name = NAMES[operator] if row == 0 else f"n{step}"
            reads = [NAMES[op] if row == 0 else f"n{order.index(op)}" for op in BRANCHES.predecessors[operator]]
            boxes.append(box(x, y, 112, 48, "c0", name, f"reads {' '.join(reads) or 'the input'}"))
            if row == 0:
                other = orders[1].index(operator)
                drawn.append(line((x + 56, y + 48), (130 + 134 * other + 56, 240), "#0072b2", 2))
    said = (
        "Names and places differ. From the outputs backwards every value has one producer, which gives the lines.",
        "Checked as a whole: one to one, equal kinds and constants, every operator after those that it reads.",
    )
    text = [f'<text x="30" y="{330 + 20 * line}" font-size="13">{escape(one)}</text>' for line, one in enumerate(said)]
    return sheet("The same network in two files", "".join([*drawn, *boxes, *text]), width_px=WIDTH_PX, height_px=370)


def memory_models() -> str:
    """The peak of one small network in one order, by memory model."""
    built = _Builder()
    image = built.tensor("image", 1, 4, 9, 9)
    left = built.apply("left relu", "Relu", [built.conv("left", image, 8)], 8)
    right = built.apply("right relu", "Relu", [built.conv("right", image, 8)], 8)
    joined = built.apply("joined", "Concat", [left, right], 16, axis=1)
    graph = built.graph("small", built.conv("result", joined, 4))
    names = ("live", "paper", "serenity", "tflm", "litert", "ort", "torch")
    steps = range(len(graph.ops))
    peaks = [ds.peak_bytes(ds.order_problem(graph, name), steps) for name in names]
    marks = tuple(Mark(0, lane + 0.12, peak, 0.76, f"c{lane}") for lane, peak in enumerate(peaks))
    labels = tuple(Label(peak / 2, lane + 0.5, peak, 0.76, f"{peak:,} B") for lane, peak in enumerate(peaks))
    chart = Chart(
        "Peaks",
        Axis(0, 1.05 * max(peaks), "peak of live bytes", "bytes"),
        Axis(0, len(names), "", "lanes", names),
        marks,
        labels,
        height_px=26 * len(names),
    )
    said = "Two convolutions with Relu, their concatenation, and a convolution, in the order of the file"
    return chart_sheet("One network in one order: what counts as live differs by runtime", [(said, chart)])


def how_a_job_runs() -> str:
    """The parts that `downset fit` goes through, with their folders."""
    parts = (
        ("read", "formats/"),
        ("Graph", "graph/"),
        ("rewrite", "rewrites/, partial/"),
        ("order", "orders/"),
        ("arena", "arenas/"),
        ("check", "joint/check.py"),
        ("write", "formats/"),
        ("measure", "runtimes/"),
        ("prove and compare", "equivalence/"),
        ("report", "reports/"),
    )
    drawn, boxes = [], []
    places = [(70 + 176 * (place % 5), 70 + 130 * (place // 5)) for place in range(len(parts))]
    for place, ((x, y), (name, folder)) in enumerate(zip(places, parts, strict=True)):
        boxes.append(box(x, y, 148, 56, "c1" if name in ("order", "arena", "rewrite") else "c0", name, folder))
        if place % 5:
            drawn.append(line((x - 28, y + 28), (x, y + 28), "#0072b2", 3))
    drawn.append(line((70 + 176 * 4 + 74, 126), (70 + 74, 200), "#0072b2", 3))
    said = (
        "Orange: parts that search. Every candidate file is written, measured, proven and compared; the least ships.",
    )
    text = [f'<text x="30" y="{306 + 20 * line}" font-size="13">{escape(one)}</text>' for line, one in enumerate(said)]
    return sheet(
        "The way of a model through downset fit", "".join([*drawn, *boxes, *text]), width_px=WIDTH_PX, height_px=330
    )


def pieces() -> str:
    """The rows of every tensor that two strips of the result need, by `row_form`, back to the image."""
    graph = convolutions()
    form = row_form(graph)
    tensors = [0, *(op.outputs[0] for op in form.ops)]
    last = tensors[-1]
    strips = equal_strips(form.rows[last], 2)
    needs: list[dict[int, tuple[int, int]]] = []
    for strip in strips:
        wanted = {last: strip}
        for op in reversed(form.ops):
            read = op.inputs[0]
            assert read.map is not None
            wanted[read.tensor] = read.map(wanted[op.outputs[0]], form.rows[read.tensor])
        needs.append(wanted)
    marks = []
    for lane, tensor in enumerate(tensors):
        rows = form.rows[tensor]
        (_, stop), (start, _) = needs[0][tensor], needs[1][tensor]
        for style, first, end in (("c0", 0, start), ("c1", start, stop), ("c2", stop, rows)):
            if end > first:
                marks.append(Mark(first / rows, lane + 0.12, (end - first) / rows, 0.76, style))
    lanes = Axis(0, len(tensors), "", "lanes", tuple(graph.tensors[tensor].name for tensor in tensors))
    chart = Chart(
        "Rows", Axis(0, 1, "rows of the tensor, as a share", "share"), lanes, tuple(marks), height_px=26 * len(tensors)
    )
    legend = {"c0": "needed by the upper strip", "c1": "needed by both", "c2": "by the lower strip"}
    return chart_sheet("Two strips of a piece: rows that both need grow towards the image", [("", chart)], legend)


def training() -> str:
    """A training step of six layers by its bytes: all gradients before the update, and the order of least peak."""
    layers, activation, weight = 6, 100, 240
    forward, backward, update = range(layers), range(layers, 2 * layers), range(2 * layers, 3 * layers)
    predecessors: list[tuple[int, ...]] = [() if layer == 0 else (layer - 1,) for layer in forward]
    predecessors += [
        tuple(sorted({layers - 1 - place, layers + place - 1 if place else layers - 1})) for place in range(layers)
    ]
    predecessors += [(layers + place,) for place in range(layers)]
    storages = [
        *(
            ds.Storage(activation, (layer,), (*((layer + 1,) if layer + 1 < layers else ()), 2 * layers - 1 - layer))
            for layer in forward
        ),
        *(ds.Storage(activation, (step,), (step + 1,)) for step in [*backward][:-1]),
        *(ds.Storage(weight, (step,), (other,)) for step, other in zip(backward, update, strict=True)),
    ]
    problem = OrderProblem(tuple(predecessors), tuple(storages))
    kinds = ["forward"] * layers + ["backward"] * layers + ["update"] * layers
    views = []
    none = Arena((), (), Evidence("none", 0, 0, False))
    for heading, steps in (
        ("all gradients, then the update", tuple(range(3 * layers))),
        ("in the order of least peak (proven)", ds.plan_order(problem).steps),
    ):
        live = profile(problem, steps)
        operators = tuple(
            Operator(f"{kinds[op]} {op % layers}", kinds[op], live[step]) for step, op in enumerate(steps)
        )
        views.append(ArenaView(heading, none, operators))
    figure = order_figure(views)
    legend = dict(figure.legend)
    return chart_sheet("A training step: a gradient dies as soon as its parameter is updated", figure.charts, legend)


def memories() -> str:
    """A chain whose first result is read again at its end, in fast memory that has no room for it while the widest
    operator runs: it is stored, and loaded for the last operator. The plan is written by hand."""
    spans = (
        CopySpan("image", True, 512, 256, 0, 1),
        CopySpan("wide", True, 0, 512, 0, 3),
        CopySpan("b", True, 512, 512, 1, 4),
        CopySpan("wide", False, 0, 512, 2, 6),
        CopySpan("c", True, 0, 512, 3, 7),
        CopySpan("d", True, 512, 256, 4, 7),
        CopySpan("wide", True, 768, 512, 5, 7),
        CopySpan("sum", False, 512, 512, 6, 7),
    )
    moves = (MovedCopy("wide", 2, False, 512, 0, 0), MovedCopy("wide", 5, True, 512, 0, 768))
    charts = memory_charts(spans, moves, titled=True)
    return chart_sheet("Two memories: a tensor leaves fast memory and comes back", charts, dict(LEGEND))


PICTURES: Mapping[str, Callable[[], str]] = {
    "lattice": lattice,
    "segments": segments,
    "arenas": arenas,
    "stages": stages,
    "pipelines": pipelines,
    "partial": partial,
    "cluster": cluster,
    "rewriting": rewriting,
    "verification": verification,
    "memories": memories,
    "memory-models": memory_models,
    "how-a-job-runs": how_a_job_runs,
    "pieces": pieces,
    "training": training,
}


def pictures() -> Iterator[tuple[Path, str]]:
    """Every picture with its file."""
    for name, draw in PICTURES.items():
        yield FOLDER / f"{name}.svg", draw()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path, text in pictures():
        path.write_text(text)


if __name__ == "__main__":
    main()
