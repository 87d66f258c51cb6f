"""Problems and records handed over without a file are checked like files: one error that says what is wrong."""

import pytest

from downset.arenas.plan import plan_arena, plan_shared
from downset.errors import InvalidPlan, UsageError
from downset.graph.core import Graph, Op, Tensor
from downset.memory.liveness import OrderProblem, Storage
from downset.memory.records import Record
from downset.orders.plan import plan_order
from downset.orders.problem import check_problem
from tests.clocks import unlimited

pytestmark = pytest.mark.native

KEPT = Storage(4, (0,), (0,))


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (OrderProblem(((1,), (0,)), ()), "topological order"),
        (OrderProblem(((0,),), ()), "topological order"),
        (OrderProblem(((3,),), ()), "topological order"),
        (OrderProblem(((-1,),), ()), "topological order"),
        (OrderProblem((0, 1), ()), "operator 0 has the predecessors 0"),
        (OrderProblem(((), (0,), (0, 0)), ()), "each once"),
        (OrderProblem(((),), (Storage(-4, (0,), (0,)),)), "storage 0 has -4 bytes"),
        (OrderProblem(((),), (Storage(4.5, (0,), (0,)),)), "storage 0 has 4.5 bytes"),
        (OrderProblem(((),), (KEPT, Storage(1 << 70, (0,), (0,)))), "add up to"),
        (OrderProblem(((),), (KEPT, Storage(4, (0,), (9,)))), "storage 1 names"),
        (OrderProblem(((),), (Storage(4, (0,), ()),)), "has no consumers and is not kept"),
        (
            OrderProblem(((), (0,)), (Storage(4, (0,), (1,)),), ((0,),)),
            "in_place has 1 entries",
        ),
        (OrderProblem(((), (0,)), (Storage(4, (0,), (1,)),), ((), (7,))), "of the size of storage 7"),
        (
            OrderProblem(((), (0,)), (Storage(4, (0,), (1,)), Storage(8, (1,), (1,))), ((), (0,))),
            "of the size of storage 0",
        ),
    ],
)
def test_a_bare_problem_that_breaks_a_law_is_named(problem, says):
    with pytest.raises(UsageError, match=says):
        plan_order(problem)


def test_lawful_bare_problems_pass():
    assert plan_order(OrderProblem((), ())).peak_bytes == 0
    in_place = OrderProblem(((), (0,)), (Storage(4, (0,), (1,)), Storage(4, (1,), (), kept=True)), ((), (0,)))
    assert plan_order(in_place).peak_bytes == 4
    given = OrderProblem(((),), (Storage(4, (), (0,)), Storage(2, (0,), (0,))), floor_bytes=4)
    assert plan_order(given).peak_bytes == 6


def test_a_problem_is_checked_in_time_linear_in_its_lists():
    """Counted: comparisons of operators, which a chain twice as long needs twice as often."""

    class Counted(int):
        compared = 0

        def __eq__(self, other):
            Counted.compared += 1
            return int(self) == int(other)

        def __lt__(self, other):
            Counted.compared += 1
            return int(self) < int(other)

        __hash__ = int.__hash__

    def comparisons(count):
        made = [Counted(at) for at in range(count)]
        storages = tuple(Storage(4, (made[at],), (made[at + 1],)) for at in range(count - 1))
        before = tuple((made[at - 1],) if at else () for at in range(count))
        Counted.compared = 0
        check_problem(OrderProblem(before, storages, ((), *((at,) for at in range(count - 2)), ())))
        return Counted.compared

    assert 0 < comparisons(400) <= 2.2 * comparisons(200)


@pytest.mark.parametrize("steps", [[1, 0], [0], [0, 9], [0, 0]])
def test_an_arena_of_a_graph_needs_an_order_of_it(steps):
    tensors = tuple(Tensor(name, (4,), "uint8", 4) for name in "xay")
    graph = Graph("g", tensors, (Op("A", "Relu", (0,), (1,)), Op("B", "Relu", (1,), (2,))), (0,), (2,)).check()
    with pytest.raises(InvalidPlan):
        plan_arena(graph, steps)


@pytest.mark.parametrize("plan", [plan_arena, plan_shared])
@pytest.mark.parametrize("fields", [{"nbytes": 4.5}, {"start": 0.5}, {"stop": float("nan")}, {"alignment": 2.0}])
def test_records_are_whole_numbers(plan, fields):
    record = Record("a", **{"start": 0, "stop": 1, "nbytes": 4, **fields})
    with pytest.raises(UsageError, match="is not a whole number"):
        plan([record])


def test_the_compiled_placement_refuses_lifetimes_that_are_none():
    from downset.arenas.gaps import place_in_order

    for stop in (0, -1):
        with pytest.raises(ValueError, match="never lives"):
            place_in_order([Record("a", 0, stop, 4)], [0], clock=unlimited())
    with pytest.raises(ValueError, match="not an index"):
        place_in_order([Record("a", 0, 1, 4)], [1], clock=unlimited())
