"""Renders a document as JSON: every value that has a key, at its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from downset.reports.document import Document, Steps, Table
from downset.reports.next_steps import steps_json
from downset.text import is_plain

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
    yield from document.data.items()
    for part in document.parts:
        if isinstance(part, Table):
            yield from part.values()
        elif isinstance(part, Steps):
            yield "next_steps", steps_json(part.steps)


def _plain(value: Any) -> Any:
    """The value with dataclasses and mappings as dictionaries, and tuples as lists. One that holds nothing of these is
    not copied: there may be millions."""
    if is_plain(value):
        return value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
