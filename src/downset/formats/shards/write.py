"""Writing of the shards of a pipeline plan: a plain ONNX model for each strip, with explicit rows and pads.

Any runtime can execute a shard. Its inputs and outputs are rows of the network's tensors, and have the names of those
tensors. `shards.json` beside the models lists the shards in the order in which they run, with their rows.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downset.errors import InvalidPlan, UnsupportedError, UsageError
from downset.formats.shards.cut import Cutter, FrameTile
from downset.formats.shards.model import opsets_of, refuse, shard_model
from downset.graph.core import ABSENT, Graph
from downset.graph.halos import channels_last, spatial_axis
from downset.graph.row_form import Interval
from downset.process.whole_files import part_beside, settle_on_disk, write_whole
from downset.results.pipelines import Pipeline, Rows

__all__ = [
    "WRITTEN",
    "Shard",
    "ShardBlock",
    "axis_of",
    "check_exportable",
    "export_shards",
    "shard_blocks",
    "write_shards",
]

WRITTEN = re.compile(r"shards\.json|stage\d+_block\d+_[\w.-]+\.onnx")
"""Names of the files that an export writes, and that the next one into the same folder may remove."""

_INDEX = "shards.json"

SHARDS_SCHEMA = 1
"""The version of shards.json, which docs/schemas/shards.json describes: keys are added, never renamed."""


@dataclass(frozen=True, slots=True)
class ShardBlock:
    """Operators that are computed strip by strip. Device `strips[i][0]` makes the rows from `strips[i][1]` up to, not
    including, `strips[i][2]`, out of `frame_rows`. A tensor of H rows is cut at floor(row · H / frame_rows). If `axis`
    is 1, these rows are the network's columns.

    `columns`: the columns of each strip, out of `frame_columns`, where the block is cut into tiles. `halos`: whether a
    strip also outputs the rows that it makes beyond its own, for devices that fetch them by the plan."""

    stage: int
    block: int
    ops: tuple[int, ...]
    frame_rows: int
    strips: tuple[tuple[str, int, int], ...]
    axis: int = 0
    columns: tuple[Interval | None, ...] = ()
    frame_columns: int = 0
    halos: bool = False

    def tile(self, number: int) -> FrameTile:
        """The rows and columns of strip `number`, in the form that `Cutter.part` takes."""
        _, start, stop = self.strips[number]
        columns = self.columns[number] if self.columns else None
        return FrameTile(start, stop, self.frame_rows, columns, self.frame_columns, self.halos)


@dataclass(frozen=True, slots=True)
class Shard:
    """A model file, with the rows of each tensor that it reads and makes, by the tensor's name. If the block is cut
    into tiles, the columns are given as well."""

    stage: int
    block: int
    device: str
    file: str
    inputs: dict[str, Interval]
    outputs: dict[str, Interval]
    input_columns: dict[str, Interval] = field(default_factory=dict)
    output_columns: dict[str, Interval] = field(default_factory=dict)


def export_shards(folder: str | os.PathLike[str], graph: Graph, plan: Pipeline) -> tuple[Shard, ...]:
    """Write the shards of a plan. Raises InvalidPlan if the plan is for another model, and the errors of
    `write_shards`."""
    return write_shards(folder, graph, shard_blocks(graph, plan))


def shard_blocks(graph: Graph, plan: Pipeline) -> tuple[ShardBlock, ...]:
    """The blocks of a plan for this graph, in the order in which they run. Raises InvalidPlan if the plan is for
    another model."""
    blocks = _blocks(plan)
    planned = sorted({op for block in blocks for op in block.ops})
    computing = [
        index for index, op in enumerate(graph.ops) if any(t != ABSENT and t not in graph.constants for t in op.outputs)
    ]
    if planned and (planned[-1] >= len(graph.ops) or not set(computing) <= set(planned)):
        raise InvalidPlan(
            f"the plan's operators are not those of this model: {len(planned)} up to number {planned[-1]}, and "
            f"{graph.name} has {len(graph.ops)}"
        )
    return tuple(blocks)


def _blocks(plan: Pipeline) -> list[ShardBlock]:
    names = [device.name for device in plan.cluster.devices]
    blocks = []
    for number, stage in enumerate(plan.stages):
        for place, block in enumerate(stage.blocks):
            strips = tuple((names[strip.device], strip.start, strip.stop) for strip in block.strips)
            columns = tuple(strip.columns for strip in block.strips)
            frame_columns = max((span[1] for span in columns if span is not None), default=0)
            blocks.append(
                ShardBlock(
                    number,
                    place,
                    block.ops,
                    block.frame_rows,
                    strips,
                    block.axis,
                    columns,
                    frame_columns,
                    block.rule != "leader",
                )
            )
    return blocks


def write_shards(folder: str | os.PathLike[str], graph: Graph, blocks: Sequence[ShardBlock]) -> tuple[Shard, ...]:
    """Write `stageN_blockM_DEVICE_CONTENT.onnx` for every strip that is not empty, and last the index `shards.json`.
    CONTENT is the start of a hash of the model.

    If the process is killed meanwhile, the folder still has its earlier index and all files that this index names. At
    the end the files that only the earlier index names are removed.

    Raises UnsupportedError for what shards cannot hold: graphs that are channels-last or from torch.export, operators
    with bodies, operators that draw random numbers on several devices, and blocks that are cut along different axes.
    Raises UsageError for a folder that cannot be made or written.
    """
    check_exportable(graph, blocks)
    with _filled(Path(folder)) as beside:
        shards = _write(beside, graph, blocks)
        earlier = _earlier(Path(folder))
    for name in earlier - {shard.file for shard in shards}:
        with contextlib.suppress(OSError):
            (Path(folder) / name).unlink(missing_ok=True)
    return shards


def check_exportable(graph: Graph, blocks: Sequence[ShardBlock]) -> None:
    """Raise UnsupportedError for graphs and operators that shards cannot hold, as `write_shards` does."""
    if graph.source.format == "torch":
        raise UnsupportedError(
            f"{graph.name} comes from torch.export, without ONNX's attributes; write it with torch.onnx.export, and "
            "split that"
        )
    if channels_last(graph):
        raise UnsupportedError(f"{graph.name} is channels-last; shards are ONNX, which is channels-first")
    for block in blocks:
        refuse(graph, block.ops, several=sum(start < stop for _, start, stop in block.strips) > 1)


@contextmanager
def _filled(folder: Path) -> Iterator[Path]:
    """A new folder inside `folder`. At the end its files are moved into `folder`. If the caller's block fails, none are
    moved, and folders that were made are removed."""
    new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
    beside = part_beside(folder / _INDEX)
    done = False
    try:
        try:
            beside.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from None
        yield beside
        try:
            # The index is moved last. Until then the earlier one is valid: shards are named by their content, so no
            # file that it names has changed.
            for file in sorted(beside.iterdir(), key=lambda entry: entry.name == _INDEX):
                file.replace(folder / file.name)
                settle_on_disk(folder)
        except OSError as error:
            raise UsageError(f"cannot write into {folder}: {error.strerror}") from None
        done = True
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        with contextlib.suppress(OSError):
            for place in () if done else new_folders:
                place.rmdir()


def _write(folder: Path, graph: Graph, blocks: Sequence[ShardBlock]) -> tuple[Shard, ...]:
    cutter, opsets = Cutter(graph, axis_of(blocks)), opsets_of(graph)
    shards: list[Shard] = []
    for block in blocks:
        for number, (device, _, _) in enumerate(block.strips):
            part = cutter.part(block.ops, block.tile(number))
            if part is None:
                continue
            safe = re.sub(r"[^\w.-]", "_", device)
            data = shard_model(part.graph, opsets)
            stem = f"stage{block.stage}_block{block.block}_{safe}_{hashlib.sha256(data).hexdigest()[:12]}"
            name = f"{stem}.onnx"
            if any(shard.file == name for shard in shards):  # device names that differ only in replaced characters
                name = f"{stem}_{len(shards)}.onnx"
            write_whole(folder / name, data)
            (inputs, input_columns), (outputs, output_columns) = (_spans(graph, s) for s in (part.reads, part.makes))
            shards.append(Shard(block.stage, block.block, device, name, inputs, outputs, input_columns, output_columns))
    listed = [{name: getattr(shard, name) for name in Shard.__slots__} for shard in shards]
    described = {
        "kind": "shards",
        "schema": SHARDS_SCHEMA,
        "inputs": [graph.tensors[tensor].name for tensor in graph.inputs],
        "outputs": [graph.tensors[tensor].name for tensor in graph.outputs],
        "tensors": _tensors(graph, {name for shard in shards for name in (*shard.inputs, *shard.outputs)}, cutter.axis),
        "shards": listed,
    }
    write_whole(folder / _INDEX, (json.dumps(described, indent=1) + "\n").encode())
    return tuple(shards)


def _spans(graph: Graph, side: Sequence[Rows]) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """The rows of each tensor by its name, and the columns of those that are cut along the columns too."""
    named = [(graph.tensors[rows.tensor].name, rows) for rows in side]
    return (
        {name: (rows.start, rows.stop) for name, rows in named},
        {name: rows.columns for name, rows in named if rows.columns is not None},
    )


def axis_of(blocks: Sequence[ShardBlock]) -> int:
    """The axis along which all blocks are cut; 0 if there are none. Raises UnsupportedError for several axes: a tensor
    between two blocks has rows along one axis only."""
    axes = {block.axis for block in blocks} or {0}
    if len(axes) > 1:
        raise UnsupportedError("blocks that are cut along different axes are not exported")
    return axes.pop()


def _tensors(graph: Graph, names: set[str], axis: int) -> dict[str, dict[str, Any]]:
    """The shape, element type and axes of the tensors `names` and of the network's inputs and outputs, by name."""
    ends = {*graph.inputs, *graph.outputs}
    return {
        meta.name: {
            "shape": list(meta.shape),
            "dtype": meta.dtype,
            "rows_axis": spatial_axis(graph, index, axis),
            "columns_axis": spatial_axis(graph, index, 1 - axis),
        }
        for index, meta in enumerate(graph.tensors)
        if meta.name in names or index in ends
    }


def _earlier(folder: Path) -> set[str]:
    """The names of the shards in the index that the folder has; none if it has no valid index."""
    try:
        earlier = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        files = [str(shard["file"]) for shard in earlier["shards"]] if earlier.get("kind") == "shards" else []
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return set()
    return {name for name in files if name != _INDEX and WRITTEN.fullmatch(name)}
