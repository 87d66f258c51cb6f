"""`downset order`: for people who have only a graph, or want only an order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import (
    console,
    parse_shapes,
    shape_option,
    time_limit_option,
    trust_option,
    worker_memory_option,
)

if TYPE_CHECKING:
    from downset.memory.models import MemoryName
    from downset.methods import EngineName

__all__ = ["order"]


@click.command()
@click.argument("graph", type=click.Path())
@click.option(
    "--method",
    default="optimal",
    show_default=True,
    help="file, kahn, dfs, greedy, inductor, beam, serenity, optimal or exhaustive.",
)
@click.option("--memory", default="live", show_default=True, help="live, paper, serenity, tflm, litert, ort or torch.")
@time_limit_option("For the search.")
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
@json_option("order")
def order(
    graph: str,
    method: str,
    memory: MemoryName,
    time_limit: float,
    shapes: tuple[str, ...],
    engine: EngineName,
    trust: bool,
    as_json: bool,
) -> None:
    """Order the operators of GRAPH (plain JSON, .onnx or .tflite) for least peak memory."""
    from downset.formats.reading import load
    from downset.orders.plan import plan_order
    from downset.reports.json_form import order_json
    from downset.reports.text import report

    loaded = load(graph, shapes=parse_shapes(shapes), trust=trust)
    plan = plan_order(loaded, method=method, memory=memory, time_limit_s=time_limit, engine=engine)
    if as_json:
        print_json("order", order_json(plan))
        return
    out = console()
    out.print(report(loaded, plan), markup=False, soft_wrap=True)
    out.print("order: " + " ".join(map(str, plan.steps)), markup=False, soft_wrap=True)
