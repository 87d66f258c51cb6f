"""What a device must hold: the weights of its segment, and its activations under our own order in our own arena."""

from __future__ import annotations

import math
from collections.abc import Sequence

from downset.clusters.model import Cluster
from downset.graph.core import Graph, Op, Tensor
from downset.pipelines.drafts import Split
from downset.pipelines.problem import SplitProblem
from downset.pipelines.strip_prices import needs
from downset.plans import Block, DeviceMemory, PipelineStage, Strip

__all__ = ["activation_bytes", "device_memory"]


def device_memory(
    problem: SplitProblem, graph: Graph, cluster: Cluster, stages: Sequence[PipelineStage],
    kept: dict[tuple[int, ...], int],
) -> tuple[DeviceMemory, ...]:  # fmt: skip
    """By device of any stage: weights of all blocks it computes, once, and its largest block's activations. `kept`
    remembers blocks already planned."""
    found = []
    for stage in stages:
        for device in stage.devices:
            mine = [(b, [strip for strip in b.strips if strip.device == device]) for b in stage.blocks]
            weights = sum(problem.weight_bytes(block.start, block.stop) for block, own in mine if own)
            described = cluster.devices[device]
            memory = math.inf if described.memory_bytes is None else described.memory_bytes
            room = memory - weights - described.runtime_bytes
            activations = 0
            for block, own in mine:
                for strip in own:
                    key = (block.start, block.stop, strip.start, strip.stop, *(strip.columns or ()))
                    if key not in kept:
                        kept[key] = activation_bytes(problem, graph, block, strip, room_bytes=room)
                    activations = max(activations, kept[key])
            found.append(DeviceMemory(device, weights, described.runtime_bytes, activations))
    return tuple(sorted(found, key=lambda held: held.device))


def activation_bytes(
    problem: SplitProblem, graph: Graph, block: Block, strip: Strip, *, room_bytes: float = math.inf
) -> int:
    """Arena of a strip's activations: its rows of every tensor, in the order of least peak. A quick placement where it
    fits into the room, else the best one."""
    from downset.arenas.plan import plan_arena
    from downset.orders.plan import plan_order

    shard = _shard(problem, graph, block, strip)
    order = plan_order(shard, memory="live", time_limit_s=0.5)
    quick = plan_arena(shard, order, method="greedy_by_size").arena_bytes
    if quick <= room_bytes or quick == order.peak_bytes:
        return quick
    return min(quick, plan_arena(shard, order, method="best", time_limit_s=0.5).arena_bytes)


def _shard(problem: SplitProblem, graph: Graph, block: Block, strip: Strip) -> Graph:
    split = Split(block.start, block.stop, ())
    rows = needs(problem, split, strip.start, strip.stop, block.frame_rows)
    part = {t: problem.tensors[t].row_bytes * (high - low) for t, (low, high) in rows.items()}
    if strip.columns is not None:
        across = problem.turned()
        frame = across.segment(block.start, block.stop).rows
        side = needs(across, split, *strip.columns, frame)
        part = {
            t: nbytes * (side[t][1] - side[t][0]) // across.tensors[t].rows for t, nbytes in part.items() if t in side
        }
    ops = sorted(op for unit in problem.units[block.start : block.stop] for op in unit)
    ops = [op for op in ops if any(t in part for t in problem.ops[op].outputs)]
    made = {t for op in ops for t in problem.ops[op].outputs}
    number = {t: place for place, t in enumerate(sorted(part))}
    tensors = tuple(Tensor(graph.tensors[t].name, (part[t],), "uint8", part[t]) for t in sorted(part))
    own = tuple(
        Op(
            graph.ops[op].name,
            graph.ops[op].kind,
            tuple(number[t] for t in problem.ops[op].inputs if t in number),
            tuple(number[t] for t in problem.ops[op].outputs if t in number),
        )
        for op in ops
    )
    crossing = [t for t in problem.crossing(block.stop) if t in made and t in number]
    inputs = tuple(number[t] for t in sorted(part) if t not in made)
    return Graph(f"{graph.name} shard", tensors, own, inputs, tuple(number[t] for t in crossing)).check()
