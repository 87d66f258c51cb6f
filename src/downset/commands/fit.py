"""`downset fit`: writes a model that needs less memory, with a lower bound and a check that it computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.firmware import firmware_files, write_firmware
from downset.commands.in_memories import fit_in_memories
from downset.commands.options import (
    BYTES,
    DISTANCE,
    FACTOR,
    HOP,
    PRICES,
    SHARE,
    console,
    input_option,
    path_option,
    search_s,
    size_options,
    time_limit_option,
    trust_option,
    work_limit_option,
    worker_memory_option,
)
from downset.commands.pictures import (
    check_pictures,
    map_option,
    not_written_lines,
    report_option,
    trace_option,
    write_memory_pictures,
    write_page,
    written_lines,
)
from downset.commands.waiting import interruptible, reading
from downset.commands.wording import worded
from downset.results.fit import Fit
from downset.text import printable

if TYPE_CHECKING:
    from downset.fitting.job import RewriteName, StatesName
    from downset.reports.document import Document
    from downset.runtimes.targets import TargetName

__all__ = ["fit"]


class _FitCommand(click.RichCommand):
    """The command, which takes what stands behind `--stream=` for its value, also where it begins like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for word in args:
            option, separator, value = word.partition("=")
            if option == "--stream" and separator:
                HOP.convert(value, next(one for one in self.params if one.name == "stream"), ctx)
        return super().parse_args(ctx, args)


@click.command(cls=_FitCommand)
@click.argument("model", type=click.Path())
@path_option("-o", "--output", help="Where to write the fitted model; without it nothing is written.")
@click.option(
    "--ram",
    type=BYTES,
    help="Fail if the model is proven not to fit (exit 3), or if that is not known (exit 6); for example 256KB. For "
    "ort: bytes by which the process may grow.",
)
@click.option("--one-file", is_flag=True, help="Put no weights into a second file, to be mapped (ort).")
@click.option(
    "--arena",
    type=BYTES,
    help="Fail if the arena of the session may hold more; its program allows it no more (ort).",
)
@click.option(
    "--target",
    type=click.Choice(["tflm", "litert", "ort", "torch"]),
    help="Default: tflm for .tflite, ort for .onnx, torch for .pt2.",
)
@size_options
@input_option("Compare outputs on your own data")
@trust_option
@json_option("fit")
@time_limit_option("Processor time for all searches together.")
@work_limit_option
@worker_memory_option
@report_option
@map_option("Also draw the arenas before and after into this SVG file.")
@trace_option
@click.option(
    "--rewrite",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Take concatenations apart, and compute segments in strips that cost little, where that lowers the peak; the "
    "outputs are compared.",
)
@click.option(
    "--inexact",
    is_flag=True,
    help="Also rewrite where rounding each part changes a quantised result; the change is measured.",
)
@click.option(
    "--max-recompute",
    type=SHARE,
    metavar="10%",
    help="Compute segments in strips of rows, with at most this much more arithmetic; 0%: rows that strips share are "
    "kept.",
)
@click.option("--front", is_flag=True, help="Also measure a few plans in strips, from the most to the least memory.")
@click.option("--strips", type=click.IntRange(min=2), help="Compute segments in at most this many strips of rows.")
@click.option(
    "--kernels",
    metavar="NAME[@VERSION]",
    help="The kernels of your firmware (tflm): reference, cmsis-nn-dsp, cmsis-nn-mve, esp-nn-s3, esp-nn-p4 or "
    "esp-nn-generic. Their scratch counts. With the first three, results may lie over inputs: the file is then wrong "
    "with other kernels.",
)
@click.option(
    "--int8", is_flag=True, help="Fit the exact int8 form of a uint8 file; its inputs and outputs are smaller by 128."
)
@click.option(
    "--stream",
    type=HOP,
    is_flag=False,
    flag_value="",
    metavar="[HOP[@AXIS]]",
    help="Fit the network that is called every HOP rows and computes only what is new, in place of MODEL, which is "
    "called on overlapping windows; 8@1: along axis 1 of its input. Without a number: list hops.",
)
@click.option(
    "--states",
    type=click.Choice(["variables", "in-place", "auto"]),
    help="Where the states of a streaming file are kept (tflm): in variables, or in place in the arena, which takes "
    "least and is for TFLite Micro only; auto: in place where that is possible. Default: auto with --header, else "
    "variables.",
)
@click.option(
    "--fast",
    type=BYTES,
    help="Fit MODEL to fast memory of this size with slow memory behind it (tflm): what lies where when, and what is "
    "moved, for the least bytes to and from slow memory. Tensors, scratch and TFLite Micro's persistent part count.",
)
@click.option("--slow", type=BYTES, help="The size of the slow memory behind --fast.")
@click.option(
    "--distance",
    type=DISTANCE,
    help="The address of slow memory less that of fast memory, for example 0x3000000, or -0x3C88000 where slow memory "
    "lies lower. Default: slow memory begins where fast memory ends.",
)
@click.option(
    "--persistent",
    type=click.Choice(["fast", "slow"]),
    help="The memory that has TFLite Micro's persistent part; in slow memory its accesses are not counted. Default: "
    "fast.",
)
@click.option(
    "--prices",
    type=PRICES,
    metavar="load=2,...",
    help="What a byte costs to load, to store, and to read and write by an operator in slow memory, in any unit. "
    "Default: 1 each.",
)
@path_option(
    "--incumbent",
    help="A file that fit wrote from MODEL for no more memory: the result costs no more than it does.",
)
@click.option(
    "--slower",
    type=FACTOR,
    metavar="1.1x",
    help="Leave out what may take more than this many times the original's processor time; 1.1x if not given (no limit "
    "for ort where the arena decides).",
)
@click.option(
    "--larger",
    type=FACTOR,
    metavar="1.25x",
    help="Leave out files of more than this many times the original's bytes on disk; 1.25x if not given (2.2x for ort, "
    "where weights are mapped; no limit with --fast).",
)
@path_option(
    "--session",
    help="Also write a program that opens OUTPUT as it was measured (ort): Python, or C++ (.cc) or C# (.cs).",
)
@path_option(
    "--header",
    "header_path",
    help="Also write OUTPUT as C++ for firmware (tflm): model array, arena size, operators. A .h file holds all; a .cc "
    "file holds the array, and the .h file next to it the rest.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors on stderr, and no line for a written file.")
