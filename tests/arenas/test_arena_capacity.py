"""The search under a capacity, where no byte is to spare: rectangles cut from one of known height."""

import random

import pytest

from downset.arenas.check_records import check_placement
from downset.arenas.exact import exact
from downset.errors import InfeasibleError
from downset.memory.records import Record

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


def test_two_searches_of_as_many_nodes_agree():
    records = cut(3, 40)
    assert exact(records, node_limit=500) == exact(records, node_limit=500)
