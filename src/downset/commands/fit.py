"""`downset fit`: make a model need less memory, prove how little it can be, and check that it computes the same."""

from __future__ import annotations

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
from downset.reports.fit import fit_lines
from downset.reports.json_form import fit_json
from downset.results import Fit
from downset.text import format_bytes, parse_share, printable

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
    quiet: bool,
) -> None:
    """Order MODEL's operators and place its tensors for least memory; verify; write the same network to OUTPUT."""
    from downset.errors import UsageError
    from downset.fitting.fit import fit as run_fit
    from downset.formats.whole_files import check_output, write_whole
    from downset.reports.memory_map import memory_map

    if map_path is not None:
        check_output(map_path, source=model)
        if output is not None and Path(map_path).resolve() == Path(output).resolve():
            raise UsageError(f"-o and --map both name {map_path}; give each a file of its own")
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
    talk = console(stderr=True, quiet=quiet)
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
        table.add_row(
            f"measured in {measured.runtime}", format_bytes(measured.before), format_bytes(measured.after), "", "", ""
        )
    out.print(table)
    for line in fit_lines(result):
        out.print(Text(printable(line)), soft_wrap=True)
