"""An arena as a picture: time to the right, offsets upwards, one rectangle a record. One SVG file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from downset.plans import Arena
from downset.text import format_bytes, printable

__all__ = ["memory_map"]

_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#e15759", "#edc948", "#9c755f")


def memory_map(arenas: Sequence[tuple[str, Arena]], *, width_px: int = 960, height_px: int = 260) -> str:
    """The arenas below each other on one scale of bytes, each with its title; hovering names a tensor. SVG text."""
    tallest = max([1, *(arena.arena_bytes for _, arena in arenas)])
    parts, top = [], 0
    for title, arena in arenas:
        first = min((record.start for record in arena.records), default=0)
        last = max((record.stop for record in arena.records), default=1)
        across = (width_px - 20) / max(last - first, 1)
        up = (height_px - 40) / tallest
        floor = top + height_px - 8
        label = escape(printable(f"{title}: {format_bytes(arena.arena_bytes)} B"))
        parts.append(f'<text x="10" y="{top + 18}" font-size="14">{label}</text>')
        ceiling = floor - arena.arena_bytes * up
        parts.append(
            f'<line x1="10" x2="{width_px - 10}" y1="{ceiling:.1f}" y2="{ceiling:.1f}" stroke="#888" '
            'stroke-dasharray="4 3"/>'
        )
        for index, (record, offset) in enumerate(zip(arena.records, arena.offsets, strict=True)):
            label = f"{record.id}: {format_bytes(record.nbytes)} B at {format_bytes(offset)}"
            label = escape(printable(f"{label}, steps {record.start} to {record.stop}"))
            for start, stop in record.active():
                parts.append(
                    f'<rect x="{10 + (start - first) * across:.1f}" y="{floor - (offset + record.nbytes) * up:.1f}" '
                    f'width="{(stop - start) * across:.1f}" height="{max(record.nbytes * up, 0.5):.1f}" '
                    f'fill="{_COLOURS[index % len(_COLOURS)]}" stroke="white" stroke-width="0.4">'
                    f"<title>{label}</title></rect>"
                )
        top += height_px
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width_px}" height="{top}" viewBox="0 0 {width_px} {top}" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n"
    )
