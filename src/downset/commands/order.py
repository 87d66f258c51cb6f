"""`downset order`: for people who have only a graph, or want only an order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import tell_note
from downset.commands.method_names import METHODS
from downset.commands.options import (
    console,
    search_s,
    size_options,
    time_limit_option,
    trust_option,
    work_limit_option,
    worker_memory_option,
)
from downset.commands.pictures import (
    check_pictures,
    report_option,
    trace_option,
    write_page,
    write_picture,
    written_lines,
)
from downset.commands.waiting import reading
from downset.commands.wording import worded
from downset.text import counted

if TYPE_CHECKING:
    from downset.graph.core import Graph
    from downset.memory.models import MemoryName
    from downset.results.plans import Order

__all__ = ["order"]


@click.command()
@click.argument("graph", type=click.Path())
@click.option("--method", default="optimal", show_default=True, help=f"{METHODS['plan_order']}.")
@click.option(
    "--memory",
    default="live",
    show_default=True,
    help="live, paper, serenity, tflm, litert, ort or torch; tflm-KERNELS (see fit --kernels).",
)
@time_limit_option("For the search.")
@work_limit_option
@worker_memory_option
@size_options
@trust_option
@report_option
@trace_option
@json_option("order")
def order(
    graph: str,
    method: str,
    memory: MemoryName,
    time_limit: float,
    work_limit: int | None,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, int],
    trust: bool,
    report_path: str | None,
    trace_path: str | None,
    as_json: bool,
) -> None:
    """Order the operators of GRAPH (plain JSON, .onnx, .tflite or .pt2; - is plain JSON on stdin) for least peak
    memory."""
    from downset.formats.reading import load, load_stdin
    from downset.orders.plan import plan_order
    from downset.reports.json_form import json_of
    from downset.reports.plan_documents import order_document
    from downset.reports.terminal import print_document

    pictures = {"--report": report_path, "--trace": trace_path}
    check_pictures(pictures, others={}, source=graph)
    seconds = search_s(time_limit, work_limit)
    with reading(console(stderr=True), "stdin" if graph == "-" else graph, limit_s=seconds) as progress:
        sizes: dict[str, Any] = {"shapes": shapes, "dims": dims}
        loaded = load_stdin(**sizes) if graph == "-" else load(graph, **sizes, trust=trust)
        progress(f"ordering {counted(len(loaded.ops), 'operator')}")
        plan = plan_order(
            loaded,
            method=method,
            memory=memory,
            time_limit_s=seconds,
            work_limit=work_limit,
        )
        if any(pictures.values()):
            progress("writing the pictures")
        document = order_document(loaded, plan)
        if report_path is not None:
            write_page(report_path, document, source=loaded.source.path)
        if trace_path is not None:
            _write_trace(loaded, plan, trace_path)
    tell_note(console(stderr=True), loaded.source.note)
    if as_json:
        print_json("order", json_of(document))
        return
    print_document(console(), worded(document), written=written_lines(pictures))


def _write_trace(graph: Graph, plan: Order, path: str) -> None:
    """Write the trace of the order, with the tensors in an arena of naive offsets, because an order places nothing."""
    from downset.arenas.plan import plan_arena
    from downset.reports.arena_view import arena_view
    from downset.reports.trace import arena_trace

    arena = plan_arena(graph, plan, method="naive")
    view = arena_view("of this order", graph, plan.steps, arena, memory=plan.memory)
    write_picture(path, arena_trace([view]), source=graph.source.path)
