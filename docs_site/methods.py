"""The page of planning methods, from the planners' dicts, signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap

from downset.arenas import planners as arenas
from downset.methods import Contract, Method
from downset.orders import planners as orders
from downset.pipelines import planners as pipelines
from downset.stages import planners as stages

__all__ = ["FAMILIES", "Family", "methods_page", "names_module", "purpose", "table_text"]


@dataclass(frozen=True)
class Family:
    """The methods of one public function, and the one that it takes by default."""

    heading: str
    function: str
    default: str
    methods: Mapping[str, Method]
    contract: Contract


FAMILIES = (
    Family("Orders", "plan_order", "optimal", orders.ORDERS, orders.CONTRACT),
    Family("Arenas", "plan_arena", "best", arenas.ARENAS, arenas.CONTRACT),
    Family("Shared objects", "plan_shared", "best", arenas.SHARED, arenas.SHARED_CONTRACT),
    Family("Stages", "plan_stages", "lazy", stages.STAGERS, stages.CONTRACT),
    Family("Pipelines", "plan_pipeline", "exact", pipelines.PIPELINERS, pipelines.CONTRACT),
)


def methods_page() -> str:
    """Every method of every family, with the options that only it takes."""
    parts = [
        "# Methods and their options",
        "",
        "A method is chosen by name: `method=` in Python, and `--method` of `downset order`, `arena` and `split`.",
        'The options here are keywords of the Python function: `ds.plan_order(graph, method="beam", width=8)`.',
        "*Proves*: a finished search of the method proves its plan least. A function of your own is a method, too",
        "([how](../python.md#methods)).",
        "",
    ]
    for family in FAMILIES:
        parts += [
            f"## {family.heading}: `{family.function}`",
            "",
            f"Default: `{family.default}`.",
            "",
            "| method | what it does | its own options | proves |",
            "|---|---|---|---|",
        ]
        told: list[str] = []
        for name, method in family.methods.items():
            own = own_options(method, family.contract)
            first = purpose(method)
            cells = (f"`{name}`", first, ", ".join(f"`{one}`" for one in own), "yes" * method.proves)
            parts.append(f"| {' | '.join(cells)} |")
            if own:
                told += [f"`{name}`", f":   {' '.join((inspect.getdoc(method.plan) or first).split())}", ""]
        parts += ["", *told]
    return "\n".join(parts)


def own_options(method: Method, contract: Contract) -> list[str]:
    """The options that are not settings of the family, as the signature has them: "width: int = 256"."""
    assert method.signature is not None
    parameters = method.signature.parameters
    return [
        str(parameters[option].replace(annotation=_shown_type(parameters[option].annotation)))
        for option in method.options
        if option not in contract.settings
    ]


class _Words:
    """Text that is its own `repr`, as the annotation of a parameter is shown."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _shown_type(annotation: object) -> object:
    return _Words(annotation) if isinstance(annotation, str) else annotation


def purpose(method: Method) -> str:
    """What a method does: the first paragraph of its module's docstring, for the cell of a table."""
    text = sys.modules[method.plan.__module__].__doc__ or ""
    return table_text(" ".join(text.partition("\n\n")[0].split()))


def names_module() -> str:
    """The module that gives the help of commands the names of methods, without importing the planners."""
    lines = [
        '"""The methods of public functions, for the help of commands; python -m docs_site.tables makes this file."""',
        "",
        '__all__ = ["METHODS"]',
        "",
        "METHODS = {",
    ]
    for family in FAMILIES:
        names = [f'"{part}"' for part in wrap(", ".join(family.methods), 100, drop_whitespace=False)]
        value = names[0] if len(names) == 1 else "\n        ".join(["(", *names]) + "\n    )"
        lines.append(f'    "{family.function}": {value},')
    return "\n".join([*lines, "}", ""])


def table_text(text: str) -> str:
    """Markdown for the cell of a table: a bar outside of code is written as an entity; code in backquotes keeps it."""
    return re.sub(r"`[^`]*`|\|", lambda part: "&#124;" if part[0] == "|" else part[0], text)
