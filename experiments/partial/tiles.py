"""Tiles compared with strips: bytes that a segment needs when its columns are cut as well as its rows.

    python -m experiments.partial.tiles [--quick]

Figures are *analytic*: elements that are there, without alignment and without the second place of cuts and joins, for
strips and tiles alike; nothing is recomputed. A segment is computed in bands of rows, and each band in tiles from left
to right. Between two tiles there are, of every tensor inside, the rows that the next band reads (of the columns done),
the rows kept from the band before (of the columns to come), and the columns that the next tile reads. `pieces` is the
number of copies of every operator: each costs persistent bytes (`memory_form`). Rows give, by segment, the least
head and the least total of head and persistent bytes, with strips alone and with tiles. Two more rows are of tiles that
keep nothing, as MCUNetV2 computes them, next to strips that keep nothing: each tile computes all that it needs, which
is more arithmetic. They give the least head with at most a tenth of the network's multiply-adds more, and with any.
The segments are those whose plans are recorded for a model. Without ../shared/models the recorded rows are printed.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from downset import Graph, load
from downset.graph.cost import macs, row_form
from downset.graph.row_form import RowForm, equal_strips, needed
from downset.partial.memory_form import row_bits, tflm_persistent
from downset.partial.segments import Segment, find_segment
from downset.partial.strip_program import first_read_later, rows_of_strips
from downset.rewrites.tflite_form import writable_rows
from experiments.frame import Column, Experiment, fields, run
from experiments.rows import Row

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
SEGMENTS = {
    "MobileNet v2 1.0 224, int8": ("mobilenet_v2_1.0_224_rand_int8", [(0, 6), (0, 13)]),
    "MobileNet v2 0.35 160, int8": ("mobilenet_v2_0.35_160_rand_int8", [(0, 3), (0, 6), (0, 13)]),
    "vww 96, int8": ("vww_96_int8", [(2, 4), (0, 8)]),
    "BlazeFace, float": ("face_detection_front_pinto_f32", [(0, 16), (0, 32)]),
}
MOST_PIECES = 128


@dataclass(frozen=True, slots=True)
class Cut:
    """One axis of a segment in parts: by part and operator the positions it computes, by part and tensor the first that
    later parts read."""

    form: RowForm
    made: tuple[dict[int, tuple[int, int]], ...]
    later: tuple[dict[int, int], ...]

    def done(self, part: int, maker: int) -> int:
        """Up to where a tensor is computed after this part."""
        return max((strip[maker][1] for strip in self.made[: part + 1] if maker in strip), default=0)

    def kept(self, part: int, tensor: int, maker: int) -> int:
        """Positions that are there for later parts."""
        if part < 0 or tensor not in self.later[part]:
            return 0
        return max(self.done(part, maker) - self.later[part][tensor], 0)


def cut(form: RowForm, segment: Segment, parts: int) -> Cut:
    strips = rows_of_strips(form, segment, parts)
    return Cut(form, strips, tuple(first_read_later(form, strips)))


@dataclass(frozen=True, slots=True)
class Tiles:
    """A segment in bands and tiles."""

    graph: Graph
    segment: Segment
    bands: Cut
    columns: Cut

    def element_bytes(self, tensor: int) -> float:
        """Bytes of one position in a row, all channels."""
        bits = row_bits(self.graph, tensor, self.bands.form.rows[tensor])
        return bits / 8 / max(self.columns.form.rows[tensor], 1)

    def head_bytes(self) -> int:
        """The most bytes that are there while an operator computes a tile."""
        whole = sum(self.graph.tensors[tensor].nbytes for tensor in (*self.segment.inputs, *self.segment.results))
        maker = {
            tensor: operator for operator in self.segment.operators for tensor in self.bands.form.ops[operator].outputs
        }
        inside = {tensor: operator for tensor, operator in maker.items() if tensor not in self.segment.results}
        peak = 0.0
        for band, column in product(range(len(self.bands.made)), range(len(self.columns.made))):
            # Before an operator computes, what comes behind it is as the tile before left it.
            before = self._kept(inside, band, column - 1)
            after = self._kept(inside, band, column)
            for operator in self.segment.operators:
                if operator in self.bands.made[band] and operator in self.columns.made[column]:
                    kept = sum((after if inside[tensor] < operator else before)[tensor] for tensor in inside)
                    peak = max(peak, kept + self._running(operator, band, column, inside))
        return round(whole + peak)

    def _kept(self, inside: dict[int, int], band: int, column: int) -> dict[int, float]:
        """By tensor: bytes that are there for later tiles."""
        kept = {}
        for tensor, maker in inside.items():
            width = self.columns.form.rows[tensor]
            done = self.columns.done(column, maker) if column >= 0 else 0
            to_come = width - done + (self.columns.kept(column, tensor, maker) if column >= 0 else 0)
            rows = self.bands.made[band].get(maker, (0, 0))
            beside = self.columns.kept(column, tensor, maker) * max(rows[1] - rows[0], 0)
            above = self.bands.kept(band - 1, tensor, maker) * to_come
            below = self.bands.kept(band, tensor, maker) * done
            kept[tensor] = (beside + above + below) * self.element_bytes(tensor)
        return kept

    def _running(self, operator: int, band: int, column: int, inside: dict[int, int]) -> float:
        """Bytes that an operator makes, and new ones that it reads."""
        rows, columns = self.bands.made[band][operator], self.columns.made[column][operator]
        area = (rows[1] - rows[0]) * (columns[1] - columns[0])
        total = sum(area * self.element_bytes(t) for t in self.bands.form.ops[operator].outputs if t in inside)
        for item in self.bands.form.ops[operator].inputs:
            maker = inside.get(item.tensor)
            if maker is not None and maker in self.bands.made[band] and maker in self.columns.made[column]:
                new_rows, new_columns = self.bands.made[band][maker], self.columns.made[column][maker]
                new = (new_rows[1] - new_rows[0]) * (new_columns[1] - new_columns[0])
                total += new * self.element_bytes(item.tensor)
        return total


@dataclass(frozen=True, slots=True)
class Alone:
    """A segment in tiles that share nothing: `rows` and `columns` by part and tensor, what a part touches."""

    tiles: Tiles
    rows: Sequence[Mapping[int, tuple[int, int]]]
    columns: Sequence[Mapping[int, tuple[int, int]]]

    def head_bytes(self) -> int:
        """The most bytes that are there while an operator computes a tile."""
        tiles, operators = self.tiles, self.tiles.segment.operators
        ops, outside = tiles.bands.form.ops, {*tiles.segment.inputs, *tiles.segment.results}
        last = {item.tensor: operator for operator in operators for item in ops[operator].inputs}
        whole = sum(tiles.graph.tensors[tensor].nbytes for tensor in outside)
        peak = 0.0
        for rows, columns in product(self.rows, self.columns):
            areas = {t: length(rows[t]) * length(columns[t]) for t in rows.keys() & columns.keys()}
            live = dict.fromkeys(outside, 0.0)
            for operator in operators:
                live |= {t: areas.get(t, 0) * tiles.element_bytes(t) for t in ops[operator].outputs if t not in outside}
                peak = max(peak, sum(live.values()))
                live = {tensor: nbytes for tensor, nbytes in live.items() if last.get(tensor, operator) > operator}
        return round(whole + peak)

    def extra_macs(self) -> int:
        """Multiply-adds beyond those of the segment computed once."""
        ops, total = self.tiles.bands.form.ops, 0
        for operator in self.tiles.segment.operators:
            result = ops[operator].outputs[0]
            parts = [
                sum(length(part[result]) for part in along if result in part) for along in (self.rows, self.columns)
            ]
            total += (
                ops[operator].macs * parts[0] * parts[1] // (ops[operator].rows * self.tiles.columns.form.rows[result])
            )
        return total - sum(ops[operator].macs for operator in self.tiles.segment.operators)


def length(part: tuple[int, int]) -> int:
    return part[1] - part[0]


def touched(form: RowForm, segment: Segment, parts: int) -> list[dict[int, tuple[int, int]]]:
    """By part of the result and tensor: what computing that part alone touches."""
    wanted = [
        {tensor: equal_strips(form.rows[tensor], parts)[part] for tensor in segment.results} for part in range(parts)
    ]
    return [needed(form, segment.operators, rows) for rows in wanted]


def rows_alone(
    base: Row, graph: Graph, grids: Mapping[tuple[int, int], Tiles], each: int, segment: Segment
) -> Iterator[Row]:
    first = next(iter(grids.values()))
    forms = first.bands.form, first.columns.form
    bands, columns = ({n[axis]: touched(forms[axis], segment, n[axis]) for n in grids} for axis in (0, 1))
    alone_of = {(b, c): Alone(tiles, bands[b], columns[c]) for (b, c), tiles in grids.items()}
    more = {grid: alone.extra_macs() / macs(graph) for grid, alone in alone_of.items()}
    for label, most in (("head, keeping nothing, 10 % more MACs at most", 0.1), ("head, keeping nothing", math.inf)):
        heads = {grid: alone.head_bytes() for grid, alone in alone_of.items() if more[grid] <= most}
        row = {**base, "least": label}
        for name, least in (("strips", lambda grid: grid[1] == 1), ("tiles", lambda grid: min(grid) > 1)):
            grid = min(filter(least, heads), key=lambda grid: (heads[grid], more[grid]), default=None)
            if grid is not None:
                row |= {
                    name: f"{grid[0]} x {grid[1]}" if name == "tiles" else grid[0],
                    f"{name}_head_bytes": heads[grid],
                    f"{name}_persistent_bytes": each * grid[0] * grid[1],
                    f"{name}_more_macs": round(more[grid], 4),
                }
        yield row


def rows_of(model: str, path: Path) -> Iterator[Row]:
    graph = load(path)
    along_rows = writable_rows(graph, row_form(graph, halos_required=False))
    along_columns = row_form(graph, axis=1, halos_required=False)
    persistent = tflm_persistent(graph)
    for first, stop in SEGMENTS[model][1]:
        segment = find_segment(graph, first, stop)
        result = segment.results[0]
        most = along_rows.rows[result], along_columns.rows[result]
        bands, columns = (
            {n: cut(form, segment, n) for n in sorted({-(-rows // height) for height in range(1, rows + 1)})}
            for form, rows in ((along_rows, most[0]), (along_columns, most[1]))
        )
        each = sum(persistent.operator_bytes[first:stop])
        grids = {
            (b, c): Tiles(graph, segment, bands[b], columns[c])
            for b, c in product(bands, columns)
            if b * c <= MOST_PIECES
        }
        heads = {grid: tiles.head_bytes() for grid, tiles in grids.items()}
        totals = {(b, c): head + each * b * c for (b, c), head in heads.items()}
        for label, cost in (("head", heads), ("total", totals)):
            strips = min((item for item in cost if item[1] == 1), key=cost.__getitem__)
            tiles = min((item for item in cost if min(item) > 1), key=cost.__getitem__)
            yield {
                "model": model,
                "segment": f"{first} to {stop}",
                "least": label,
                "strips": strips[0],
                "strips_head_bytes": heads[strips],
                "strips_persistent_bytes": each * strips[0],
                "tiles": f"{tiles[0]} x {tiles[1]}",
                "tiles_head_bytes": heads[tiles],
                "tiles_persistent_bytes": each * tiles[0] * tiles[1],
            }
        yield from rows_alone({"model": model, "segment": f"{first} to {stop}"}, graph, grids, each, segment)


def rows(options: Namespace) -> Iterator[Row]:
    for model, (file, _) in SEGMENTS.items():
        path = MODELS / f"{file}.tflite"
        if path.exists() and not (options.quick and "vww" not in model):
            yield from rows_of(model, path)


COLUMNS: tuple[Column, ...] = (
    *fields("model", "segment", "least", "strips"),
    ("head B", "{strips_head_bytes:,}"),
    ("persistent B", "{strips_persistent_bytes:,}"),
    ("more MACs", "{strips_more_macs:.1%}"),
    ("tiles", "{tiles}"),
    ("head B, tiles", "{tiles_head_bytes:,}"),
    ("persistent B, tiles", "{tiles_persistent_bytes:,}"),
    ("more MACs, tiles", "{tiles_more_macs:.1%}"),
)
EXPERIMENT = Experiment(
    "partial_tiles", rows, COLUMNS, key=("model", "segment", "least"), quick="vww 96 alone, nothing written"
)

if __name__ == "__main__":
    run(EXPERIMENT)
