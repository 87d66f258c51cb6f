"""Options that several commands share, and consoles: data go to stdout, messages to stderr."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, TypeVar

import rich_click as click

from downset.budget import DEFAULT_SECONDS
from downset.errors import UsageError
from downset.process.limits import PARSING_S, RUNNING_S, limits
from downset.text import parse_bytes, parse_factor, parse_hop, parse_seconds, parse_share, printable, wrapped

__all__ = [
    "BYTES",
    "DISTANCE",
    "FACTOR",
    "HOP",
    "PRICES",
    "SECONDS",
    "SHARE",
    "console",
    "parse_dims",
    "parse_shapes",
    "path_option",
    "search_s",
    "size_options",
    "time_limit_option",
    "trust_option",
    "work_limit_option",
    "worker_memory_option",
]


_LEAST_RUNS = 15
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Parsed(click.ParamType[Any]):
    """A type of options whose text `parse` turns into a value of type `kind`. `forms`: texts for a value, the shortest
    first."""

    def __init__(self, name: str, parse: Callable[[str], Any], kind: type, forms: Callable[[Any], list[str]]) -> None:
        self.name, self._parse, self._kind, self._forms = name, parse, kind, forms

    def word(self, value: Any) -> str:
        """The first text that is parsed to exactly this value."""
        return next(text for text in self._forms(value) if self._parse(text) == value)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return value if isinstance(value, self._kind) else self._parse(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _distance(text: str) -> int:
    """A whole number of bytes, decimal or hexadecimal, or a size such as 64MB; negative with a sign before it."""
    digits = text.removeprefix("-").strip()
    try:
        number = int(digits, 16) if digits.lower().startswith("0x") else parse_bytes(digits)
    except (ValueError, UsageError):
        raise UsageError(f"{printable(text)!r} is not a distance such as 0x3000000, -0x3C88000 or 64MB") from None
    return -number if text.startswith("-") else number


def _distance_forms(distance: int) -> list[str]:
    return [f"{'-' if distance < 0 else ''}0x{abs(distance):X}"]


def _prices(text: str) -> dict[str, float]:
    prices = {}
    for item in text.split(","):
        name, _, number = item.partition("=")
        try:
            prices[name.strip()] = float(number)
        except ValueError:
            raise UsageError(f"{printable(item)!r} is not a price such as load=2.5") from None
    return prices


def _prices_forms(prices: dict[str, float]) -> list[str]:
    return [",".join(f"{name}={_whole(price).removesuffix('.0')}" for name, price in prices.items())]


def _bytes_forms(nbytes: int) -> list[str]:
    units = ((1024**3, "GB"), (1024**2, "MB"), (1024, "KB"))
    return [f"{nbytes // factor}{unit}" for factor, unit in units if nbytes % factor == 0] + [str(nbytes)]


def _seconds_forms(seconds: float) -> list[str]:
    longer = [(3600, "h")] if seconds > 5400 else []
    longer += [(60, "min")] if seconds > 90 else []
    return [*(f"{_short(seconds / unit)}{name}" for unit, name in [*longer, (1, "s")]), f"{_whole(seconds)}s"]


def _short(value: float) -> str:
    """Six digits of a number, without an exponent."""
    return f"{Decimal(f'{value:g}'):f}"


def _whole(value: float) -> str:
    """All digits of a number, without an exponent."""
    return f"{Decimal(repr(float(value))):f}"


def size_options(command: _Command) -> _Command:
    """`--shape` and `--dim`, as `shapes` and `dims` by name."""
    command = click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=64",
        callback=lambda _context, _option, items: parse_dims(items),
        help="Give a size that the file leaves open, by its name there or as 'x[2]' for axis 2 of input x; repeatable. "
        "'*=64' gives all that nothing else gives. A batch is 1 unless it is given. fit also takes NAME=1..512: it "
        "plans for the largest, and compares and "
        "measures at others.",
    )(command)
    return click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME=1,3,224,224",
        callback=lambda _context, _option, items: parse_shapes(items),
        help="Fix an input's shape; repeatable.",
    )(command)


def path_option(*names: str, **settings: Any) -> Callable[[_Command], _Command]:
    """An option with one path. click would take the last of several and leave the others out, without a word."""
    return click.option(*names, type=click.Path(), multiple=True, callback=_only, **settings)


def _only(context: click.Context, option: click.Parameter, paths: tuple[str, ...]) -> str | None:
    if len(paths) > 1:
        raise click.BadParameter("given more than once; it takes one path", context, option)
    return next(iter(paths), None)


def input_option(help_text: str) -> Callable[[_Command], _Command]:
    """`--input FILE`, repeatable: the user's own data. `help_text`: what they are for, as the beginning of the help."""
    of_files = f"{help_text}: a .npy file, or .npz with the inputs' names; repeatable."
    return click.option("--input", "inputs", multiple=True, type=click.Path(), help=of_files)


def check_runs(runs: int) -> None:
    """Raise UsageError for fewer rounds than decide between schedules or files."""
    if runs < _LEAST_RUNS:
        raise UsageError(f"--runs must be at least {_LEAST_RUNS} for a decision; given {runs}")


