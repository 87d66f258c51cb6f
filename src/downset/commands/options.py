"""Options that several commands share, and how they talk: data to stdout, words to stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich_click as click

from downset.errors import UsageError
from downset.text import parse_bytes, parse_seconds

__all__ = ["BYTES", "SECONDS", "SIZES", "console", "parse_shapes", "shape_option"]


class _Bytes(click.ParamType[int]):
    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class _Seconds(click.ParamType[float]):
    name = "TIME"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return value if isinstance(value, float) else parse_seconds(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class _Sizes(click.ParamType[tuple[int, ...]]):
    name = "SIZE,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return value if isinstance(value, tuple) else tuple(parse_bytes(item) for item in value.split(","))
        except UsageError as error:
            self.fail(str(error), param, ctx)


shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Fix an input's shape; repeatable."
)
BYTES = _Bytes()
SIZES = _Sizes()
SECONDS = _Seconds()


def parse_shapes(items: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """`input=1,3,224,224` (repeatable) -> {"input": (1, 3, 224, 224)}."""
    shapes = {}
    for item in items:
        name, separator, dims = item.rpartition("=")
        try:
            shape = tuple(int(extent) for extent in dims.split(",")) if dims else ()
        except ValueError:
            shape = (0,)
        if not separator or not name or any(extent < 1 for extent in shape):
            raise UsageError(f"--shape {item!r} is not NAME=1,3,224,224")
        shapes[name] = shape
    return shapes


def console(*, stderr: bool = False, quiet: bool = False) -> Any:
    """A rich console that honours NO_COLOR and does not wrap figures when piped."""
    from rich.console import Console

    width = None if (stderr or _is_terminal()) else 120
    return Console(stderr=stderr, quiet=quiet, width=width, highlight=False)


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()
