"""Docstrings of fields: the text below each field of a class, for schemas and pages that describe the fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import NamedTuple

__all__ = ["FieldDoc", "field_docs"]


class FieldDoc(NamedTuple):
    """The description of a field. `values`: that of each value, if the field is a mapping with a second paragraph."""

    said: str
    values: str = ""


def field_docs(kind: type) -> dict[str, FieldDoc]:
    """The docstring below each field of a class that has one, by the field's name. The source must be installed."""
    (described,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(described, ast.ClassDef)
    docs = {}
    for field, below in zip(described.body, described.body[1:], strict=False):
        match (field, below):
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                said, _, values = (" ".join(part.split()) for part in text.partition("\n\n"))
                docs[name] = FieldDoc(said, values)
    return docs
