"""`downset fit`: make a model need less memory, prove how little it can be, and check that it computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from downset.commands.options import (
    BYTES,
    SIZES,
    console,
    parse_shapes,
    print_json,
    shape_option,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.memory.traffic import Traffic
from downset.reports.text import peak_cause
from downset.results import Figure, Fit
from downset.text import format_bytes, parse_share, printable

__all__ = ["fit", "fit_json"]


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "-o", "--output", type=click.Path(), help="Where to write the fitted model; without it nothing is written."
)
@click.option("--ram", type=BYTES, help="Fail (exit 3) if it is proven not to fit, for example 256KB.")
@click.option(
    "--target", type=click.Choice(["tflm", "litert", "ort", "torch"]), help="tflm for .tflite, ort for .onnx."
)
@shape_option
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/fit.json) instead of the screen.")
@time_limit_option("For reading, searching and writing together.")
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
    target: str | None,
    shapes: tuple[str, ...],
    trust: bool,
    as_json: bool,
    time_limit: float,
    map_path: str | None,
    rewrite: str,
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
        picture = memory_map([("before", result.before), ("after", result.together.arena)])
        write_whole(map_path, picture.encode(), source=Path(model))
    if as_json:
        print_json(fit_json(result))
    else:
        _print_screen(result, console())
    talk = console(stderr=True, quiet=quiet)
    for note in result.notes:
        talk.print(f"note: {printable(note)}", style="dim", markup=False, soft_wrap=True)


def fit_json(result: Fit) -> dict[str, Any]:
    """The stable JSON form of a fit; docs/schemas/fit.json describes it."""

    def figure(value: Figure) -> dict[str, Any]:
        return {"before": value.before, "after": value.after, "bound": value.bound, "proven": value.proven}

    measured = result.measured
    return {
        "model": result.model,
        "target": result.target,
        "peak_bytes": figure(result.peak),
        "arena_bytes": figure(result.arena),
        "measured": None
        if measured is None
        else {"runtime": measured.runtime, "before": measured.before, "after": measured.after},
        "outputs": {"equal": result.outputs.equal, "max_abs_error": result.outputs.max_abs_error},
        "output_path": result.output_path,
        "rewrites": [
            {
                "name": rewrite.name,
                "readers": list(rewrite.readers),
                "kind": rewrite.kind,
                "bytes_gained": rewrite.bytes_gained,
            }
            for rewrite in result.rewrites
        ],
        "traffic": [
            {"on_chip_bytes": row.on_chip_bytes, "before": _traffic_json(row.before), "after": _traffic_json(row.after)}
            for row in result.traffic
        ],
    }


def _traffic_json(traffic: Traffic) -> dict[str, int]:
    return {
        "read_bytes": traffic.read_bytes,
        "written_bytes": traffic.written_bytes,
        "dead_bytes_dropped": traffic.dead_bytes_dropped,
    }


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
    for line in _lines(result):
        out.print(Text(printable(line)), soft_wrap=True)


def _lines(result: Fit) -> list[str]:
    lines = [_verdict(result)]
    graph, order = result.graph, result.together.order
    steps = range(len(graph.ops)) if result.shipped in ("original", "optimised") else order.steps
    cause = peak_cause(graph, steps, result.target)
    if cause is not None:
        op = graph.ops[cause.operator]
        lines.append(
            f"peak at step {cause.step} of {len(graph.ops)}: {op.kind} {op.name!r}, where the largest live are"
        )
        lines += [f"  {format_bytes(nbytes):>12} B  {name}" for name, nbytes in cause.live[:3]]
    for rewrite in result.rewrites:
        if rewrite.kind == "row-wise":
            lines.append(f"rewritten: {rewrite.name}; the peak falls by {format_bytes(rewrite.bytes_gained)} B")
            continue
        lines.append(
            f"rewritten: {rewrite.name} taken apart ({rewrite.kind}, at {len(rewrite.readers)} operators); without "
            f"that the peak is {format_bytes(rewrite.bytes_gained)} B higher"
        )
    for row in result.traffic:
        lines.append(
            f"off-chip traffic with {format_bytes(row.on_chip_bytes)} B on chip (simulated): "
            f"{format_bytes(row.before.total_bytes)} B before, {format_bytes(row.after.total_bytes)} B after "
            "(what dies makes room at once)"
        )
    outputs = result.outputs
    if outputs.equal is None:
        lines.append(outputs.note)
    elif outputs.runtime:
        lines.append(
            f"outputs: equal bit for bit in {outputs.runtime}" if outputs.equal else f"outputs: {outputs.note}"
        )
    lines += _next_step(result)
    if result.output_path:
        lines.append(f"written: {result.output_path} ({result.shipped})")
    return lines


def _verdict(result: Fit) -> str:
    peak, arena = result.peak, result.arena
    if result.shipped == "original":
        if arena.proven:
            return "The file is already optimal: no order and no placement needs less. That is proven."
        if peak.proven:
            return "The file's order is already optimal (proven), and no better placement was found."
        return "No better order or placement was found."
    if peak.before == peak.after and peak.proven:
        return "The file's order is already optimal (proven); what is gained comes from placement."
    saved = (1 - arena.after / arena.before) if arena.before else 0.0
    return f"Arena {saved:.1%} smaller ({result.shipped})."


def _next_step(result: Fit) -> list[str]:
    """What the user does next, ready to paste."""
    if result.target == "tflm":
        if result.measured is not None:
            name = "original" if result.shipped == "original" else result.shipped
            parts = result.measured.details[name]
            total = -(-result.measured.after // 16) * 16
            return [
                f"constexpr size_t kTensorArenaSize = {total};  "
                f"// head and scratch {parts['head_bytes']} + tail {parts['tail_bytes']}, as TFLite Micro reports them"
            ]
        return [
            f"constexpr size_t kTensorArenaSize = {-(-result.arena.after // 16) * 16} + TAIL;  "
            "// tensors only: TFLite Micro's scratch and tail are not known here (see the note)"
        ]
    if result.target == "ort":
        return [
            "session options: graph_optimization_level = ORT_DISABLE_ALL, execution_order = PRIORITY_BASED "
            "(then ONNX Runtime follows the file's order)"
        ]
    return []
