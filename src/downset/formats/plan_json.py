"""Plans as JSON and back. Every plan has a `kind` and a `schema` version; keys are added, never renamed.

The version of a kind changes when older files can no longer be read, or when a key changes its meaning."""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from typing import Any, NamedTuple

import msgspec

from downset.errors import LoadError, UsageError
from downset.messages import Call, joined
from downset.process.whole_files import write_whole
from downset.results.pipelines import Pipeline
from downset.results.plans import Arena, Order, SharedObjects, StagePlan, Together
from downset.text import brief, check_path, read_file

__all__ = ["Plan", "decode_plan", "encode_plan", "field_docs", "pipeline_schema", "read_plan", "write_plan"]

SCHEMA = 1
PIPELINE_SCHEMA = 3
"""Version 3 has tasks with rows, orders of resources, buffers, and the memory of each device."""

Plan = Order | Arena | SharedObjects | Together | StagePlan | Pipeline
"""The types of plans that a file can hold."""
_KINDS: dict[str, type[Any]] = {
    "order": Order,
    "arena": Arena,
    "shared_objects": SharedObjects,
    "together": Together,
    "stages": StagePlan,
    "pipeline": Pipeline,
}


def encode_plan(plan: Plan) -> bytes:
    """A plan as JSON: its fields, `kind` and `schema`. Raises UsageError for anything that is not a plan."""
    kind = next((name for name, form in _KINDS.items() if isinstance(plan, form)), None)
    if kind is None:
        raise UsageError(f"a {type(plan).__name__} is not a plan; give an order, an arena, stages or a pipeline")
    return msgspec.json.encode(
        {"kind": kind, "schema": _version(kind), **msgspec.to_builtins(plan, str_keys=True, enc_hook=str)}
    )


def decode_plan(data: bytes) -> Plan:
    """The plan in JSON. Raises LoadError that says which field is missing or wrong."""
    try:
        raw = msgspec.json.decode(data)
        if isinstance(raw, dict) and "ok" in raw and "error" in raw:
            raise LoadError(f"not a plan: it is the JSON that `downset {raw.get('kind')}` prints; give the plan's file")
        if not isinstance(raw, dict) or raw.get("kind") not in tuple(_KINDS):
            raise LoadError(
                f"not a plan: `kind` must be one of {', '.join(_KINDS)}; `",
                joined("` and `", (Call("plan_pipeline"), Call("tune_stages"))),
                "` make one",
            )
        version = _version(raw["kind"])
        if raw.get("schema") != version:
            raise LoadError(
                f"a {raw['kind']} plan of schema {brief(repr(raw.get('schema')), 60)}, where this version of downset "
                f"reads {version}; make the plan again"
            )
        fields = {key: value for key, value in raw.items() if key not in ("kind", "schema")}
        plan: Plan = msgspec.convert(fields, _KINDS[raw["kind"]], str_keys=True)
    except UsageError as error:
        raise LoadError("not a plan: ", error.message) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"not a plan: {error}") from None
    return plan


def _version(kind: str) -> int:
    return PIPELINE_SCHEMA if kind == "pipeline" else SCHEMA


def write_plan(path: str | os.PathLike[str], plan: Plan) -> None:
    """Write a plan as `plan.json`, whole or not at all."""
    check_path(path)
    write_whole(path, msgspec.json.format(encode_plan(plan), indent=2) + b"\n")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file that `write_plan`, `downset stage -o` or `downset split -o` wrote, of whatever kind.

    Only the form of the JSON is checked; `verify` checks the plan. Raises LoadError that names the file and the wrong
    field."""
    try:
        data = read_file(path)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    try:
        return decode_plan(data)
    except LoadError as error:
        raise LoadError(f"{path}: ", error.message) from None


def pipeline_schema() -> dict[str, Any]:
    """The JSON schema of pipeline plans, docs/schemas/pipeline.schema.json. Its descriptions are the docstrings of the
    fields."""
    from downset.clusters import model
    from downset.results import pipelines, plans

    schema = msgspec.json.schema(Pipeline)
    forms = {**vars(model), **vars(plans), **vars(pipelines)}
    for name, described in schema["$defs"].items():
        described["description"] = " ".join(described["description"].split())
        docs = field_docs(forms[name])
        for key, value in described["properties"].items():
            value["description"] = re.sub(r"\bNone\b", "null", docs[key].text)
            if "additionalProperties" in value:
                value["additionalProperties"]["description"] = docs[key].values
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "downset pipeline plan",
        "description": "The file of a pipeline plan. Keys are added, never renamed. Seconds are analytic. Devices, "
        "tasks, operators and tensors are numbered from 0.",
        "properties": {
            "kind": {"const": "pipeline", "description": "What the file holds: a plan of a pipeline."},
            "schema": {
                "const": PIPELINE_SCHEMA,
                "description": "The version of this form, which changes only if older files can no longer be read, or "
                "if a key changes its meaning.",
            },
        },
        "required": ["kind", "schema"],
        **schema,
    }


class FieldDoc(NamedTuple):
    """The description of a field. `values`: that of each value, if the field is a mapping with a second paragraph."""

    text: str
    values: str = ""


def field_docs(kind: type) -> dict[str, FieldDoc]:
    """The docstring below each field of a class that has one, by the field's name. The source must be installed."""
    (described,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(described, ast.ClassDef)
    docs = {}
    for field, below in zip(described.body, described.body[1:], strict=False):
        match (field, below):
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring)))):
                text, _, values = (" ".join(part.split()) for part in docstring.partition("\n\n"))
                docs[name] = FieldDoc(text, values)
    return docs
