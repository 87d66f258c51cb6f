"""Writes plans in the JSON format of Chrome's tracing, which chrome://tracing and Perfetto open.

Steps of an order are written as microseconds, because an order has no times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from downset.reports.arena_view import ArenaView
from downset.reports.timeline import Timeline
from downset.text import printable

__all__ = ["arena_trace", "timeline_trace"]

_STEP_US = 1


def arena_trace(views: Sequence[ArenaView]) -> str:
    """A process for each view: the operators on one track, every tensor on another track with its bytes and offset, and
    the live bytes as a counter. A step takes one microsecond."""
    events: list[dict[str, Any]] = []
    for process, view in enumerate(views, start=1):
        events += _named(process, f"memory {view.heading}")
        events.append(_thread(process, 0, "operators"))
        for step, operator in enumerate(view.operators):
            events.append(
                _slice(process, 0, operator.name, step - view.start, 1, {"kind": operator.kind, "step": step})
            )
        for place, nbytes in enumerate(view.live_bytes):
            events.append(_counter(process, place, nbytes))
        events.append(_counter(process, view.stop - view.start, 0))
        for track, (record, offset) in enumerate(zip(view.arena.records, view.arena.offsets, strict=True), start=1):
            events.append(_thread(process, track, record.id))
            facts = view.tensors.get(record.id)
            details: dict[str, Any] = {"bytes": record.nbytes, "offset": offset}
            details |= {} if facts is None else {"shape": facts.shape, "made_by": facts.kind}
            for start, stop in record.active():
                events.append(_slice(process, track, record.id, start - view.start, stop - start, details))
    return _document(events, {"time": "one step of the order is written as 1 microsecond"})


def timeline_trace(timelines: Sequence[Timeline]) -> str:
    """A process for each timeline, with a track for each lane."""
    events: list[dict[str, Any]] = []
    notes = {}
    for process, timeline in enumerate(timelines, start=1):
        events += _named(process, timeline.heading)
        notes[timeline.heading] = timeline.note
        events += [_thread(process, lane, name) for lane, name in enumerate(timeline.lanes)]
        for item in timeline.slices:
            event = _slice(process, item.lane, item.name, 0, 0, {"frame": item.frame})
            event |= {"ts": item.start_s * 1e6, "dur": (item.stop_s - item.start_s) * 1e6}
            events.append(event)
    return _document(events, notes)


def _document(events: list[dict[str, Any]], notes: dict[str, str]) -> str:
    return json.dumps({"displayTimeUnit": "ms", "otherData": notes, "traceEvents": events}, separators=(",", ":"))


def _named(process: int, name: str) -> list[dict[str, Any]]:
    return [{"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": printable(name)}}]


def _thread(process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": printable(name)}}


def _slice(process: int, track: int, name: str, step: int, steps: int, details: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": step * _STEP_US, "dur": steps * _STEP_US}
    where = {"name": printable(name), "pid": process, "tid": track}
    return {"ph": "X", "cat": "downset", **where, **times, "args": details}


def _counter(process: int, step: int, nbytes: int) -> dict[str, Any]:
    values = {"bytes": nbytes}
    return {"ph": "C", "name": "live bytes", "pid": process, "tid": 0, "ts": step * _STEP_US, "args": values}
