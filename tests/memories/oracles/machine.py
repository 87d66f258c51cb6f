"""The least cost of running a problem of two memories, by Dijkstra's algorithm over what both memories hold.

Shares nothing with the planners but the problem. A state is (operators that ran, storages in fast memory, storages
with a valid copy in slow memory), each a mask. Capacity holds whenever an operator runs.
"""

from heapq import heappop, heappush
from itertools import product

from downset.memories.problem import Whereabouts


def least_cost(problem, order=None):
    """The least cost of all orders, or of one."""
    count = len(problem.predecessors)
    step_of = None if order is None else {v: at for at, v in enumerate(order)}
    touched = {a.storage for accesses in problem.accesses for a in accesses}
    queue, best = [], {}

    def push(cost, state):
        if cost < best.get(state, 1 << 60):
            best[state] = cost
            heappush(queue, (cost, state))

    for fast, slow in beginnings(problem, touched):
        push(0, (0, fast, slow))
    while queue:
        cost, state = heappop(queue)
        if cost > best[state]:
            continue
        done, fast, slow = state
        if done == (1 << count) - 1 and ended(problem, touched, fast, slow):
            return cost
        for index in sorted(touched):
            bit, storage = 1 << index, problem.storages[index]
            if fast & bit:
                push(cost, (done, fast & ~bit, slow))
                if not slow & bit:
                    push(cost + storage.store_cost, (done, fast, slow | bit))
            elif slow & bit:
                push(cost + storage.load_cost, (done, fast | bit, slow))
        for v in range(count):
            if done >> v & 1 or any(not done >> u & 1 for u in problem.predecessors[v]):
                continue
            if step_of is not None and step_of[v] != bin(done).count("1"):
                continue
            for paid, after_fast, after_slow in runs(problem, done, fast, slow, v):
                push(cost + paid, (done | 1 << v, after_fast, after_slow))
    return None


def beginnings(problem, touched):
    options = []
    for index, storage in enumerate(problem.storages):
        bit = 1 << index if index in touched else 0
        options.append(
            {
                Whereabouts.NOWHERE: [(0, 0)],
                Whereabouts.SLOW: [(0, bit)],
                Whereabouts.FAST: [(bit, 0)],
                Whereabouts.EITHER: [(bit, 0), (0, bit)],
            }[storage.begins]
        )
    for chosen in product(*options):
        yield sum(fast for fast, _ in chosen), sum(slow for _, slow in chosen)


def ended(problem, touched, fast, slow):
    wanted = {
        Whereabouts.NOWHERE: lambda bit: True,
        Whereabouts.SLOW: lambda bit: slow & bit,
        Whereabouts.FAST: lambda bit: fast & bit,
        Whereabouts.EITHER: lambda bit: (fast | slow) & bit,
    }
    return all(wanted[problem.storages[index].ends](1 << index) for index in touched)


def runs(problem, done, fast, slow, v):
    """(cost, fast, slow) behind operator v, for each way in which it may run now."""
    made = {a.storage for u, accesses in enumerate(problem.accesses) if done >> u & 1 for a in accesses if a.writes} | {
        index for index, storage in enumerate(problem.storages) if storage.begins != Whereabouts.NOWHERE
    }
    ways = [(0, fast, slow)]
    for access in problem.accesses[v]:
        bit, following = 1 << access.storage, []
        for paid, now_fast, now_slow in ways:
            fresh = access.writes and access.storage not in made
            if now_fast & bit:
                following.append((paid, now_fast, now_slow & ~bit if access.writes else now_slow))
                continue
            if access.direct_cost is not None and (fresh or now_slow & bit):
                following.append((paid + access.direct_cost, now_fast, now_slow | bit))
            if fresh:
                following.append((paid, now_fast | bit, now_slow))
        ways = following
    for paid, now_fast, now_slow in ways:
        used = problem.workspace[v] + sum(
            storage.room_bytes for index, storage in enumerate(problem.storages) if now_fast >> index & 1
        )
        if used <= problem.fast_bytes:
            yield paid, now_fast, now_slow
