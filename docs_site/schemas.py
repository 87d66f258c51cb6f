"""The page of JSON schemas: every key, also nested ones, with its type or the values that it can have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs_site.methods import table_text

__all__ = ["schemas_page"]

_Schema = Mapping[str, Any]
_ENVELOPE = "envelope"


def schemas_page(folder: Path) -> str:
    """Every schema in a folder, in words and as a table of keys."""
    parts = [
        "# JSON",
        "",
        "With `--json` a command prints one document. Keys are added, never renamed. In the tables `a.b` is the key",
        "`b` of the object `a`, `a[].b` is that key of each object in the list `a`, and in `a.*` the star is any key,",
        "such as the name of a device. *Optional* keys can be missing. If a command fails, only the keys of",
        f"[{_ENVELOPE}](#{_ENVELOPE}) are certain.",
        "",
    ]
    for path in sorted(folder.glob("*.json")):
        schema = json.loads(path.read_text())
        parts += [
            f"## {path.stem}",
            "",
            str(schema.get("title", "")),
            "",
            str(schema.get("description", "")),
            "",
            "| key | type | what it is |",
            "|---|---|---|",
        ]
        definitions = schema.get("$defs", {})
        for key, value, optional in _keys(schema, "", definitions):
            if key.startswith("error.") and path.stem != _ENVELOPE:
                continue  # the same in every document
            said = " ".join(str(value.get("description", "")).split())
            if key == "error" and path.stem != _ENVELOPE:
                said = f"Null where ok; its keys: [{_ENVELOPE}](#{_ENVELOPE})."
            kind = _type(value, definitions) + (", optional" if optional else "")
            parts.append(f"| `{key}` | {kind} | {table_text(said)} |")
        parts.append("")
    return "\n".join(parts)


def _keys(schema: _Schema, prefix: str, definitions: _Schema) -> Iterator[tuple[str, _Schema, bool]]:
    """(key with its path, schema, whether it can be missing) of every key in a schema, the outer ones first."""
    for form in _forms(schema, definitions):
        required = {*form.get("required", ()), *form.get("then", {}).get("required", ())}
        for key, value in form.get("properties", {}).items():
            path = f"{prefix}.{key}" if prefix else key
            yield path, _described(value, definitions), key not in required
            yield from _keys(value, path, definitions)
        if isinstance(items := form.get("items"), Mapping):
            yield from _keys(items, f"{prefix}[]", definitions)
        if isinstance(others := form.get("additionalProperties"), Mapping):
            yield f"{prefix}.*", _described(others, definitions), False
            yield from _keys(others, f"{prefix}.*", definitions)


def _forms(schema: _Schema, definitions: _Schema) -> list[_Schema]:
    """The schema with each definition that it refers to in its place: what it states itself, and each alternative."""
    forms = [schema]
    if "$ref" in schema:
        forms += _forms(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    for one in schema.get("anyOf", ()):
        forms += _forms(one, definitions)
    return forms


def _described(schema: _Schema, definitions: _Schema) -> _Schema:
    """The schema with the description of its first form that has one."""
    said = next((form["description"] for form in _forms(schema, definitions) if form.get("description")), "")
    return {**schema, "description": said}


def _type(schema: _Schema, definitions: _Schema) -> str:
    """The type in words, or the values: "integer or null", "list of integer", "`arena`", "`time` or null"."""
    kinds: list[str] = []
    for form in _forms(schema, definitions):
        if "const" in form:
            kinds.append(f"`{json.dumps(form['const'])}`")
        elif "enum" in form:
            kinds += [f"`{json.dumps(value)}`" if value is not None else "null" for value in form["enum"]]
        elif "type" in form:
            stated = [form["type"]] if isinstance(form["type"], str) else form["type"]
            kinds += [_list_type(form, definitions) if kind == "array" else kind for kind in stated]
    return " or ".join(dict.fromkeys(kinds))


def _list_type(schema: _Schema, definitions: _Schema) -> str:
    """The type of a list, with that of its items."""
    if first := schema.get("prefixItems"):
        return f"list [{', '.join(_type(one, definitions) for one in first)}]"
    items = schema.get("items")
    inner = _type(items, definitions) if isinstance(items, Mapping) else ""
    return f"list of {inner}" if inner else "list"
