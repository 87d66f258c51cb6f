"""A pipeline plan -> one plain ONNX model for each device of each stage, its rows and pads made explicit.

Any runtime can execute a shard: its inputs are rows of tensors of the network, under their own names, and so are its
outputs. `shards.json` beside the models says which rows, in the order in which the shards run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downset.errors import InvalidPlan, UnsupportedError, UsageError
from downset.formats.shards.model import opsets_of, refuse, shard_model
from downset.formats.whole_files import part_name, remove_stale_parts, settle_on_disk, write_whole
from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.cost import row_form
from downset.graph.edit import Edit
from downset.graph.halos import channels_last, spatial_axis
from downset.graph.row_form import Interval, RowForm, needed
from downset.plans import Pipeline
from downset.rewrites.strips import Held, strip_ops

__all__ = ["WRITTEN", "Shard", "ShardBlock", "export_shards", "shard_graph", "write_shards"]

WRITTEN = re.compile(r"shards\.json|stage\d+_block\d+_[\w.-]+\.onnx")
"""Names of the files that an export writes, and that the next one into the same folder may remove."""

_INDEX = "shards.json"

SHARDS_SCHEMA = 1
"""Of shards.json, which docs/schemas/shards.json describes: keys are added, never renamed."""


@dataclass(frozen=True, slots=True)
class ShardBlock:
    """Operators computed strip by strip: device `strips[i][0]` makes frame rows strips[i][1:], of `frame_rows`; a
    tensor of H rows is cut at floor(row · H / frame_rows). Along axis 1 the rows are columns."""

    stage: int
    block: int
    ops: tuple[int, ...]
    frame_rows: int
    strips: tuple[tuple[str, int, int], ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Shard:
    """A model file, and by tensor name the rows that it is given and that it makes."""

    stage: int
    block: int
    device: str
    file: str
    inputs: dict[str, Interval]
    outputs: dict[str, Interval]


def export_shards(folder: str | os.PathLike[str], graph: Graph, plan: Pipeline) -> tuple[Shard, ...]:
    """Write the shards of a plan. Raises UnsupportedError for tiles with columns, InvalidPlan for a plan of another
    model, and as `write_shards` does."""
    blocks = _blocks(plan)
    planned = sorted({op for block in blocks for op in block.ops})
    made = [at for at, op in enumerate(graph.ops) if any(t != ABSENT and t not in graph.constants for t in op.outputs)]
    if planned and (planned[-1] >= len(graph.ops) or not set(made) <= set(planned)):
        raise InvalidPlan(
            f"the plan's operators are not those of this model: {len(planned)} up to number {planned[-1]}, and "
            f"{graph.name} has {len(graph.ops)}"
        )
    return write_shards(folder, graph, blocks)


def _blocks(plan: Pipeline) -> list[ShardBlock]:
    names = [device.name for device in plan.cluster.devices]
    found = []
    for number, stage in enumerate(plan.stages):
        for place, block in enumerate(stage.blocks):
            if any(strip.columns is not None for strip in block.strips):
                raise UnsupportedError("tiles with columns are not exported; choose a method that cuts rows only")
            strips = tuple((names[strip.device], strip.start, strip.stop) for strip in block.strips)
            found.append(ShardBlock(number, place, block.ops, block.frame_rows, strips, block.axis))
    return found


def write_shards(folder: str | os.PathLike[str], graph: Graph, blocks: Sequence[ShardBlock]) -> tuple[Shard, ...]:
    """Write `stageN_blockM_DEVICE_CONTENT.onnx` for every strip that is not empty, and last the index `shards.json`.

    A process that is killed meanwhile leaves the folder's earlier index and all files that it names.

    Raises UnsupportedError for graphs that are channels-last or no ONNX, or that would draw at random on several
    devices, UsageError for a folder that cannot be made.
    """
    if graph.source.format == "torch":
        raise UnsupportedError(
            f"{graph.name} comes from torch.export, without ONNX's attributes; write it with torch.onnx.export, and "
            "split that"
        )
    if channels_last(graph):
        raise UnsupportedError(f"{graph.name} is channels-last; shards are ONNX, which is channels-first")
    for block in blocks:
        refuse(graph, block.ops, several=sum(start < stop for _, start, stop in block.strips) > 1)
    with _filled(Path(folder)) as beside:
        shards = _write(beside, graph, blocks)
        earlier = _earlier(Path(folder))
    for name in earlier - {shard.file for shard in shards}:
        with contextlib.suppress(OSError):
            (Path(folder) / name).unlink(missing_ok=True)
    return shards


@contextmanager
def _filled(folder: Path) -> Iterator[Path]:
    """A new folder inside, whose files come into `folder` at the end, or none of them where something failed."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    beside = folder / part_name()
    done = False
    try:
        try:
            beside.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from None
        yield beside
        try:
            remove_stale_parts(folder)
            # The index last: until then the folder holds what it held, for shards are named by their content.
            for file in sorted(beside.iterdir(), key=lambda entry: entry.name == _INDEX):
                file.replace(folder / file.name)
                settle_on_disk(folder)
        except OSError as error:
            raise UsageError(f"cannot write into {folder}: {error.strerror}") from None
        done = True
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        with contextlib.suppress(OSError):
            for place in () if done else made:
                place.rmdir()


