"""Pipelines whose stages are whole layers between any two downsets, each stage on one device: the least period.

Source: ours; Hu et al. (PipeEdge, 2022) search chains of layers so. Here a stage is what lies between any two downsets,
so that networks with skips need no chain that someone else chose.
Names: vertex → a unit of the problem, or several units together (`contracted`); downset → vertices closed under
predecessors; state → (downset, multiset of devices used).
A tensor goes from its maker to the first stage that reads it, and from every reader to the next one: stages that do not
read it have no part in it. So the load of a stage depends on the downsets at its two ends alone, and the least period
is a shortest path over states (native/pipelines/whole_layers.hpp).
Complexity: O(downsets² · (tensors over a cut + types · multisets)) for each limit on the period that is tried; limits
rise from a bound by a tenth, and those that are too short cost little.
Deviations: exact over the vertices. These are the units if the units have at most `downset_limit` downsets; otherwise
the two neighbours with the least work become one vertex until the limit holds. With more than 256 multisets devices of
like speed count as equally slow. A message's latency counts for each tensor; all links count as the slowest; the search
leaves out source, sink and what messages take of processors. So its plan is a beginning, which others price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset import native
from downset.budget import MANY, Clock
from downset.clusters.model import Cluster
from downset.errors import LimitReached
from downset.lattice import bits, count_downsets, downsets, reduction, topological
from downset.pipelines.device_order import canonical, rounded
from downset.pipelines.problem import SplitProblem

__all__ = ["WholeLayers", "contracted", "whole_layers"]

_DOWNSETS = 8000
"""The most downsets that are searched."""
_SETS = 256
"""The most multisets of devices that are searched."""
_STEP = 1.1
"""How much longer each limit on the period is than the one before."""
_CLOSE = 1e-6
_RELAXED = 500
"""How many labels take as long as a state of other searches."""
_MOST_UNITS = 400
"""The most units that are searched. Contracting more takes as long as the other searches."""


@dataclass(frozen=True, slots=True)
class WholeLayers:
    """`stages[i]`: the units of stage i, ascending. `devices[i]`: its device. `period_s`: the largest load.
    `exact`: whether each unit is a vertex, and each device counts as it is."""

    stages: tuple[tuple[int, ...], ...]
    devices: tuple[int, ...]
    period_s: float
    downsets: int
    states: int
    exact: bool


def whole_layers(
    problem: SplitProblem, cluster: Cluster, *, clock: Clock, downset_limit: int = _DOWNSETS
) -> WholeLayers | None:
    """The stages of least period over the downsets of the problem's units, which need not be a chain; None if the clock
    or a limit ends the search first."""
    if len(problem.units) > _MOST_UNITS or clock.late():
        return None
    work = [sum(_macs(problem, op) for op in unit) for unit in problem.units]
    vertices = contracted(unit_predecessors(problem), work, downset_limit, clock)
    if vertices is None:
        return None
    form = canonical(cluster)
    if form.sets() > _SETS:
        form = rounded(form, _SETS, faster=False)
    search = _DownsetSearch(problem, cluster, form.type, form.order, vertices)
    return search.best(clock, exact=len(vertices) == len(problem.units) and form.type == canonical(cluster).type)


def unit_predecessors(problem: SplitProblem) -> tuple[int, ...]:
    """By unit: the mask of the units whose results it reads."""
    made_by = {
        tensor: place for place, unit in enumerate(problem.units) for op in unit for tensor in problem.ops[op].outputs
    }
    masks = []
    for place, unit in enumerate(problem.units):
        read = {made_by.get(tensor, place) for op in unit for tensor in problem.ops[op].inputs}
        masks.append(sum(1 << other for other in read - {place}))
    return tuple(masks)


def contracted(
    predecessors: Sequence[int], work: Sequence[float], downset_limit: int, clock: Clock
) -> tuple[int, ...] | None:
    """Masks of vertices that together have at most `downset_limit` downsets, in a topological order; None at the end of
    the clock. Two vertices become one where one directly waits for the other and no third lies between, those with the
    least work first, so that what waits for what stays free of cycles."""
    sequence = [_in_order([1 << v for v in range(len(predecessors))], predecessors)]
    while not _within(sequence[-1], predecessors, downset_limit):
        groups = sequence[-1]
        for _ in range(max(1, len(groups) // 16)):
            groups = _merged(groups, predecessors, work)
            if clock.late():
                return None
        sequence.append(groups)
        if len(groups) == 1:
            break
    return sequence[-1]


def _merged(groups: tuple[int, ...], predecessors: Sequence[int], work: Sequence[float]) -> tuple[int, ...]:
    """The groups with the two neighbours of least work as one."""
    if len(groups) < 2:
        return groups
    own = [sum(work[v] for v in bits(group)) for group in groups]
    direct = reduction(_between(groups, predecessors))
    pairs = [(own[one] + own[two], one, two) for two in range(len(groups)) for one in bits(direct[two])]
    _, one, two = min(pairs) if pairs else (0.0, 0, 1)
    joined = [group for place, group in enumerate(groups) if place not in (one, two)]
    return _in_order([*joined, groups[one] | groups[two]], predecessors)


def _between(groups: Sequence[int], predecessors: Sequence[int]) -> tuple[int, ...]:
    """By group: the mask of the groups that it directly waits for."""
    group_of = {v: place for place, group in enumerate(groups) for v in bits(group)}
    masks = []
    for place, group in enumerate(groups):
        before = {group_of[u] for v in bits(group) for u in bits(predecessors[v])}
        masks.append(sum(1 << other for other in before - {place}))
    return tuple(masks)


def _in_order(groups: Sequence[int], predecessors: Sequence[int]) -> tuple[int, ...]:
    return tuple(groups[place] for place in topological(_between(groups, predecessors)))


def _within(groups: Sequence[int], predecessors: Sequence[int], limit: int) -> bool:
    try:
        count_downsets(_between(groups, predecessors), limit=limit)
    except LimitReached:
        return False
    return True


def _macs(problem: SplitProblem, op: int) -> int:
    described = problem.ops[op]
    return described.macs_per_row * problem.tensors[described.outputs[0]].rows if described.macs_per_row else 0


class _DownsetSearch:
    """The compiled search over vertices, masks of units in a topological order. `types`: of the devices in `order`."""

    def __init__(
        self,
        problem: SplitProblem,
        cluster: Cluster,
        types: Sequence[int],
        order: Sequence[int],
        vertices: Sequence[int],
    ) -> None:
        self.vertices, self.types, self.order = vertices, types, order
        self.shared = cluster.network.kind == "shared"
        between = _between(vertices, unit_predecessors(problem))
        self.downsets = list(downsets(between))
        self.compute_s = [
            [self._compute_s(problem, cluster, order[types.index(kind)], vertex) for vertex in vertices]
            for kind in sorted(set(types))
        ]
        network = cluster.occupied.network
        byte_s = max(1.0 / network.bytes_per_s, *(1.0 / link.bytes_per_s for link in network.links), 0.0)
        latency_s = max(network.latency_s, *(link.latency_s for link in network.links), 0.0)
        tensors = _tensors(problem, vertices)
        message_s = [latency_s + problem.tensors[tensor].nbytes * byte_s for tensor in tensors]
        self.problem = native.compiled.WholeLayerProblem(
            len(vertices),
            [list(bits(downset)) for downset in self.downsets],
            list(tensors.values()),
            message_s,
            self.compute_s,
            types,
            full=[int(cluster.duplex(order[types.index(kind)]) == "full") for kind in sorted(set(types))],
            overlap=cluster.network.overlap,
            shared=self.shared,
        )

    def _compute_s(self, problem: SplitProblem, cluster: Cluster, device: int, vertex: int) -> float:
        one, seconds = cluster.devices[device], 0.0
        for op in (op for unit in bits(vertex) for op in problem.units[unit]):
            described = problem.ops[op]
            if described.macs_per_row:
                seconds += _macs(problem, op) * one.alpha_of.get(described.kind, one.alpha) / one.mac_per_s
                seconds += sum(nbytes for _, nbytes in described.weights) * one.weight_byte_s
            else:
                moved = sum(problem.tensors[tensor].nbytes for tensor in (*described.inputs, *described.outputs))
                seconds += moved / one.moved_per_s
        return seconds

    def best(self, clock: Clock, *, exact: bool) -> WholeLayers | None:
        low = max(min(line[v] for line in self.compute_s) for v in range(len(self.vertices)))
        high = max(sum(line) for line in self.compute_s)  # all on a device of the slowest type
        steps, states, limit = None, 0, min(low * _STEP, high)
        while steps is None or (self.shared and low < high * (1 - _CLOSE)):
            if clock.late():
                break
            seconds, _ = clock.native(MANY)  # the downsets are few, so a limit of states need not end it inside
            outcome, length_s, stages, visited = native.compiled.whole_layer_stages(
                self.problem, limit_s=limit, time_limit_s=seconds
            )
            states += visited
            clock.count(visited // _RELAXED)
            if outcome is native.compiled.Outcome.LIMIT:
                break
            if outcome is native.compiled.Outcome.SOLVED:
                steps, high = stages, limit if self.shared else length_s
                limit = (low + high) / 2
            elif steps is None:
                low, limit = limit, min(limit * _STEP, high * (1 + _CLOSE))
            else:
                low, limit = limit, (limit + high) / 2
        return None if steps is None else self._answer(steps, high, states, exact=exact)

    def _answer(self, steps: Sequence[tuple[int, int]], period_s: float, states: int, *, exact: bool) -> WholeLayers:
        before, stages, devices = 0, [], []
        free = {kind: [k for k, own in zip(self.order, self.types, strict=True) if own == kind] for kind in self.types}
        for place, kind in steps:
            vertices = self.downsets[place] & ~before
            stages.append(tuple(sorted(unit for v in bits(vertices) for unit in bits(self.vertices[v]))))
            devices.append(free[kind].pop(0))
            before = self.downsets[place]
        return WholeLayers(tuple(stages), tuple(devices), period_s, len(self.downsets), states, exact)


def _tensors(problem: SplitProblem, vertices: Sequence[int]) -> dict[int, list[int]]:
    """By tensor that is read or is a result: the vertex that makes it or -1, 1 if it is a result, and its readers."""
    vertex_of = {unit: place for place, vertex in enumerate(vertices) for unit in bits(vertex)}
    tensors: dict[int, list[int]] = {}
    made_by = {
        tensor: vertex_of[place]
        for place, unit in enumerate(problem.units)
        for op in unit
        for tensor in problem.ops[op].outputs
    }
    readers: dict[int, set[int]] = {tensor: set() for tensor in sorted(problem.kept)}
    for place, unit in enumerate(problem.units):
        for tensor in (tensor for op in unit for tensor in problem.ops[op].inputs):
            readers.setdefault(tensor, set()).add(vertex_of[place])
    for tensor, own in readers.items():
        if problem.tensors[tensor].nbytes:
            tensors[tensor] = [made_by.get(tensor, -1), int(tensor in problem.kept), *sorted(own)]
    return tensors
