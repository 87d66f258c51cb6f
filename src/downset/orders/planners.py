"""Planners of orders. Each is a function of an `OrderProblem`; adding one is a file, a line here and a README row."""

from collections.abc import Callable

from downset.orders.alternatives import alternatives
from downset.orders.beam import beam
from downset.orders.dfs import dfs
from downset.orders.exhaustive import exhaustive
from downset.orders.file_order import file_order
from downset.orders.greedy import greedy
from downset.orders.inductor import inductor
from downset.orders.kahn import kahn
from downset.orders.optimal import optimal
from downset.orders.serenity import serenity
from downset.plans import Found

__all__ = ["ORDERS", "alternatives"]

ORDERS: dict[str, Callable[..., Found]] = {
    "file": file_order,
    "kahn": kahn,
    "dfs": dfs,
    "greedy": greedy,
    "inductor": inductor,
    "beam": beam,
    "serenity": serenity,
    "optimal": optimal,
    "exhaustive": exhaustive,
}
