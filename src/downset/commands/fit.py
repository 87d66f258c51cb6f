"""`downset fit`: make a model need less memory, prove how little it can be, and check that it computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import (
    BYTES,
    SIZES,
    console,
    parse_shapes,
    shape_option,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.reports.fit import fit_lines, session_cells
from downset.reports.json_form import fit_json
from downset.results import Fit
from downset.sessions import SessionTaken
from downset.text import format_bytes, parse_factor, parse_share, printable

if TYPE_CHECKING:
    from downset.fitting.fit import RewriteName
    from downset.runtimes.targets import TargetName

__all__ = ["fit"]


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "-o", "--output", type=click.Path(), help="Where to write the fitted model; without it nothing is written."
)
@click.option(
    "--ram",
    type=BYTES,
    help="Fail if it is proven not to fit (exit 3) or that is not known (exit 6), for example 256KB.",
)
@click.option(
    "--target", type=click.Choice(["tflm", "litert", "ort", "torch"]), help="tflm for .tflite, ort for .onnx."
)
@shape_option
@trust_option
@json_option("fit")
@time_limit_option("For the searches together.")
@worker_memory_option
@click.option("--map", "map_path", type=click.Path(), help="Also draw the arenas before and after into this SVG file.")
@click.option(
    "--rewrite",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Take concatenations apart where that lowers the peak; the outputs are compared.",
)
@click.option(
    "--inexact", is_flag=True, help="Also where rounding each part changes a quantised result; the change is measured."
)
@click.option(
    "--max-recompute",
    default="0%",
    metavar="10%",
    help="Also compute early segments strip by strip (.onnx), with so much more arithmetic at most.",
)
@click.option(
    "--on-chip", type=SIZES, metavar="SIZE,...", help="Off-chip traffic with so much on chip, for example 64KB,256KB."
)
@click.option(
    "--slower",
    metavar="1.1x",
    help="Leave out what is known to take more than so many times as long as the original (ort).",
)
@click.option(
    "--session", type=click.Path(), help="Also write a Python program that opens OUTPUT as it was measured (ort)."
)
@click.option("-q", "--quiet", is_flag=True, help="No words on stderr.")
def fit(
    model: str,
    output: str | None,
    ram: int | None,
    target: TargetName | None,
    shapes: tuple[str, ...],
    trust: bool,
    as_json: bool,
    time_limit: float,
    map_path: str | None,
    rewrite: RewriteName,
    inexact: bool,
    max_recompute: str,
    on_chip: tuple[int, ...] | None,
    slower: str | None,
    session: str | None,
    quiet: bool,
) -> None:
    """Order MODEL's operators and place its tensors for least memory; verify; write the same network to OUTPUT."""
    from downset.errors import UsageError
    from downset.fitting.fit import fit as run_fit
    from downset.formats.whole_files import check_output, write_whole
    from downset.isolation import RUNNING_S
    from downset.reports.memory_map import memory_map
    from downset.runtimes.targets import targets_of

    if map_path is not None:
        check_output(map_path, source=model)
        for option, other in (("-o", output), ("--session", session)):
            if other is not None and Path(map_path).resolve() == Path(other).resolve():
                raise UsageError(f"{option} and --map both name {map_path}; give each a file of its own")
    talk = console(stderr=True, quiet=quiet)
    # For whoever waits; in a pipe an error stays the only line.
    if talk.is_terminal and time_limit < RUNNING_S and targets_of(Path(model).suffix.lower()):
        talk.print(
            f"each run in a runtime may take {RUNNING_S:g} s, beyond --time-limit {time_limit:g} s too", style="dim"
        )
    result = run_fit(
        model,
        output=output,
        target=target,
        shapes=parse_shapes(shapes),
        ram_bytes=ram,
        time_limit_s=time_limit,
        rewrite=rewrite,
        inexact=inexact,
        max_recompute=parse_share(max_recompute),
        on_chip=on_chip or (),
        slower=None if slower is None else parse_factor(slower),
        session=session,
        trust=trust,
    )
    if map_path is not None:
        after = result.together.arena if result.ships_plan else result.before
        picture = memory_map([("before", result.before), ("after", after)])
        write_whole(map_path, picture.encode(), source=Path(model))
    if as_json:
        print_json("fit", fit_json(result))
    else:
        _print_screen(result, console())
    for note in result.notes:
        talk.print(f"note: {printable(note)}", style="dim", markup=False, soft_wrap=True)


def _print_screen(result: Fit, out: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(f"{result.model} on {result.target}"), style="italic"), title_justify="left")
    for column in ("bytes", "before", "after", "lower bound", "gap", "proven"):
        table.add_column(column, justify="left" if column == "bytes" else "right", no_wrap=True)
    for name, figure in (("peak", result.peak), ("arena", result.arena)):
        gap = (figure.after - figure.bound) / figure.bound if figure.bound else 0.0
        table.add_row(
            name,
            format_bytes(figure.before),
            format_bytes(figure.after),
            format_bytes(figure.bound),
            f"{gap:.1%}",
            "yes" if figure.proven else "no",
        )
    if result.measured is not None:
        measured = result.measured
        held = "held" if measured.rows else "measured"
        table.add_row(
            f"{held} in {measured.runtime}", format_bytes(measured.before), format_bytes(measured.after), "", "", ""
        )
    out.print(table)
    if result.measured is not None and result.measured.rows:
        out.print(_sessions_table(result.measured.rows, "what the file gains, and what its session's settings gain"))
        if len(result.measured.front) > 1:
            out.print(_sessions_table(result.measured.front, "memory against time: what no other beats in both"))
    for line in fit_lines(result):
        out.print(Text(printable(line)), soft_wrap=True)


def _sessions_table(rows: Sequence[SessionTaken], title: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_style="italic", title_justify="left")
    columns = ("file, settings", "in use", "arena holds", "process grows by", "ms", "against default")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*session_cells(row))
    return table
