"""`downset order`: for people who have only a graph, or want only an order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import (
    console,
    parse_shapes,
    search_s,
    shape_option,
    time_limit_option,
    trust_option,
    work_limit_option,
    worker_memory_option,
)
from downset.commands.pictures import check_pictures, report_option, trace_option, write_page, write_picture
from downset.commands.waiting import waiting

if TYPE_CHECKING:
    from downset.graph.core import Graph
    from downset.memory.models import MemoryName
    from downset.methods import EngineName
    from downset.plans import Order

__all__ = ["order"]


@click.command()
@click.argument("graph", type=click.Path())
@click.option(
    "--method",
    default="optimal",
    show_default=True,
    help="file, kahn, dfs, greedy, inductor, beam, serenity, optimal or exhaustive.",
)
@click.option(
    "--memory",
    default="live",
    show_default=True,
    help="live, paper, serenity, tflm, litert, ort or torch; tflm-KERNELS (see fit --kernels).",
)
@time_limit_option("For the search.")
@work_limit_option
@worker_memory_option
@shape_option
@click.option(
    "--engine",
    type=click.Choice(["native", "python"]),
    default="native",
    show_default=True,
    help="python needs no compiled module and is slower.",
)
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
    shapes: tuple[str, ...],
    engine: EngineName,
    trust: bool,
    report_path: str | None,
    trace_path: str | None,
    as_json: bool,
) -> None:
    """Order the operators of GRAPH (plain JSON, .onnx, .tflite or .pt2) for least peak memory."""
    from downset.formats.reading import load
    from downset.orders.plan import plan_order
    from downset.reports.json_form import order_json
    from downset.reports.text import report

    check_pictures({"--report": report_path, "--trace": trace_path}, others={}, source=graph)
    loaded = load(graph, shapes=parse_shapes(shapes), trust=trust)
    seconds = search_s(time_limit, work_limit)
    with waiting(console(stderr=True), f"ordering {len(loaded.ops)} operators", limit_s=seconds):
        plan = plan_order(
            loaded,
            method=method,
            memory=memory,
            time_limit_s=seconds,
            work_limit=work_limit,
            engine=engine,
        )
    _write_pictures(loaded, plan, report_path, trace_path)
    if as_json:
        print_json("order", order_json(plan))
        return
    out = console()
    out.print(report(loaded, plan), markup=False, soft_wrap=True)
    out.print("order: " + " ".join(map(str, plan.steps)), markup=False, soft_wrap=True)


def _write_pictures(graph: Graph, plan: Order, report_path: str | None, trace_path: str | None) -> None:
    """The page of the order, and its trace with the tensors of an arena of naive offsets: an order places nothing."""
    source = graph.source.path
    if report_path is not None:
        from downset.reports.page.plan_pages import order_page

        write_page(report_path, order_page(graph, plan), source=source)
    if trace_path is not None:
        from downset.arenas.plan import plan_arena
        from downset.reports.arena_view import arena_view
        from downset.reports.trace import arena_trace

        arena = plan_arena(graph, plan, method="naive")
        view = arena_view("of this order", graph, plan.steps, arena, memory=plan.memory)
        write_picture(trace_path, arena_trace([view]), source=source)
