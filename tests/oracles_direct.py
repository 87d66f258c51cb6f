"""A naive oracle of direct hand-over: every plan of one block a stage, its loads by prices of its own.

It reads a `SplitProblem`'s operators and nothing of the planners. Who made a row sends it; of several the one that has
sent least so far."""

from __future__ import annotations

import itertools
from itertools import pairwise

from tests.every_staffing import every_staffing
from tests.oracles_loads import message_s


def sinks(problem, start, stop):
    inside = [op for unit in problem.units[start:stop] for op in unit]
    later = {t for unit in problem.units[stop:] for op in unit for t in problem.ops[op].inputs} | set(problem.kept)
    read = {t for op in inside for t in problem.ops[op].inputs}
    made = {t for op in inside for t in problem.ops[op].outputs}
    return sorted(t for t in made if t in later or t not in read)


class Strip:
    """Rows [lo, hi) of a block's frame. `needs[t]`: rows (first, last + 1) of a tensor that it reads or makes."""

    def __init__(self, problem, start, stop, lo, hi):
        out = sinks(problem, start, stop)
        heights = [problem.tensors[t].rows for t in out if problem.tensors[t].rows > 1]
        frame = min(heights, default=1)
        self.needs = {}
        for t in out:
            rows = problem.tensors[t].rows
            low, high = lo * rows // frame, hi * rows // frame
            if low < high:
                self.needs[t] = (low, high)
        self.macs = self.moved = 0
        made = set()
        for op in reversed([op for unit in problem.units[start:stop] for op in unit]):
            described = problem.ops[op]
            wanted = [self.needs[t] for t in described.outputs if t in self.needs]
            made.update(described.outputs)
            if not wanted:
                continue
            low, high = min(w[0] for w in wanted), max(w[1] for w in wanted)
            if described.whole:
                low, high = 0, problem.tensors[described.outputs[0]].rows
            for t in described.outputs:
                self.needs[t] = (low, high)
            self.macs += described.macs_per_row * (high - low)
            free = not described.macs_per_row
            self.moved += free * (high - low) * sum(problem.tensors[t].row_bytes for t in described.outputs)
            for place, t in enumerate(described.inputs):
                span = (int(described.first[place][low]), int(described.last[place][high]))
                self.moved += free * (span[1] - span[0]) * problem.tensors[t].row_bytes
                old = self.needs.get(t, span)
                self.needs[t] = (min(old[0], span[0]), max(old[1], span[1]))
        self.reads = {t: span for t, span in self.needs.items() if t not in made}
        self.makes = {t: span for t, span in self.needs.items() if t in out}


def rows_of_frame(problem, start, stop):
    heights = [problem.tensors[t].rows for t in sinks(problem, start, stop) if problem.tensors[t].rows > 1]
    return min(heights, default=1)


def every_plan(problem, cluster, order):
    """(stages as (start, stop, ((device, lo, hi), ...)), entry, exit): cuts x devices x rows x ends."""
    for staffed in every_staffing(problem.cuts, order):
        choices = []
        for start, stop, devices in staffed:
            rows = rows_of_frame(problem, start, stop)
            inner_rows = itertools.combinations(range(1, rows), len(devices) - 1)
            choices.append([(start, stop, parts_of(devices, (0, *mid, rows))) for mid in inner_rows])
        for stages in itertools.product(*choices):
            for entry in (d for d, _, _ in stages[0][2]):
                for exit_ in (d for d, _, _ in stages[-1][2]):
                    yield stages, entry, exit_


def parts_of(devices, bounds):
    return tuple((device, low, high) for device, (low, high) in zip(devices, pairwise(bounds), strict=True))


def messages_of(problem, stages, entry, exit_):
    """(strips as (device, Strip), messages {(stage, source, target): bytes}) of a frame."""
    holders = {}
    frame = {t for op in problem.ops for t in op.inputs} - {t for op in problem.ops for t in op.outputs}
    for t in frame:
        for row in range(problem.tensors[t].rows):
            holders.setdefault((t, row), [entry])
    strips, messages = [], {}

    def fetch(place, wanted):
        sent = []
        for device, t, span in wanted:
            rows = [row for row in range(*span) if device not in holders[t, row] and problem.tensors[t].row_bytes]
            sent += [(holders[t, row], device, (t, row)) for row in rows]
        got = []
        for makers, device, key in sent:
            if (device, key) in got:
                continue
            source = min(makers, key=lambda maker: (sum(b for (_, s, _), b in messages.items() if s == maker), maker))
            messages[place, source, device] = (
                messages.get((place, source, device), 0) + problem.tensors[key[0]].row_bytes
            )
            got.append((device, key))
        for device, key in got:
            holders[key] = [*holders[key], device]

    for place, (start, stop, parts) in enumerate(stages):
        own = [(device, Strip(problem, start, stop, lo, hi)) for device, lo, hi in parts]
        fetch(place, [(device, t, span) for device, strip in own for t, span in strip.reads.items()])
        for device, strip in own:
            strips.append((device, strip))
            for t, span in strip.makes.items():
                for row in range(*span):
                    holders.setdefault((t, row), [])
                    if device not in holders[t, row]:
                        holders[t, row].append(device)
    fetch(len(stages), [(exit_, t, (0, problem.tensors[t].rows)) for t in sorted(problem.kept)])
    return strips, messages


def load_s(problem, cluster, plan, *, source=None, sink=None):
    """The busiest resource's seconds for a frame: no schedule of the plan is shorter."""
    stages, entry, exit_ = plan
    strips, messages = messages_of(
        problem, stages, entry if source is None else source, exit_ if sink is None else sink
    )
    computing, sending, receiving = ([0.0] * len(cluster.devices) for _ in range(3))
    medium = 0.0
    for device, strip in strips:
        described = cluster.devices[device]
        rate = described.bytes_per_s or described.mac_per_s / described.alpha
        computing[device] += described.alpha * strip.macs / described.mac_per_s + strip.moved / rate
    for (_, one, two), nbytes in messages.items():
        seconds = message_s(cluster, one, two, nbytes)
        sending[one] += seconds
        receiving[two] += seconds
        medium += seconds
    network = cluster.network
    loads = [medium] if network.kind == "shared" else []
    for device in range(len(cluster.devices)):
        own = (computing[device], sending[device], receiving[device])
        if not network.overlap:
            loads.append(sum(own))
        elif network.kind == "shared":
            loads.append(own[0])
        elif (cluster.devices[device].duplex or network.duplex) == "full":
            loads += own
        else:
            loads += [own[0], own[1] + own[2]]
    return max(loads)
