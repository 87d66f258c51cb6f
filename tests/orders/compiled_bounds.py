"""The compiled lower bounds of whole problems, as `OrderSearches` takes them of their segments."""

from downset import native
from downset.budget import MANY
from downset.orders.native_form import native_problem


def closure_bound(problem):
    """Bytes that every order needs at its peak, by single operators."""
    return native.compiled.closure_bound(native_problem(problem), range(len(problem.predecessors)), 10.0, MANY)


def pair_bound(problem):
    """Likewise by single operators and by pairs: never below `closure_bound`."""
    order, bound = range(len(problem.predecessors)), closure_bound(problem)
    return native.compiled.pair_bound(native_problem(problem), order, bound, 10.0, MANY)