def _write(folder: Path, graph: Graph, blocks: Sequence[ShardBlock]) -> tuple[Shard, ...]:
    form, opsets = row_form(graph, axis=_axis_of(blocks), strict=False), opsets_of(graph)
    shards: list[Shard] = []
    for block in blocks:
        for device, start, stop in block.strips:
            found = shard_graph(graph, form, block.ops, (start, stop), block.frame_rows)
            if found is None:
                continue
            part, inputs, outputs = found
            safe = re.sub(r"[^\w.-]", "_", device)
            data = shard_model(part, opsets).SerializeToString(deterministic=True)
            stem = f"stage{block.stage}_block{block.block}_{safe}_{hashlib.sha256(data).hexdigest()[:12]}"
            name = f"{stem}.onnx"
            if any(shard.file == name for shard in shards):  # names that differ in what files may not be called
                name = f"{stem}_{len(shards)}.onnx"
            write_whole(folder / name, data)
            shards.append(Shard(block.stage, block.block, device, name, inputs, outputs))
    listed = [{field: getattr(shard, field) for field in Shard.__slots__} for shard in shards]
    described = {
        "kind": "shards",
        "schema": SHARDS_SCHEMA,
        "inputs": [graph.tensors[tensor].name for tensor in graph.inputs],
        "outputs": [graph.tensors[tensor].name for tensor in graph.outputs],
        "tensors": _tensors(graph, {name for shard in shards for name in (*shard.inputs, *shard.outputs)}, form.axis),
        "shards": listed,
    }
    write_whole(folder / _INDEX, (json.dumps(described, indent=1) + "\n").encode())
    return tuple(shards)


def _axis_of(blocks: Sequence[ShardBlock]) -> int:
    """The axis that all blocks are cut along: a tensor between two has rows along one axis."""
    axes = {block.axis for block in blocks} or {0}
    if len(axes) > 1:
        raise UnsupportedError("blocks that are cut along different axes are not exported")
    return axes.pop()


def _tensors(graph: Graph, names: set[str], axis: int) -> dict[str, dict[str, Any]]:
    """What the shards pass on, and the network's inputs and outputs, as a whole, by name."""
    ends = {*graph.inputs, *graph.outputs}
    return {
        meta.name: {"shape": list(meta.shape), "dtype": meta.dtype, "rows_axis": spatial_axis(graph, index, axis)}
        for index, meta in enumerate(graph.tensors)
        if meta.name in names or index in ends
    }


