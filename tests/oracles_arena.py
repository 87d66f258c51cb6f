"""Brute force for arenas, shared objects and what is built on them: every possibility, for few records.

Written from the definitions alone; nothing here calls the library's planners or bounds."""

from itertools import permutations


def meet(one, other):
    """Whether the active intervals of two records share a step."""
    return any(a < d and c < b for a, b in one.active() for c, d in other.active())


def least_height(records, *, conflicts=None):
    """The least arena: records in every sequence, each at the lowest free offset. Some sequence (by ascending offset in
    an optimal placement) yields an optimum, as lowering a record never hurts those placed later."""
    clash = conflicts or (lambda i, j: meet(records[i], records[j]))
    free = [i for i, record in enumerate(records) if record.offset is None]
    fixed = {i: record.offset for i, record in enumerate(records) if record.offset is not None}
    clashing = {i: [j for j in range(len(records)) if j != i and clash(i, j)] for i in range(len(records))}
    best = None
    for sequence in permutations(free):
        at = dict(fixed)
        for i in sequence:
            cursor, unit, size = 0, records[i].alignment, records[i].nbytes
            for low, high in sorted((at[j], at[j] + records[j].nbytes) for j in clashing[i] if j in at):
                cursor = -(-cursor // unit) * unit
                if cursor + size <= low:
                    break
                cursor = max(cursor, high)
            at[i] = -(-cursor // unit) * unit
        top = max((at[i] + records[i].nbytes for i in at), default=0)
        best = top if best is None else min(best, top)
    return best


def partitions(items):
    """Every way to split a list into unordered groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for groups in partitions(rest):
        yield [[first], *groups]
        for at in range(len(groups)):
            yield [*groups[:at], [first, *groups[at]], *groups[at + 1 :]]


def least_total(records):
    """The least total of shared objects: every partition in which no group holds two records that meet."""
    return min(
        sum(max(records[i].nbytes for i in group) for group in groups)
        for groups in partitions(list(range(len(records))))
        if not any(meet(records[i], records[j]) for group in groups for i in group for j in group if i < j)
    )