@click.option_panel(
    "Model and result", options=["--output", "--target", "--shape", "--dim", "--input", "--trust", "--help"]
)
@click.option_panel(
    "Limits", options=["--ram", "--slower", "--larger", "--time-limit", "--work-limit", "--worker-memory"]
)
@click.option_panel(
    "Ways to need less", options=["--stream", "--rewrite", "--inexact", "--max-recompute", "--strips", "--front"]
)
@click.option_panel("Only for .tflite files", options=["--kernels", "--int8", "--states", "--header"])
@click.option_panel(
    "Two memories", options=["--fast", "--slow", "--distance", "--persistent", "--prices", "--incumbent"]
)
@click.option_panel("Only for .onnx files", options=["--arena", "--one-file", "--session"])
@click.option_panel("What is shown", options=["--report", "--map", "--trace", "--json", "--quiet"])
def fit(
    model: str,
    output: str | None,
    ram: int | None,
    arena: int | None,
    one_file: bool,
    target: TargetName | None,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, int],
    inputs: tuple[str, ...],
    trust: bool,
    as_json: bool,
    time_limit: float,
    work_limit: int | None,
    report_path: str | None,
    map_path: str | None,
    trace_path: str | None,
    rewrite: RewriteName,
    inexact: bool,
    max_recompute: float | None,
    front: bool,
    strips: int | None,
    kernels: str | None,
    int8: bool,
    stream: tuple[int, ...] | None,
    states: StatesName | None,
    fast: int | None,
    slow: int | None,
    distance: int | None,
    persistent: str | None,
    prices: dict[str, float] | None,
    incumbent: str | None,
    slower: float | None,
    larger: float | None,
    session: str | None,
    header_path: str | None,
    quiet: bool,
) -> None:
    """Order MODEL's operators and place its tensors for least memory; verify; write the same network to OUTPUT."""
    from downset.errors import DownsetError, UnsupportedError
    from downset.fitting.fit import fit_model
    from downset.fitting.job import FitOptions, Listener
    from downset.messages import Message
    from downset.process.limits import RUNNING_S
    from downset.reports.fit_document import fit_document, further_notes
    from downset.reports.json_form import json_of
    from downset.reports.terminal import print_document
    from downset.runtimes.targets import targets_of

    pictures = {"--report": report_path, "--map": map_path, "--trace": trace_path}
    check_pictures(pictures, others={"-o": output, "--session": session, "--header": header_path}, source=model)
    firmware = firmware_files(header_path, model, output, target)
    talk = console(stderr=True, quiet=quiet)
    if any(given is not None for given in (fast, slow, distance, persistent, prices, incumbent)):
        fit_in_memories(firmware)
        return
    options = FitOptions(
        model,
        output=output,
        target="tflm" if header_path is not None else target,
        shapes=shapes,
        dims=dims,
        ram_bytes=ram,
        arena_bytes=arena,
        one_file=one_file,
        time_limit_s=search_s(time_limit, work_limit),
        work_limit=work_limit,
        rewrite=rewrite,
        inexact=inexact,
        max_recompute=max_recompute,
        strips=strips,
        front=front,
        kernels=kernels,
        int8=int8,
        stream=stream,
        states=states or ("variables" if header_path is None else "auto"),
        slower=slower,
        larger=larger,
        session=session,
        trust=trust,
        inputs=inputs,
    )
    if stream == ():
        from downset.fitting.hops import stream_hops
        from downset.reports.stream_view import hops_document

        with reading(talk, model, runs=True, limit_s=time_limit):
            document = hops_document(stream_hops(replace(options, stream=None, output=None, session=None)))
        if as_json:
            print_json("fit", json_of(document))
        else:
            print_document(console(), worded(document))
        return
    # Progress is for a user at a terminal; in a pipe an error stays the only line.
    if talk.is_terminal and time_limit < RUNNING_S and targets_of(Path(model).suffix.lower()):
        talk.print(
            f"each run in a runtime may take {RUNNING_S:g} s, also after --time-limit {time_limit:g} s",
            style="dim",
            soft_wrap=True,
        )

    def notice(line: str) -> None:
        if talk.is_terminal:
            _print_note(talk, line)

    def not_measured(reason: str) -> None:
        if header_path is not None:
            raise UnsupportedError(Message("no C++ is written, as it states what was measured: ", reason))

    with reading(talk, model, runs=True, limit_s=time_limit) as progress:
        runs_s = [0.0]

        def takes_longer(seconds: float) -> None:
            runs_s.append(seconds)
            progress.takes_longer(seconds)

        def measuring(runs: int, seconds: float) -> None:
            in_pipe = not talk.is_terminal  # where the verdict about a memory limit stays the first line
            if in_pipe and (ram is not None or arena is not None):
                return
            if seconds > max(time_limit, _LONG_S if in_pipe else 0.0):
                about = f"measuring takes about {runs} runs in the runtime and {seconds:.0f} s"
                talk.print(f"{about}; --time-limit bounds the searches alone", style="dim", soft_wrap=True)

        searching = partial(interruptible, lambda: runs_s[-1])
        try:
            result = fit_model(options, Listener(progress, notice, not_measured, takes_longer, measuring, searching))
        except DownsetError as error:
            if isinstance(error.result, Fit):  # the limit is exceeded, and the result is shown nevertheless
                document = fit_document(error.result)
                _write_pictures(error.result, document, pictures)
                error.add_lines([*written_lines(pictures), *not_written_lines(output, header_path, session)])
                error.found = json_of(document)
            raise
        if any(pictures.values()) or any(firmware):
            progress("writing pictures and firmware")
        document = fit_document(result)
        _write_pictures(result, document, pictures)
        unmade = write_firmware(result, *firmware)
    if as_json and unmade is None:
        print_json("fit", json_of(document))
    elif as_json and unmade is not None:
        unmade.found = json_of(document)
    else:
        code = ((file, "C++ for firmware") for file in firmware if unmade is None)
        program = (result.session_path or None, "a program that opens it")
        model_file = (result.output_path, result.shipped)
        written = [] if quiet else written_lines(pictures, model_file, program, *code)
        print_document(console(), worded(document), written=written)
    for note in further_notes(result):
        _print_note(talk, note)
    if unmade is not None:
        raise unmade


def _print_note(talk: Any, note: str) -> None:
    talk.print(f"note: {printable(worded(note))}", style="dim", markup=False, soft_wrap=True)


_LONG_S = 30.0
"""Seconds of measuring that are told beforehand also in a pipe, where an error is else the only line."""


def _write_pictures(result: Fit, document: Document, paths: Mapping[str, str | None]) -> None:
    if all(path is None for path in paths.values()):
        return
    from downset.reports.fit_document import fit_title, fit_views

    source, limit = result.model, None if result.ram is None or result.ram.of == "process" else result.ram.limit_bytes
    if paths["--report"] is not None:
        write_page(paths["--report"], document, source=source)
    write_memory_pictures(paths, fit_views(result), caption=fit_title(result), limit_bytes=limit, source=source)
