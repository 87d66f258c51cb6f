"""Renders a document as JSON: every value that has a key, at its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from downset.messages import Message, Setting
from downset.reports.document import Document, Steps, Table
from downset.text import is_plain, range_text

__all__ = ["json_of"]


def json_of(document: Document) -> dict[str, Any]:
    """The keys of a command's JSON, in plain values. Raises ValueError for a key that a document has twice."""
    document_values: dict[str, Any] = {}
    for key, value in _keyed(document):
        *parents, last = key.split(".")
        inner = document_values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        if last in inner:
            raise ValueError(f"the document {document.title!r} has two values at {key!r}")
        inner[last] = _plain(value)
    return document_values


def _keyed(document: Document) -> Iterator[tuple[str, Any]]:
    yield from ((figure.key, figure.value) for figure in (*document.foot, *document.figures) if figure.key)
    yield from ((key, value() if callable(value) else value) for key, value in document.data.items())
    for part in document.parts:
        if isinstance(part, Table):
            yield from part.values()
        elif isinstance(part, Steps):
            yield "next_steps", _steps_json(part.steps)


def _steps_json(steps: Sequence[Any]) -> list[dict[str, Any]]:
    """`next_steps` of the JSON forms."""
    return [
        {
            "text": step.text,
            "settings": [_setting_json(setting) for setting in Message(step.text).settings],
            "gained_bytes": step.gained_bytes,
            "gained_s": step.gained_s,
            "suffices": step.suffices,
        }
        for step in steps
    ]


def _setting_json(setting: Setting) -> dict[str, Any]:
    return {"name": setting.name, **({} if setting.value is ... else {"value": _plain(setting.value)})}


def _plain(value: Any) -> Any:
    """The value with dataclasses and mappings as dictionaries, and tuples as lists. One that holds nothing of these is
    not copied: there may be millions. A range of sizes is written as `--dim` takes it."""
    if is_plain(value):
        return value
    if isinstance(value, range):
        return range_text(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
