"""A naive oracle for pipelines by resources: every plan of one fused block a stage under leaders, its rows walked and
its loads added up here. It imports no planner, no prices of strips and no schedules.

The space: chains of cuts, disjoint sets of devices, any integer rows from the fastest device at the top down (of equal
ones by name, the source and the sink last), any leader."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import pairwise

from tests.every_staffing import every_staffing


def strip_order(cluster, source, sink):
    def key(k):
        device = cluster.devices[k]
        return (-device.mac_per_s / device.alpha, k in (source, sink), device.name)

    return sorted(range(len(cluster.devices)), key=key)


def sinks_of(problem, start, stop):
    inside = [op for unit in problem.units[start:stop] for op in unit]
    made = {tensor for op in inside for tensor in problem.ops[op].outputs}
    read = {tensor for op in inside for tensor in problem.ops[op].inputs}
    later = {tensor for unit in problem.units[stop:] for op in unit for tensor in problem.ops[op].inputs}
    return sorted(tensor for tensor in made if tensor in later or tensor in problem.kept or tensor not in read)


def frame_rows(problem, start, stop):
    return min(
        (problem.tensors[t].rows for t in sinks_of(problem, start, stop) if problem.tensors[t].rows > 1), default=1
    )


def strip(problem, start, stop, lo, hi):
    """(MACs by kind, moved bytes, bytes in, bytes out) of rows [lo, hi) of the frame, row by row backwards."""
    frame, needed = frame_rows(problem, start, stop), {}

    def want(tensor, rows):
        if rows:
            needed.setdefault(tensor, set()).update(range(min(rows), max(rows) + 1))
            whole = needed[tensor]
            needed[tensor] = set(range(min(whole), max(whole) + 1))

    out_bytes = 0
    for tensor in sinks_of(problem, start, stop):
        described = problem.tensors[tensor]
        own = set(range(lo * described.rows // frame, hi * described.rows // frame))
        want(tensor, own)
        out_bytes += len(own) * described.row_bytes
    macs, moved, made = Counter(), 0, set()
    for op in reversed([op for unit in problem.units[start:stop] for op in unit]):
        described = problem.ops[op]
        made |= set(described.outputs)
        rows = set().union(*(needed.get(tensor, set()) for tensor in described.outputs))
        if not rows:
            continue
        if described.whole:
            rows = set(range(problem.tensors[described.outputs[0]].rows))
        low, high = min(rows), max(rows) + 1
        for tensor in described.outputs:
            want(tensor, set(range(low, high)))
        macs[described.kind] += described.macs_per_row * (high - low)
        if not described.macs_per_row:
            moved += sum((high - low) * problem.tensors[tensor].row_bytes for tensor in described.outputs)
        for tensor, first, last in zip(described.inputs, described.first, described.last, strict=True):
            reads = set(range(int(first[low]), int(last[high])))
            want(tensor, reads)
            if not described.macs_per_row:
                moved += len(reads) * problem.tensors[tensor].row_bytes
    in_bytes = sum(len(rows) * problem.tensors[t].row_bytes for t, rows in needed.items() if t not in made)
    return macs, moved, in_bytes, out_bytes


def computing_s(device, macs, moved):
    seconds = sum(device.alpha_of.get(kind, device.alpha) * count for kind, count in macs.items()) / device.mac_per_s
    rate = device.mac_per_s / device.alpha if device.bytes_per_s is None else device.bytes_per_s
    return seconds + moved / rate


def message_s(cluster, one, two, nbytes):
    """Seconds for which a message occupies the network."""
    if one == two or not nbytes:
        return 0.0
    own = cluster.network
    for link in cluster.network.links:
        if set(link.pair) == {one, two}:
            own = link
    rate, fixed_s = own.bytes_per_s, own.latency_s
    if own.occupied_bytes_per_s is not None and cluster.network.overlap:
        rate = own.occupied_bytes_per_s
    if own.occupied_latency_s is not None and cluster.network.overlap:
        fixed_s = own.occupied_latency_s
    return fixed_s + nbytes / rate


def asked_s(cluster, device, which, nbytes):
    """What a message takes of a device's processor in addition to its time on the link."""
    costs = cluster.devices[device].messages
    return 0.0 if costs is None else getattr(costs, which).each_s + getattr(costs, which).byte_s * nbytes


def computes_on(cluster, device):
    return ("processor" if cluster.network.overlap else "device", device)