trust_option = click.option(
    "--trust", is_flag=True, help="Let PyTorch load a .pt2 file, which runs code that the file brings."
)


def _limit_memory(ctx: Any, param: Any, value: int | None) -> None:
    del param
    ctx.with_resource(limits(memory_bytes=value))


def _limit_time(ctx: Any, param: Any, value: float) -> float:
    del param
    ctx.with_resource(limits(time_s=value))
    return value


def time_limit_option(
    help_text: str, *, default: str = f"{DEFAULT_SECONDS:g}s", as_argument: bool = True
) -> Callable[[_Command], _Command]:
    """`--time-limit`, which limits the processes that parse and run models. `as_argument`: the command gets it, too."""
    return click.option(
        "--time-limit",
        type=SECONDS,
        default=default,
        show_default=True,
        callback=_limit_time,
        expose_value=as_argument,
        help=f"{help_text} Parsing gets at least {PARSING_S:g} s, each run in a runtime at least {RUNNING_S:g} s.",
    )


work_limit_option = click.option(
    "--work-limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="States that a search may look at: the same N gives the same plan under any load. Without --time-limit, "
    "this limit alone ends the search.",
)


def search_s(time_limit_s: float, work_limit: int | None) -> float:
    """How many seconds the search of the running command may take. A default time limit does not count with a work
    limit."""
    context: Any = click.get_current_context()
    defaulted = context.get_parameter_source("time_limit").name == "DEFAULT"
    return math.inf if work_limit is not None and defaulted else time_limit_s


BYTES = _Parsed("SIZE", parse_bytes, int, _bytes_forms)
DISTANCE = _Parsed("BYTES", _distance, int, _distance_forms)
PRICES = _Parsed("PRICES", _prices, dict, _prices_forms)
SHARE = _Parsed("SHARE", parse_share, float, lambda share: [f"{_short(100 * share)}%", _whole(share)])
FACTOR = _Parsed("FACTOR", parse_factor, float, lambda factor: [f"{factor:.2f}x", f"{_whole(factor)}x"])
HOP = _Parsed("HOP[@AXIS]", parse_hop, tuple, lambda hop: ["@".join(map(str, hop))])
SECONDS = _Parsed("TIME", parse_seconds, float, _seconds_forms)
worker_memory_option = click.option(
    "--worker-memory",
    type=BYTES,
    callback=_limit_memory,
    expose_value=False,
    help="What each process that parses or runs models may take; half of the machine's memory if not given.",
)


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
            raise UsageError(f"--shape {item!r} is not NAME=1,3,224,224: every size is a whole number above 0")
        shapes[name] = shape
    return shapes


def parse_dims(items: Iterable[str]) -> dict[str, int | range]:
    """`height=320` (repeatable) -> {"height": 320}, and `tokens=1..64` -> {"tokens": range(1, 65)}."""
    dims: dict[str, int | range] = {}
    texts: dict[str, str] = {}
    for item in items:
        name, separator, digits = item.rpartition("=")
        ends = [int(end) if end.isascii() and end.isdecimal() and len(end) < 20 else 0 for end in digits.split("..", 1)]
        if not separator or not name or not all(1 <= size < 1 << 48 for size in ends):
            raise UsageError(f"--dim {item!r} is not NAME=64: a size is a whole number above 0 and below 2**48")
        if ends[-1] < ends[0]:
            raise UsageError(f"--dim {item!r}: a range goes from a size above 0 to a larger one")
        size = ends[0] if len({*ends}) == 1 else range(ends[0], ends[1] + 1)
        if dims.setdefault(name, size) != size:
            raise UsageError(f"--dim {item!r} contradicts --dim {name}={texts[name]}")
        texts.setdefault(name, digits)
    return dims


def console(*, stderr: bool = False, quiet: bool = False) -> Any:
    """A rich console that respects NO_COLOR. A line that is printed with `soft_wrap` is broken between words on a
    terminal, and stays one line in a pipe."""
    from rich.console import Console
    from rich.text import Text

    class Safe(Console):
        """A console for text that may come from a file: control characters of names do not reach the terminal."""

        def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
            if soft_wrap and self.file.isatty():
                objects = tuple(map(self._wrapped, objects))
            super().print(*objects, soft_wrap=soft_wrap, **options)

        def _wrapped(self, one: Text | str) -> Text | str:
            plain, style = (one.plain, one.style) if isinstance(one, Text) else (one, None)
            lines = (piece for line in plain.expandtabs().split("\n") for piece in wrapped(line, self.width))
            joined = "\n".join(lines)
            return joined if style is None else Text(joined, style)

        def render_str(self, text: str, **options: Any) -> Any:
            lines = [printable(line.expandtabs()) for line in text.split("\n")]
            return super().render_str("\n".join(lines), **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if (stderr or _is_terminal()) else 120
    return Safe(stderr=stderr, quiet=quiet, width=width, highlight=False)


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()
