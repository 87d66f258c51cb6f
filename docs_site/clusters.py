"""The page of cluster files: every key that their reader accepts, from its structs and their fields' docstrings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from docs_site.methods import table_text
from downset.clusters import toml_file
from downset.formats.plan_json import field_docs

__all__ = ["cluster_page"]

_TABLES = (
    ("Tables of a file", toml_file._ClusterForm),
    ("`[network]`", toml_file._NetworkForm),
    ("`[[device]]`", toml_file._DeviceForm),
    ("`messages` of a `[[device]]`", toml_file._MessagesForm),
    ("`[[link]]`", toml_file._LinkForm),
)
"""Each table of a file, by its heading, with the struct that reads it."""


def cluster_page() -> str:
    """Every table of a cluster file with its keys."""
    parts = [
        "# Cluster files (TOML)",
        "",
        "A cluster file says how fast devices compute and how messages travel between them. `downset split` and",
        "`serve` take one by `--cluster`, `downset profile-cluster -o` measures one, `downset.load_cluster` reads one.",
        "A key that is not listed here is an error. [An example](../pipelines.md#clusters) ·",
        "[a cluster that runs](../cluster.md) · [how times are computed](../pipelines.md#times)",
        "",
    ]
    for heading, form in _TABLES:
        parts += [
            f"## {heading}",
            "",
            " ".join((form.__doc__ or "").split()),
            "",
            "| key | value | if not given | what it is |",
            "|---|---|---|---|",
        ]
        parts += [*_rows(form), ""]
    return "\n".join(parts)


def _rows(form: type[msgspec.Struct]) -> Iterator[str]:
    described = inspect.type_info(form)
    assert isinstance(described, inspect.StructType)
    docs = field_docs(form)
    for field in described.fields:
        said, _, absent = docs[field.name].text.removesuffix(".").partition("; not given: ")
        cells = (f"`{field.name}`", _value(field.type), absent or _default(field), f"{said}.")
        yield f"| {' | '.join(map(table_text, cells))} |"


def _default(field: inspect.Field) -> str:
    """The value that a key has if the file does not give it, as TOML; "required" if the file must give it."""
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return "none"
    return f"`{json.dumps(field.default)}`"


def _value(described: Any) -> str:
    """The values of a type in words, with their range: "number from 0 to 1e18"."""
    match described:
        case inspect.UnionType(types=types):
            return " or ".join(_value(one) for one in types if not isinstance(one, inspect.NoneType))
        case inspect.LiteralType(values=values):
            return " or ".join(f"`{json.dumps(value)}`" for value in values)
        case inspect.FloatType(ge=least, le=most):
            return f"number from {_short(least)} to {_short(most)}"
        case inspect.IntType(gt=below):
            return f"whole number above {below}"
        case inspect.BoolType():
            return "`true` or `false`"
        case inspect.StrType(min_length=least, max_length=most):
            return f"text of {least} to {most} characters" if most else "text"
        case inspect.TupleType(item_types=items):
            return f"list of {len(items)} texts"
        case inspect.DictType(value_type=value):
            return f"table: {_value(value)} for each name"
        case inspect.ListType(max_length=most):
            return f"tables, {most} at most" if most else "tables"
        case inspect.StructType():
            return "table"
    raise TypeError(described)


def _short(number: float) -> str:
    return f"{number:g}".replace("e-0", "e-").replace("e+", "e")
