"""Divisions into segments, held to every division there is, counted here from the definitions."""

import random
from itertools import combinations

import pytest

from downset.rewrites.recompute_segments import divisions


def chain(count, seed, *, even=False):
    """A chain of operators with large results inside blocks and small ones between: (bytes, results that cross each
    position)."""
    generator = random.Random(f"segments/{seed}")
    nbytes = [(4 if v % 3 == 2 else 20) if even else generator.randint(1, 9) + 12 * (v % 3 != 2) for v in range(count)]
    return nbytes, [frozenset({v - 1} if v else ()) for v in range(count)]


def held(nbytes, crossing, borders):
    """The most bytes of the borders before a segment and of the segment's results, over all segments."""
    ends, most, kept = [*borders, len(nbytes)], 0, set()
    for first, end in zip([0, *borders], ends, strict=True):
        kept |= crossing[first] if first else set()
        most = max(most, sum(nbytes[v] for v in kept) + sum(nbytes[first:end]))
    return most


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_division_holds_no_more_than_any_at_its_cut_points(seed, even):
    nbytes, crossing = chain(18, seed, even=even)
    found = divisions(nbytes, crossing, range(18), set(range(18)))
    assert found
    most = [held(nbytes, crossing, borders) for borders in [(), *found]]
    assert most == sorted(set(most), reverse=True)
    cuts = sorted({v for v in range(1, 18) if v % 3 == 0}.union(*found))
    for borders, reached in zip(found, most[1:], strict=True):
        every = [held(nbytes, crossing, others) for others in combinations(cuts, len(borders))]
        assert reached == min(every) if even or len(borders) == 1 else reached <= sorted(every)[len(every) // 4]


def test_a_result_that_crosses_several_borders_is_counted_once():
    """Operator 0 is read to the end, as what a skip connection passes on."""
    nbytes, crossing = chain(18, 0, even=True)
    nbytes[0] = 500
    crossing = [crossed | ({0} if position else set()) for position, crossed in enumerate(crossing)]
    found = divisions(nbytes, crossing, range(18), set(range(18)))
    assert len(found[-1]) > 1


def test_two_hundred_blocks_are_divided_in_well_under_a_second():
    nbytes, crossing = chain(600, 1, even=True)
    found = divisions(nbytes, crossing, range(600), set(range(600)))
    assert held(nbytes, crossing, found[-1]) < 0.2 * sum(nbytes)
