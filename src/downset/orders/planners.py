"""Planners of orders. Each is a function of an `OrderProblem`. To add one, add a file, a line here and one in
docs_site/tables/orders.py, and run `python -m docs_site.tables`. The line here (`Method`) and the signature state what
the planner can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from downset.memory.liveness import OrderProblem, peak_bytes
from downset.methods import Contract, Method
from downset.orders.alternatives import alternatives
from downset.orders.beam import beam
from downset.orders.check import verify_steps
from downset.orders.dfs import dfs
from downset.orders.exhaustive import exhaustive
from downset.orders.file_order import file_order
from downset.orders.greedy import greedy
from downset.orders.inductor import inductor
from downset.orders.kahn import kahn
from downset.orders.liu import liu
from downset.orders.optimal import optimal
from downset.orders.serenity import serenity
from downset.results.plans import Found

__all__ = ["CONTRACT", "ORDERS", "OrderOptions", "alternatives"]


def _peak_and_floor(problem: OrderProblem, result: Found) -> tuple[int, int]:
    verify_steps(problem.predecessors, result.solution)
    return peak_bytes(problem, result.solution), problem.floor_bytes


CONTRACT = Contract(
    "orders",
    problem=("problem",),
    settings=("clock", "time_limit_s", "work_limit"),
    returns=Found,
    others=("memory",),
    value_and_bound=_peak_and_floor,
)


class OrderOptions(TypedDict, total=False):
    """The options that only some methods have."""

    width: int
    divided: bool
    soft_budget: bool
    step_limit_s: float


ORDERS: Mapping[str, Method] = {
    "file": Method(file_order),
    "kahn": Method(kahn),
    "dfs": Method(dfs),
    "greedy": Method(greedy),
    "inductor": Method(inductor),
    "liu": Method(liu),
    "beam": Method(beam),
    "serenity": Method(serenity, proves=True),
    "optimal": Method(optimal, proves=True),
    "exhaustive": Method(exhaustive, proves=True),
}
