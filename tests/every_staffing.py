"""Every way to part a chain into stages and to give each stage devices of its own, for oracles that enumerate plans."""

from __future__ import annotations

import itertools
from itertools import pairwise


def every_staffing(cuts, order):
    """Lists of (start, stop, devices): all chains of cuts 0 ... `cuts`, all disjoint sets of devices, in `order`; some
    may be idle."""
    for count in range(1, min(cuts, len(order)) + 1):
        for inner in itertools.combinations(range(1, cuts), count - 1):
            chain = list(pairwise((0, *inner, cuts)))
            for owner in itertools.product(range(-1, count), repeat=len(order)):
                if set(range(count)) <= set(owner):
                    yield [
                        (*ends, tuple(device for device, own in zip(order, owner, strict=True) if own == stage))
                        for stage, ends in enumerate(chain)
                    ]
