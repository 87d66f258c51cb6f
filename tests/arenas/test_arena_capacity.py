"""The search under a capacity, where no byte is to spare: rectangles cut from one of known height."""

import random

import pytest

from downset import native
from downset.arenas.best import best
from downset.arenas.check_records import check_placement
from downset.arenas.gaps import height
from downset.arenas.native_form import native_records
from downset.arenas.plan import plan_arena, plan_shared
from downset.arenas.planners import ARENAS, SHARED
from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.memory.records import Record
from tests.clocks import unlimited

exact = ARENAS["exact"]
exact_objects = SHARED["exact"]

pytestmark = pytest.mark.native


def cut(seed, pieces, scale=1, alignment=1):
    """A full rectangle of height 64 in `pieces` records; every cut goes through one record."""
    rng = random.Random(seed)
    boxes = [(0, 40, 0, 64)]
    while len(boxes) < pieces:
        start, stop, low, high = boxes.pop(rng.randrange(len(boxes)))
        at, level = rng.randint(start, stop), rng.randint(low, high)
        halves = (
            [(start, at, low, high), (at, stop, low, high)]
            if rng.random() < 0.5
            else [(start, stop, low, level), (start, stop, level, high)]
        )
        boxes += [box for box in halves if box[0] < box[1] and box[2] < box[3]]
    rng.shuffle(boxes)
    return [Record(f"r{i}", a, b, (d - c) * scale, alignment) for i, (a, b, c, d) in enumerate(boxes)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("scale", "alignment"), [(1, 1), (6, 3), (30, 15)])
def test_what_was_cut_from_a_rectangle_is_put_back(seed, scale, alignment):
    records = cut(seed, 24, scale, alignment)
    found = exact(records, capacity=64 * scale)
    check_placement(records, found.solution, capacity=64 * scale)
    with pytest.raises(InfeasibleError):
        exact(records, capacity=64 * scale - 1)


@pytest.mark.parametrize(
    ("seed", "pieces", "most"),
    [
        (17, 40, 200),  # impossible, if the marks of a part contain those of another
        (34, 60, 250),  # 1,169 placements, if no state that failed is known again
        (52, 80, 300),  # 418, if the marks depend on the way to a state
        (35, 60, 1000),  # 1,512, if states of other lowest offsets are taken for the same
    ],
)
def test_a_state_that_failed_is_known_again_and_no_other_is_taken_for_it(seed, pieces, most):
    """The search keeps the sum of the marks of a state; `make sanitize` adds it up at each node."""
    offsets, outcome, _ = native.compiled.arena_within(native_records(cut(seed, pieces)), 64, 60.0, most)
    assert outcome is native.compiled.Outcome.SOLVED
    check_placement(cut(seed, pieces), offsets, capacity=64)


def test_two_searches_of_as_many_nodes_agree():
    records = cut(3, 40)
    assert exact(records, work_limit=500) == exact(records, work_limit=500)


def test_a_capacity_that_is_wide_enough_ends_the_search():
    records = cut(13, 100)
    assert height(records, best(records, clock=unlimited()).solution) == 68  # so 67 is searched
    found = plan_arena(records, method="exact", capacity_bytes=67)
    assert found.arena_bytes <= 67
    assert found.evidence.states == exact(records, capacity=67).states
    assert 4 * found.evidence.states < exact(records, work_limit=100_000).states
    objects = plan_shared(records, method="exact", capacity_bytes=10**6)
    assert objects.evidence.states == 0 < exact_objects(records, time_limit_s=1.0).states


def test_what_is_reported_where_nothing_fits_in_time_is_the_best_known():
    records = cut(7, 200)
    stopped = exact(records, capacity=64, work_limit=40_000)
    heuristic = best(records, clock=unlimited())
    assert stopped.bound <= 64 < height(records, stopped.solution) < height(records, heuristic.solution)
    for method in ("exact", "best", "naive"):
        with pytest.raises(LimitReached, match=r"best 6[5-7], bound 64") as error:
            plan_arena(records, method=method, capacity_bytes=64, time_limit_s=0.02)
        assert error.value.figures["limit_bytes"] == error.value.figures["least_bytes"] == 64
        assert error.value.figures["best_bytes"] <= height(records, heuristic.solution)


@pytest.mark.parametrize("method", ["exact", "best", "naive"])
def test_what_is_proven_not_to_fit_says_what_would(method):
    records = [Record("a", 0, 2, 3, alignment=4), Record("b", 0, 2, 3, alignment=4)]
    with pytest.raises(InfeasibleError, match="7") as error:
        plan_arena(records, method=method, capacity_bytes=6)
    assert error.value.figures == {"limit_bytes": 6, "least_bytes": 7, "best_bytes": 7}
    with pytest.raises(InfeasibleError) as error:
        plan_shared(records, method=method, capacity_bytes=5)
    assert error.value.figures == {"limit_bytes": 5, "least_bytes": 6}


def test_two_limits_are_one_too_many():
    with pytest.raises(UsageError, match="give capacity_bytes alone"):
        plan_arena([Record("a", 0, 1, 1)], method="exact", capacity_bytes=5, capacity=4)
