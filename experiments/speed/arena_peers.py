"""Other projects' planners of one arena, on the same records: those that are installed.

Each takes records and a time limit, and returns offsets by record; it is checked and timed by the caller. Steps are
handed on as ranks, which changes no plan and spares the peers that keep a list for each step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from types import SimpleNamespace

from downset import Record
from downset.memory.bounds import offsets_bound
from tests.arenas.oracles.gaps import place_in_order

__all__ = ["PEERS", "cp_sat", "installed"]

Planner = Callable[[Sequence[Record], float], Sequence[int]]
HILL_CLIMB_ROUNDS = 500
"""Vela's default of 99,999 takes minutes in Python on instances this hard."""


def python_by_size(records: Sequence[Record], time_limit_s: float) -> Sequence[int]:
    """Greedy by size in Python: what the paper's algorithm 3 costs when it is not compiled. Our own."""
    del time_limit_s
    sequence = sorted(range(len(records)), key=lambda index: (-records[index].nbytes, index))
    return place_in_order(records, sequence)


def _ranks(records: Sequence[Record]) -> list[tuple[int, int]]:
    """First and last step of each record, inclusive, as ranks among all steps."""
    steps = sorted(set(chain.from_iterable((record.start, record.stop) for record in records)))
    number = {step: place for place, step in enumerate(steps)}
    return [(number[record.start], number[record.stop] - 1) for record in records]


def vela_hill_climb(records: Sequence[Record], time_limit_s: float) -> Sequence[int]:
    """Arm Vela's search, for HILL_CLIMB_ROUNDS."""
    from ethosu.vela.hillclimb_allocation import allocate_live_ranges

    del time_limit_s
    random.seed(0)  # the search draws from the global generator
    ranges = [
        SimpleNamespace(
            start_time=first, end_time=last, size=record.nbytes, get_alignment=lambda unit=record.alignment: unit
        )
        for record, (first, last) in zip(records, _ranks(records), strict=True)
    ]
    return list(allocate_live_ranges(ranges, HILL_CLIMB_ROUNDS, 1 << 62))


class _Spec:
    """The fields of a tensor that ExecuTorch's planner reads."""

    mem_id = inplace_base = None

    def __init__(self, nbytes: int, lifetime: tuple[int, int]) -> None:
        self.allocated_memory, self.lifetime = nbytes, list(lifetime)

    def realign(self, alignment: int) -> int:
        self.allocated_memory = -(-self.allocated_memory // alignment) * alignment
        return self.allocated_memory


def executorch_greedy(records: Sequence[Record], time_limit_s: float) -> Sequence[int]:
    """ExecuTorch's default planner."""
    from executorch.exir.memory_planning import greedy

    del time_limit_s
    specs = [_Spec(record.nbytes, steps) for record, steps in zip(records, _ranks(records), strict=True)]
    result = greedy(1, specs, None, None)
    return [result.spec_dict[spec].mem_offset for spec in specs]


def cp_sat(records: Sequence[Record], time_limit_s: float) -> Sequence[int]:
    """OR-Tools: rectangles that do not overlap, the highest end least, on one worker."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    most = sum(record.nbytes for record in records)
    height = model.new_int_var(offsets_bound(records), most, "")
    offsets, sides, times = [], [], []
    for record, (first, last) in zip(records, _ranks(records), strict=True):
        offsets.append(model.new_int_var(0, most - record.nbytes, ""))
        sides.append(model.new_fixed_size_interval_var(offsets[-1], record.nbytes, ""))
        times.append(model.new_fixed_size_interval_var(first, last + 1 - first, ""))
        model.add(offsets[-1] + record.nbytes <= height)
    model.add_no_overlap_2d(times, sides)
    model.add_cumulative(times, [record.nbytes for record in records], height)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = time_limit_s
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    return [solver.value(offset) for offset in offsets]


PEERS: Mapping[str, tuple[str, Planner]] = {
    "plain Python, by size": ("downset", python_by_size),
    "ExecuTorch greedy": ("executorch", executorch_greedy),
    "Vela hill climb": ("ethosu", vela_hill_climb),
    "CP-SAT": ("ortools", cp_sat),
}
"""By our name of a peer: the package that it needs, and its planner."""


def installed() -> dict[str, Planner]:
    return {name: planner for name, (package, planner) in PEERS.items() if find_spec(package) is not None}
