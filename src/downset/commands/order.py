"""`downset order`: for people who have only a graph, or want only an order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import (
    console,
    parse_shapes,
    print_table,
    search_s,
    shape_option,
    time_limit_option,
    trust_option,
    work_limit_option,
    worker_memory_option,
)
from downset.commands.pictures import (
    check_pictures,
    print_written,
    report_option,
    trace_option,
    write_page,
    write_picture,
    written_lines,
)
from downset.commands.waiting import reading
from downset.commands.wording import worded
from downset.text import counted, format_bytes, printable, shortened

if TYPE_CHECKING:
    from downset.graph.core import Graph
    from downset.memory.models import MemoryName
    from downset.results.plans import Order

__all__ = ["order"]


@click.command()
@click.argument("graph", type=click.Path())
@click.option(
    "--method",
    default="optimal",
    show_default=True,
    help="file, kahn, dfs, greedy, inductor, liu, beam, serenity, optimal or exhaustive.",
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
    trust: bool,
    report_path: str | None,
    trace_path: str | None,
    as_json: bool,
) -> None:
    """Order the operators of GRAPH (plain JSON, .onnx, .tflite or .pt2; - is plain JSON on stdin) for least peak
    memory."""
    from downset.formats.reading import load, load_stdin
    from downset.orders.plan import plan_order
    from downset.reports.json_forms.memory import order_json
    from downset.reports.next_steps import order_next_steps, step_lines
    from downset.reports.peak import peak_cause
    from downset.reports.text import LISTED, report

    pictures = {"--report": report_path, "--trace": trace_path}
    check_pictures(pictures, others={}, source=graph)
    seconds = search_s(time_limit, work_limit)
    with reading(console(stderr=True), "stdin" if graph == "-" else graph, limit_s=seconds) as progress:
        given = parse_shapes(shapes)
        loaded = load_stdin(shapes=given) if graph == "-" else load(graph, shapes=given, trust=trust)
        progress(f"ordering {counted(len(loaded.ops), 'operator')}")
        plan = plan_order(
            loaded,
            method=method,
            memory=memory,
            time_limit_s=seconds,
            work_limit=work_limit,
        )
        progress("writing the pictures")
        _write_pictures(loaded, plan, report_path, trace_path)
    if as_json:
        print_json("order", order_json(plan, loaded))
        return
    out = console()
    out.print(report(loaded, plan), markup=False, soft_wrap=True)
    cause = peak_cause(loaded, plan.steps, plan.memory)
    if cause is not None and len(cause.live) > LISTED:
        out.print("--json lists all that lives at the peak", markup=False, soft_wrap=True)
    _print_moved(loaded, plan, out)
    print_written(out, written_lines(pictures))
    for line in worded(step_lines(order_next_steps(plan, loaded))):
        out.print(line, markup=False, soft_wrap=True)


_SHOWN = 20
"""Operators that are listed; --json and the page have them all."""


def _print_moved(graph: Graph, plan: Order, out: Any) -> None:
    """Print the operators that changed their place among the others, with the operators that they now follow."""
    from rich.markup import escape
    from rich.table import Table

    from downset.reports.arena_view import order_operators
    from downset.reports.memory_map import moved_steps

    operators = order_operators(graph, plan.steps, plan.memory)
    given = order_operators(graph, range(len(graph.ops)), plan.memory)
    moved = sorted(moved_steps(given, operators))
    if not moved:
        out.print("the order is the file's", soft_wrap=True)
        return
    before = max(operator.live_bytes for operator in given)
    said = f"the file's order peaks at {format_bytes(before)} B"
    if before <= plan.peak_bytes:
        said += ", no more than this one: nothing has to move"
    out.print(said, soft_wrap=True)
    said = f"{len(moved)} of {counted(len(operators), 'operator')} moved; all others keep the order of the file"
    out.print(said, markup=False, soft_wrap=True)
    table = Table("step", "in the file", "kind", "operator", "runs after", "live bytes")
    for step in moved[:_SHOWN]:
        one = operators[step]
        earlier = operators[step - 1].name if step else "nothing"
        table.add_row(
            str(step),
            str(plan.steps[step]),
            *(escape(shortened(printable(text), 40)) for text in (one.kind, one.name, earlier)),
            format_bytes(one.live_bytes),
        )
    print_table(out, table)
    if len(moved) > _SHOWN:
        out.print(f"{len(moved) - _SHOWN:,} more moved; --json lists every step, --report shows them", soft_wrap=True)


def _write_pictures(graph: Graph, plan: Order, report_path: str | None, trace_path: str | None) -> None:
    """Write the page of the order, and its trace with the tensors in an arena of naive offsets, because an order places
    nothing."""
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
