"""Plans for two memories that are lawful and otherwise random, for tests of what executes plans."""

from downset.memory.models import memory_model
from downset.memory.storages import map_storages
from downset.results.memories import MemoriesPlan, Move, Residence
from downset.results.plans import Evidence


def random_plan(graph, random, *, fast=0.5, reuse=True):
    """A plan of the graph in its own order. Each tensor stays in fast memory between some of its uses. `reuse`: places
    in fast memory are taken again as soon as they are free."""
    storages = map_storages(graph, memory_model("tflm"))
    uses = {}
    for position, op in enumerate(graph.ops):
        for tensor in (*op.inputs, *op.outputs):
            if tensor >= 0 and storages.storages_of[tensor]:
                uses.setdefault(tensor, []).append(position)
    storage_of, residences, moves, slow = [-1] * len(graph.tensors), [], [], {}
    end = len(graph.ops)
    for number, tensor in enumerate(sorted(uses)):
        storage_of[tensor] = number
        places = sorted(
            {*uses[tensor], *([0] if tensor in graph.inputs else []), *([end] if tensor in graph.outputs else [])}
        )
        spans, nbytes = [], graph.tensors[tensor].nbytes
        for position in places:
            if random.random() < fast:
                if spans and spans[-1][1] == position and random.random() < 0.7:
                    spans[-1][1] = position + 1
                else:
                    spans.append([position, position + 1])
            if spans and random.random() < 0.5 and position != places[-1]:
                spans[-1][1] = (
                    max(spans[-1][1], places[places.index(position) + 1]) if spans[-1][1] > position else spans[-1][1]
                )
        spans = _joined([(start, min(stop, end)) for start, stop in spans if start < min(stop, end)])
        begins_fast = bool(spans) and spans[0][0] == places[0]
        covered = lambda at: any(start <= at < stop for start, stop in spans)  # noqa: B023, E731
        needs_slow = any(not covered(at) for at in places if at < end) or len(spans) > 1
        if tensor in graph.outputs and not (spans and spans[-1][1] == end):
            needs_slow = True
        if begins_fast and needs_slow:
            moves.append(Move(number, spans[0][1], False, nbytes))
        for place, (start, stop) in enumerate(spans):
            residences.append([number, start, stop, nbytes])
            if place or not begins_fast:
                moves.append(Move(number, start, True, nbytes))
        if needs_slow or not begins_fast:
            slow[number] = nbytes
    placed = _placed(residences, reuse=reuse)
    slow_offsets, top = [], 0
    for number, nbytes in slow.items():
        slow_offsets.append((number, top))
        top += -(-nbytes // 16) * 16
    moves.sort(key=lambda one: (one.position, one.into_fast))
    moved = sum(one.nbytes for one in moves)
    fast_bytes = max([0, *(one.offset + -(-size // 16) * 16 for one, size in placed)])
    found = Evidence("random", moved, 0, proven=False)
    kept = tuple(sorted((one for one, _ in placed), key=lambda one: (one.start, one.storage)))
    return MemoriesPlan(
        tuple(range(end)),
        kept,
        tuple(moves),
        tuple(slow_offsets),
        fast_bytes,
        top,
        moved,
        0,
        found,
        moved,
        0,
        tuple(storage_of),
    )


def _joined(spans):
    """Spans that do not touch each other."""
    joined = []
    for start, stop in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _placed(residences, *, reuse):
    """Each residence at the lowest place that is free, with its bytes."""
    placed = []
    for number, start, stop, nbytes in residences:
        size = -(-nbytes // 16) * 16
        meeting = sorted(
            (one.offset, one.offset + -(-other // 16) * 16)
            for one, other in placed
            if not reuse or (one.start < stop and start < one.stop)
        )
        offset = 0
        for first, last in meeting:
            if first - offset >= size:
                break
            offset = max(offset, last)
        placed.append((Residence(number, start, stop, offset), nbytes))
    return placed