def shard_graph(
    graph: Graph, form: RowForm, ops: Sequence[int], strip: Interval, frame_rows: int
) -> tuple[Graph, dict[str, Interval], dict[str, Interval]] | None:
    """(the strip as a graph, rows of its inputs by name, rows of its outputs by name); None where it makes nothing."""
    inside = set(ops)
    read_later = {t for op in range(len(graph.ops)) if op not in inside for t in graph.ops[op].inputs}
    read = {t for op in graph.ops for t in op.inputs}
    sinks = [
        tensor
        for op in sorted(inside)
        for tensor in graph.ops[op].outputs
        if tensor != ABSENT
        and graph.tensors[tensor].role == "activation"
        and (tensor in read_later or tensor in graph.outputs or not read.intersection(graph.ops[op].outputs))
    ]
    wanted = {t: (strip[0] * form.rows[t] // frame_rows, strip[1] * form.rows[t] // frame_rows) for t in sinks}
    wanted = {tensor: rows for tensor, rows in wanted.items() if rows[0] < rows[1]}
    if not wanted:
        return None
    edit = Edit(graph)
    made = {tensor for op in inside for tensor in graph.ops[op].outputs}
    held: dict[int, Held] = {}
    for tensor, rows in needed(form, ops, wanted).items():
        if tensor not in made:
            held[tensor] = (_given(edit, graph, tensor, rows, form.axis), rows)
    operators, found = strip_ops(graph, form, ops, wanted, edit.add_tensor, suffix="/strip", held=held)
    inputs = {graph.tensors[tensor].name: rows for tensor, (_, rows) in held.items()}
    outputs = {graph.tensors[tensor].name: rows for tensor, rows in wanted.items()}
    part = _named(
        graph, edit, _with_constants(graph, operators), {tensor: given for tensor, (given, _) in held.items()}, found
    )
    return part, inputs, outputs


def _with_constants(graph: Graph, ops: Sequence[Op]) -> list[Op]:
    """The operators behind those that compute their constants, where a constant's value is not in the file."""
    made_by = graph.producers()
    needed_ops: set[int] = set()
    waiting = [tensor for op in ops for tensor in op.inputs]
    while waiting:
        tensor = waiting.pop()
        known = tensor == ABSENT or tensor >= len(graph.tensors) or tensor in graph.constants
        if not known and graph.tensors[tensor].role == "constant" and made_by[tensor] not in needed_ops:
            needed_ops.add(made_by[tensor])
            waiting += graph.ops[made_by[tensor]].inputs
    return [*(graph.ops[index] for index in sorted(needed_ops)), *ops]


def _given(edit: Edit, graph: Graph, tensor: int, rows: Interval, axis: int) -> int:
    meta = graph.tensors[tensor]
    shape = list(meta.shape)
    dimension = spatial_axis(graph, tensor, axis)
    if dimension is not None:
        shape[dimension] = rows[1] - rows[0]
    return edit.add_tensor(meta.name, shape, meta)


def _named(graph: Graph, edit: Edit, ops: list[Op], given: dict[int, int], found: dict[int, int]) -> Graph:
    """The strip with compact indices; what it is given and makes has the names of the network's tensors."""
    used = sorted({*given.values(), *found.values(), *(t for op in ops for t in (*op.inputs, *op.outputs))} - {ABSENT})
    number = {old: new for new, old in enumerate(used)} | {ABSENT: ABSENT}
    names = {index: graph.tensors[tensor].name for side in (given, found) for tensor, index in side.items()}
    tensors = []
    for old in used:
        meta = edit.tensors[old]
        tensors.append(Tensor(names.get(old, meta.name), meta.shape, meta.dtype, meta.nbytes, meta.role))
    renumbered = tuple(
        Op(op.name, op.kind, tuple(number[t] for t in op.inputs), tuple(number[t] for t in op.outputs), op.attrs)
        for op in ops
    )
    constants = {number[old]: read for old, read in edit.constants.items() if old in number}
    inputs, outputs = (tuple(number[t] for t in items) for items in (given.values(), found.values()))
    return Graph(f"{graph.name} strip", tuple(tensors), renumbered, inputs, outputs, constants).check()


def _earlier(folder: Path) -> set[str]:
    """What an earlier export wrote here: nobody shall take it for part of this plan."""
    try:
        earlier = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        files = [str(shard["file"]) for shard in earlier["shards"]] if earlier.get("kind") == "shards" else []
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return set()
    return {name for name in files if name != _INDEX and WRITTEN.fullmatch(name)}
