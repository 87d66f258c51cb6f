"""Strips of a block: how rows are divided among devices, and what a strip reads, makes, computes and moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from downset.clusters.model import Cluster
from downset.pipelines.drafts import Split, Tile
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import SegmentPrices, price, quantities, rows_of
from downset.results.pipelines import Rows, Strip

__all__ = [
    "balanced_rows",
    "equal_rows",
    "fastest_on_top",
    "given_rows",
    "made_rows",
    "nbytes_of",
    "proportional_rows",
    "slowest_strip_s",
    "strips_of",
    "tiles",
]


def tiles(devices: Sequence[int], bounds: Sequence[int]) -> tuple[Tile, ...]:
    """The devices in order with their rows; devices without rows are left out."""
    return tuple(
        Tile(device, bounds[k], bounds[k + 1]) for k, device in enumerate(devices) if bounds[k] < bounds[k + 1]
    )


def equal_rows(rows: int, count: int) -> list[int]:
    """Boundaries of `count` strips of equal height, up to rounding."""
    return [k * rows // count for k in range(count + 1)]


def proportional_rows(rows: int, speeds: Sequence[float]) -> list[int]:
    """Boundaries of strips in proportion to speed, rounded to the nearest row."""
    total, running, bounds = sum(speeds), 0.0, [0]
    for speed in speeds:
        running += speed
        bounds.append(round(rows * running / total))
    bounds[-1] = rows
    return bounds


def fastest_on_top(rows: int, devices: Sequence[int], speeds: Sequence[float]) -> tuple[Tile, ...]:
    """The devices from the fastest down with rows in proportion to their speed. `speeds`: of all devices."""
    order = sorted(devices, key=lambda device: (-speeds[device], device))
    return tiles(order, proportional_rows(rows, [speeds[device] for device in order]))


def balanced_rows(segment: SegmentPrices, speeds: Sequence[float]) -> list[int]:
    """Boundaries of least maximum computing time, exactly: bisection on the time, filling the strips greedily, until a
    further bisection changes no row. A device may get no row."""
    low, high = 0.0, max(price(segment, 0, segment.rows)[0] / speed for speed in speeds)
    best = _filled(segment, speeds, high)
    assert best is not None
    high = slowest_strip_s(segment, speeds, best)
    while low < high * (1 - 1e-12):
        middle = (low + high) / 2
        rows = _filled(segment, speeds, middle)
        if rows is None:
            low = middle
        else:
            best, high = rows, min(middle, slowest_strip_s(segment, speeds, rows))
    return best


def _filled(segment: SegmentPrices, speeds: Sequence[float], limit_s: float) -> list[int] | None:
    """The boundaries if every device takes as many rows as it can compute within the limit; None if rows are left."""
    bounds, row = [0], 0
    for speed in speeds:
        room = limit_s * speed * (1 + 1e-12) + 1e-6
        if row < segment.rows:
            if int(segment.final[0, row]) <= room:
                row = segment.rows
            else:
                upper = segment.upper[0, row + 1 : segment.rows]
                reach = int(upper.searchsorted(int(segment.lower[0, row]) + int(room), side="right"))
                row += reach
        bounds.append(row)
    return bounds if row == segment.rows else None


def slowest_strip_s(segment: SegmentPrices, speeds: Sequence[float], bounds: Sequence[int]) -> float:
    """Seconds of the device that computes longest."""
    return max(price(segment, bounds[k], bounds[k + 1])[0] / speed for k, speed in enumerate(speeds))


_Spans = dict[tuple[bool, int, int], dict[int, tuple[int, int]]]
"""The needs of rows (or of columns: True) of one block, by tensor. Tiles side by side have the same rows."""


def strips_of(problem: PricedChain, cluster: Cluster, split: Split) -> tuple[Strip, ...]:
    """The strips of a block with their MACs and bytes. Redundant MACs of a strip are those beyond its share of the
    need."""
    segment = problem.segment(split.start, split.stop)
    least = problem.least_macs_before()
    needed = least[split.stop] - least[split.start]
    strips = []
    spans: _Spans = {}
    for tile in split.tiles:
        if tile.columns is None:
            macs, in_bytes, out_bytes, moved_bytes = quantities(segment, tile.start, tile.stop)
            part = (tile.stop - tile.start) / segment.rows
        else:
            macs, in_bytes, out_bytes, moved_bytes = _tile_quantities(problem, split, tile, spans)
            frame_columns = problem.turned().segment(split.start, split.stop).rows
            part = (tile.stop - tile.start) / segment.rows * ((tile.columns[1] - tile.columns[0]) / frame_columns)
        redundant = max(0, macs - round(needed * part))
        device = cluster.devices[tile.device]
        alpha_of, weighs = device.alpha_of, device.weight_bytes_per_s is not None
        strips.append(
            Strip(
                tile.device,
                tile.start,
                tile.stop,
                macs,
                redundant,
                moved_bytes,
                in_bytes,
                out_bytes,
                tile.columns,
                {kind: _macs_of(problem, split, tile, kind) for kind in sorted(alpha_of)} if alpha_of else {},
                _weight_bytes(problem, split, tile, spans) if weighs else 0,
            )
        )
    return tuple(_exact_redundancy(strips, needed))


def _exact_redundancy(strips: list[Strip], needed: int) -> list[Strip]:
    """The strips with redundant MACs whose sum is all MACs of the block less the need, whatever rounding did."""
    surplus = sum(strip.macs for strip in strips) - needed
    drift = surplus - sum(strip.redundant_macs for strip in strips)
    for index, strip in sorted(enumerate(strips), key=lambda item: -item[1].macs):
        share = min(max(strip.redundant_macs + drift, 0), strip.macs)
        drift -= share - strip.redundant_macs
        strips[index] = replace(strip, redundant_macs=share)
        if drift == 0:
            break
    return strips


def given_rows(problem: PricedChain, split: Split, tile: Tile) -> tuple[Rows, ...]:
    """The rows that a strip reads and its block does not make; rows without bytes are left out."""
    results = {tensor for op in _ops(problem, split) for tensor in problem.ops[op].outputs}
    return tuple(_held(problem, split, tile, keep=lambda tensor: tensor not in results))


def made_rows(problem: PricedChain, split: Split, tile: Tile, *, halos: bool) -> tuple[Rows, ...]:
    """The rows that a strip makes for others: its own rows of the block's sinks, or with `halos` all rows of them that
    it computes."""
    sinks = problem.sinks(split.start, split.stop)
    if halos:
        return tuple(_held(problem, split, tile, keep=sinks.__contains__))
    frame = problem.segment(split.start, split.stop).rows
    listed = []
    for tensor in sorted(sinks):
        low, high = rows_of(problem.tensors[tensor], tile.start, tile.stop, frame)
        columns = None
        if tile.columns is not None:
            across = problem.turned()
            columns = rows_of(across.tensors[tensor], *tile.columns, across.segment(split.start, split.stop).rows)
        if low < high and (columns is None or columns[0] < columns[1]) and problem.tensors[tensor].row_bytes:
            listed.append(Rows(tensor, low, high, columns))
    return tuple(listed)


def nbytes_of(problem: PricedChain, rows: Rows) -> int:
    whole = problem.tensors[rows.tensor].row_bytes * (rows.stop - rows.start)
    if rows.columns is None:
        return whole
    return whole * (rows.columns[1] - rows.columns[0]) // problem.turned().tensors[rows.tensor].rows


def _held(
    problem: PricedChain,
    split: Split,
    tile: Tile,
    spans: _Spans | None = None,
    keep: Callable[[int], object] | None = None,
) -> Iterator[Rows]:
    """The rows that a strip reads or makes, of tensors for which `keep` is true. `spans` remembers the needs of rows
    and columns of this block for its other tiles."""
    cached: _Spans = {} if spans is None else spans
    rows = (False, tile.start, tile.stop)
    if rows not in cached:
        cached[rows] = problem.needs(split.start, split.stop, *rows[1:], halo=split.halo)
    down, side = cached[rows], None
    if tile.columns is not None:
        columns, across = (True, *tile.columns), problem.turned()
        if columns not in cached:
            cached[columns] = across.needs(split.start, split.stop, *columns[1:], halo=split.halo)
        side = cached[columns]
    for tensor in sorted(filter(keep, down) if keep else down):
        if problem.tensors[tensor].row_bytes and (side is None or tensor in side):
            yield Rows(tensor, *down[tensor], None if side is None else side[tensor])


def _ops(problem: PricedChain, split: Split) -> list[int]:
    return [op for unit in problem.units[split.start : split.stop] for op in unit]


def _tile_quantities(problem: PricedChain, split: Split, tile: Tile, spans: _Spans) -> tuple[int, int, int, int]:
    """`quantities` of a tile. Its rows and its columns need their halos independently."""
    parts_of = {rows.tensor: rows for rows in _held(problem, split, tile, spans)}
    ops = _ops(problem, split)
    macs = sum(_tile_macs(problem, parts_of, op) for op in ops if problem.ops[op].macs_per_row)
    moved_bytes = sum(_tile_moved_bytes(problem, parts_of, op) for op in ops if not problem.ops[op].macs_per_row)
    results = {tensor for op in ops for tensor in problem.ops[op].outputs}
    in_bytes = sum(nbytes_of(problem, rows) for tensor, rows in parts_of.items() if tensor not in results)
    out_bytes = sum(nbytes_of(problem, rows) for rows in made_rows(problem, split, tile, halos=False))
    return macs, in_bytes, out_bytes, moved_bytes


def _tile_macs(problem: PricedChain, parts_of: dict[int, Rows], op: int) -> int:
    described, rows = problem.ops[op], parts_of.get(problem.ops[op].outputs[0])
    if rows is None:
        return 0
    macs = described.macs_per_row * (rows.stop - rows.start)
    if rows.columns is None:
        return macs
    return round(macs * (rows.columns[1] - rows.columns[0]) / problem.turned().tensors[rows.tensor].rows)


def _tile_moved_bytes(problem: PricedChain, parts_of: dict[int, Rows], op: int) -> int:
    """The bytes that an operator without MACs reads and writes for a tile."""
    described, output = problem.ops[op], parts_of.get(problem.ops[op].outputs[0])
    if output is None or output.columns is None:
        return 0
    moved_bytes = sum(nbytes_of(problem, parts_of[tensor]) for tensor in described.outputs if tensor in parts_of)
    across = problem.turned().ops[op]
    for position, tensor in enumerate(described.inputs):
        spans = [
            (int(part.first[position][begin]), int(part.last[position][end]))
            for part, begin, end in ((described, output.start, output.stop), (across, *output.columns))
        ]
        moved_bytes += nbytes_of(problem, Rows(tensor, *spans[0], spans[1]))
    return moved_bytes


def _weight_bytes(problem: PricedChain, split: Split, tile: Tile, spans: _Spans) -> int:
    """The bytes of the weights that operators with MACs read for a tile, each once."""
    tensors = {rows.tensor for rows in _held(problem, split, tile, spans)}
    working = (problem.ops[op] for op in _ops(problem, split) if problem.ops[op].macs_per_row)
    return sum(dict(weight for op in working if tensors & {*op.outputs} for weight in op.weights).values())


def _macs_of(problem: PricedChain, split: Split, tile: Tile, kind: str) -> int:
    parts_of = {rows.tensor: rows for rows in _held(problem, split, tile)}
    return sum(_tile_macs(problem, parts_of, op) for op in _ops(problem, split) if problem.ops[op].kind == kind)