def transfers_on(cluster, source, target):
    network = cluster.network
    if network.kind == "shared":
        return ["medium"] if network.overlap else [("device", source), ("device", target), "medium"]
    if not network.overlap:
        return [("device", source), ("device", target)]
    duplex = [cluster.devices[end].duplex or network.duplex for end in (source, target)]
    return [
        ("send" if duplex[0] == "full" else "radio", source),
        ("receive" if duplex[1] == "full" else "radio", target),
    ]


def crossing_bytes(problem, cut):
    before = {t for unit in problem.units[:cut] for op in unit for t in problem.ops[op].outputs}
    after = {t for unit in problem.units[cut:] for op in unit for t in problem.ops[op].outputs}
    read = {t for unit in problem.units[cut:] for op in unit for t in problem.ops[op].inputs}
    crossing = (read - after) | (problem.kept & before)
    return sum(problem.tensors[tensor].rows * problem.tensors[tensor].row_bytes for tensor in crossing)


class Loads:
    """The least load of every plan there is. What messages take of a processor makes its computing last longer."""

    def __init__(self, problem, cluster, source, sink):
        self.problem, self.cluster, self.source, self.sink = problem, cluster, source, sink
        self.order = strip_order(cluster, source, sink)
        self.strips, self.stages = {}, {}

    def least(self):
        """(least load, how many plans there are)."""
        count, best = 0, float("inf")
        for stages in every_staffing(self.problem.cuts, self.order):
            chain = [(start, stop) for start, stop, _ in stages]
            for plan in itertools.product(*(self.of_stage(*stage) for stage in stages)):
                count, best = count + 1, min(best, self.load(chain, plan))
        return best, count

    def of_stage(self, start, stop, devices):
        """(leader, load of each resource) of every division."""
        if (start, stop, devices) not in self.stages:
            rows = frame_rows(self.problem, start, stop)
            found = []
            for inner in itertools.combinations_with_replacement(range(rows + 1), len(devices) - 1):
                parts = [(d, a, b) for d, (a, b) in zip(devices, pairwise((0, *inner, rows)), strict=True) if a < b]
                found += [(leader, self.loads(start, stop, leader, parts)) for leader in devices]
            self.stages[start, stop, devices] = found
        return self.stages[start, stop, devices]

    def loads(self, start, stop, leader, parts):
        loads = Counter()
        for device, lo, hi in parts:
            if (start, stop, lo, hi) not in self.strips:
                self.strips[start, stop, lo, hi] = strip(self.problem, start, stop, lo, hi)
            macs, moved, in_bytes, out_bytes = self.strips[start, stop, lo, hi]
            loads[computes_on(self.cluster, device)] += computing_s(self.cluster.devices[device], macs, moved)
            loads["works", device] += 1
            for one, two, nbytes in ((leader, device, in_bytes), (device, leader, out_bytes)):
                self.send(loads, one, two, nbytes)
        return loads

    def send(self, loads, one, two, nbytes):
        if one != two and nbytes:
            for resource in transfers_on(self.cluster, one, two):
                loads[resource] += message_s(self.cluster, one, two, nbytes)
            if self.cluster.network.overlap:
                loads["asked", one] += asked_s(self.cluster, one, "send", nbytes)
                loads["asked", two] += asked_s(self.cluster, two, "receive", nbytes)
                self.tell_others(loads, {one, two})

    def tell_others(self, loads, ends):
        for device, one in enumerate(self.cluster.devices):
            if one.messages and device not in ends:
                loads["asked", device] += one.messages.others_s

    def load(self, chain, plan):
        loads = Counter()
        for _, own in plan:
            loads.update(own)
        leaders = [leader for leader, _ in plan]
        ends = [leaders[0] if self.source is None else self.source, *leaders]
        ends.append(leaders[-1] if self.sink is None else self.sink)
        for (one, two), cut in zip(pairwise(ends), (*(start for start, _ in chain), self.problem.cuts), strict=True):
            self.send(loads, one, two, crossing_bytes(self.problem, cut))
        self.tell_others(loads, {ends[0]})
        self.tell_others(loads, {ends[-1]})
        loads["asked", ends[0]] += asked_s(self.cluster, ends[0], "frame", crossing_bytes(self.problem, 0))
        loads["asked", ends[-1]] += asked_s(
            self.cluster, ends[-1], "result", crossing_bytes(self.problem, self.problem.cuts)
        )
        for device in self.order:
            asked, works = loads.pop(("asked", device), 0.0), loads.pop(("works", device), 0)
            if works:
                loads[computes_on(self.cluster, device)] += asked
        return max(loads.values())
