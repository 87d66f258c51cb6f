"""Min-cost flow for shared objects: which tensor takes over whose object, at the least growth in all.

Source: Lee et al. 2019, as compared in "Efficient Memory Management for Deep Neural Net Inference", table 1, in the
    formulation of LiteRT: record i is a node on the left (its object is handed on) and on the right (it gets one). An
    edge from the source to right i opens an object at the cost of i's size; an edge from left j to right i hands j's
    object to i, who starts after j stopped, at the cost of what i is larger.
Names: a path from source to sink raises the flow by one; its length is what the assignment grows by.
Complexity: n paths, each by a queue of improved nodes (SPFA), O(n³) as a rule.
Deviations: growth is counted between neighbours of a chain, so the cost can exceed the objects' real total, which is
    the sum of the largest records. Gives 8.727 MiB on DeepLab v3 where the paper prints 8.364. A record with gaps holds
    its object through them. When the time is up, records that are alone in their chain share further objects; all
    records do where there are more than `_MOST_PAIRS` pairs, which would take gigabytes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from downset.arenas.objects_fit import completed
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["min_cost_flow"]

_MOST_PAIRS = 4_000_000


def min_cost_flow(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Assign records to objects by a flow of least cost."""
    check_ties(ties)
    clock, count = clock.timed(), len(records)
    object_of = [-1] * count
    if _pairs(records) > _MOST_PAIRS:
        return replace(completed(records, object_of, clock), stopped_by="memory")
    order = sorted(range(count), key=lambda i: (records[i].start, i))
    heads, costs, edges_from = _network([records[i] for i in order], clock)
    flows = [0] * len(heads)
    saturated = _saturate((heads, costs, edges_from), flows, clock, source=2 * count, sink=2 * count + 1)
    objects = 0
    for first in range(count):
        if object_of[order[first]] >= 0:
            continue
        chain, node = list[int](), first
        while node >= 0:  # along the records that hand the object on
            chain.append(order[node])
            node = next(
                (heads[e] - count for e in edges_from[node] if e % 2 == 0 and flows[e] and heads[e] >= count), -1
            )
        if saturated or len(chain) > 1:
            for index in chain:
                object_of[index] = objects
            objects += 1
    return completed(records, object_of, clock)


def _pairs(records: Sequence[Record]) -> int:
    """How many pairs of records there are of which the later may get the object of the earlier."""
    stops = sorted(record.stop for record in records)
    return sum(bisect_right(stops, record.start) for record in records)


def _network(records: Sequence[Record], clock: Clock) -> tuple[list[int], list[int], list[list[int]]]:
    """Edges in pairs, 2e forward and 2e+1 back, all of capacity one: their heads, costs, and by node. Some are left out
    when the time is up: no flow is then sent."""
    count = len(records)
    source, sink = 2 * count, 2 * count + 1
    heads: list[int] = []
    costs: list[int] = []
    edges_from: list[list[int]] = [[] for _ in range(2 * count + 2)]

    def connect(tail: int, head: int, cost: int) -> None:
        edges_from[tail].append(len(heads))
        heads.append(head)
        costs.append(cost)
        edges_from[head].append(len(heads))
        heads.append(tail)
        costs.append(-cost)

    in_use: list[tuple[int, int]] = []
    stopped: list[int] = []
    for index, record in enumerate(records):
        if clock.left_s() == 0:
            break
        while in_use and in_use[0][0] <= record.start:
            stopped.append(heapq.heappop(in_use)[1])
        heapq.heappush(in_use, (record.stop, index))
        connect(source, index, 0)
        connect(count + index, sink, 0)
        connect(source, count + index, record.nbytes)
        for earlier in stopped:
            connect(earlier, count + index, max(record.nbytes - records[earlier].nbytes, 0))
    return heads, costs, edges_from


def _saturate(
    network: tuple[Sequence[int], Sequence[int], Sequence[Sequence[int]]],
    flows: list[int],
    clock: Clock,
    *,
    source: int,
    sink: int,
) -> bool:
    """Send flow along shortest paths; whether none is left. The flow that is sent when the time is up is a flow."""
    heads, costs, edges_from = network
    unreached = sum(abs(cost) for cost in costs) + 1
    while True:
        distance = [unreached] * len(edges_from)
        into = [-1] * len(edges_from)
        waiting = [False] * len(edges_from)
        distance[source] = 0
        queue = deque([source])
        while queue:
            if clock.left_s() == 0:
                return False
            node = queue.popleft()
            waiting[node] = False
            here = distance[node]
            for edge in edges_from[node]:
                # A forward edge is open while empty, its twin while it is full.
                if flows[edge] if edge % 2 == 0 else not flows[edge - 1]:
                    continue
                head, reached = heads[edge], here + costs[edge]
                if reached < distance[head]:
                    distance[head] = reached
                    into[head] = edge
                    if not waiting[head]:
                        waiting[head] = True
                        queue.append(head)
        if distance[sink] == unreached:
            return True
        node = sink
        while node != source:
            edge = into[node]
            if edge % 2 == 0:
                flows[edge] = 1
            else:
                flows[edge - 1] = 0
            node = heads[edge ^ 1]
