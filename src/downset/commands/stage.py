"""`downset stage`: runs branches side by side or merged where that was measured to be faster, and saves the plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import dims_at_batch, tell_note
from downset.commands.merged import run_export
from downset.commands.options import (
    check_runs,
    console,
    path_option,
    search_s,
    size_options,
    time_limit_option,
    trust_option,
    work_limit_option,
    worker_memory_option,
)
from downset.commands.pictures import (
    Written,
    check_pictures,
    report_option,
    trace_option,
    write_page,
    write_timelines,
    written_lines,
)
from downset.commands.waiting import counting, reading, waiting
from downset.commands.wording import worded

if TYPE_CHECKING:
    from downset.graph.core import Graph
    from downset.results.stages import StageResult

__all__ = ["stage"]


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where stages run and are timed.",
)
@click.option(
    "--batch",
    type=int,
    help="Plan for this batch size instead of the model's own; it also fixes first axes that the model leaves open.",
)
@click.option(
    "--dtype",
    default="model",
    show_default=True,
    help="Element type of floats: model, each tensor's own; or float64, float32, float16 or bfloat16, to which all "
    "floats are then cast.",
)
@click.option("--threads", type=int, help="Threads of the CPU; all of them if not given.")
@click.option("--max-ops", type=int, default=3, show_default=True, help="Most units in a group (IOS's r).")
@click.option("--max-groups", type=int, default=8, show_default=True, help="Most groups in a stage (IOS's s).")
@click.option(
    "--endings",
    type=click.Choice(["all", "ios"]),
    default="all",
    show_default=True,
    help="Stages that are tried: all that the IOS paper defines, or the fewer of its published code.",
)
@click.option(
    "--budget-timings",
    type=int,
    default=200,
    show_default=True,
    help="Stages that may be timed, single units included (those always are).",
)
@time_limit_option("Time for the search of each network block.", default="60s")
@work_limit_option
@worker_memory_option
@click.option(
    "--runs",
    type=click.IntRange(max=10**6),
    default=15,
    show_default=True,
    help="Interleaved runs of each whole candidate, at least 15.",
)
@size_options
@click.option(
    "--candidate",
    metavar="NAME",
    help="Take this candidate of the table, such as greedy, whatever its time is; the default is what measurements "
    "choose.",
)
@path_option("-o", "--output", help="Where to write the plan; without it nothing is written.")
@path_option(
    "--ort-streams",
    "streams_path",
    help="Where to write the branches as ONNX Runtime's session.node_partition_config_file, if sessions with it were "
    "faster than sequential ones; with --device cuda as streams of the GPU.",
)
@path_option(
    "--export",
    "export_path",
    help="Only merge operators, and write the network to this .onnx file if ONNX Runtime is faster with it, on one "
    "thread and on two (or on --threads).",
)
@click.option("--no-profiles", is_flag=True, help="Measure everything again and keep nothing.")
@trust_option
@report_option
@trace_option
@json_option("stage")
@click.option(
    "-q", "--quiet", is_flag=True, help="Print no progress and no notes on stderr, and no line for a written file."
)
def stage(model: str, output: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Search stages for MODEL on a device, time whole candidates, keep the best; sequential unless measured better."""
    from downset.errors import UnsupportedError, UsageError
    from downset.executor.device import open_device
    from downset.formats.onnx.data_files import weights_beside
    from downset.formats.plan_json import write_plan
    from downset.formats.reading import load
    from downset.process.whole_files import check_output
    from downset.reports.json_form import json_of
    from downset.reports.stages import stage_document
    from downset.reports.terminal import print_document, print_lines
    from downset.tuning.profiles import Profiles
    from downset.tuning.search import StageLimits
    from downset.tuning.tune import check_candidate, tune_stages

    if options["export_path"] is not None:
        run_export(model, {**options, "output": output}, as_json=as_json, quiet=quiet)
        return
    if options["candidate"] is not None:
        check_candidate(options["candidate"])
    if output is not None:
        check_output(output, source=model)
    pictures = {"--report": options["report_path"], "--trace": options["trace_path"]}
    streams_path = options["streams_path"]
    check_pictures(pictures, others={"-o": output, "--ort-streams": streams_path}, source=model)
    _check_streams(model, options, output)
    check_runs(options["runs"])
    limits = StageLimits(
        max_ops=options["max_ops"],
        max_groups=options["max_groups"],
        timings=options["budget_timings"],
        seconds=search_s(options["time_limit"], options["work_limit"]),
        work=options["work_limit"],
        endings=options["endings"],
    )
    talk = console(stderr=True, quiet=quiet)
    with reading(talk, model):
        device = open_device(options["device"], dtype=options["dtype"], threads=options["threads"])
        loaded = load(model, shapes=options["shapes"], dims=_dims(model, options), trust=options["trust"])
    tell_note(talk, loaded.source.note)
    if streams_path is not None and loaded.source.format != "onnx":
        raise UsageError(f"--ort-streams is for .onnx files, and {model} is not one")
    for path in filter(None, (output, streams_path)):
        check_output(path, source=weights_beside(loaded))
    profiles = None if options["no_profiles"] else Profiles()
    streams_alone = streams_path is not None and not as_json and output is None and not any(pictures.values())
    try:
        with counting(talk) as progress:
            result = tune_stages(
                loaded,
                device,
                batch=options["batch"],
                limits=limits,
                profiles=profiles,
                runs=options["runs"],
                progress=progress,
                peers=True,
                candidate=options["candidate"],
            )
    except UnsupportedError as error:
        if not streams_alone:
            raise
        talk.print(f"note: no stages are planned: {error}", markup=False, soft_wrap=True)
        with waiting(talk, "timing sessions of ONNX Runtime"):
            line, why_not = _write_streams(streams_path, loaded, device.threads, options)
        told = [] if quiet else _streams_lines(streams_path, why_not)
        print_lines(console(), [line, *told])
        return
    if output is not None:
        write_plan(output, result.plan)
    streams_note, why_not = "", ""
    with waiting(talk, "writing the pictures"):
        _write_pictures(result, pictures, model)
    if streams_path is not None:
        what = f"timing sessions of ONNX Runtime in {options['runs']} rounds"
        with waiting(talk, what, limit_s=_streams_s(result, options["runs"])), _named(output, pictures, quiet=quiet):
            streams_note, why_not = _write_streams(streams_path, loaded, device.threads, options)
    document = stage_document(result, title=Path(model).name, notes=[streams_note] if streams_note else [])
    if as_json:
        print_json("stage", json_of(document))
    else:
        written = [streams_note] if streams_note else []
        if not quiet:
            written += written_lines(pictures, (output, "a plan of stages"))
            written += [] if streams_path is None else _streams_lines(streams_path, why_not)
        print_document(console(), worded(document), written=written)
    for note in result.notes:
        talk.print(f"note: {note}", markup=False, soft_wrap=True)


def _dims(model: str, options: Mapping[str, Any]) -> dict[str, int]:
    """The open sizes that --dim gives, and the batch that --batch gives."""
    shapes, dims, batch = options["shapes"], options["dims"], options["batch"]
    return dims if batch is None or batch < 1 else dims_at_batch(model, shapes, dims, batch)


def _check_streams(model: str, options: Mapping[str, Any], output: str | None) -> None:
    from downset.errors import UsageError
    from downset.process.whole_files import check_output

    path = options["streams_path"]
    if path is None:
        return
    check_output(path, source=model)
    if options["batch"] is not None:
        raise UsageError("--ort-streams is for the file's own batch: leave out --batch")
    if output is not None and Path(path).resolve() == Path(output).resolve():
        raise UsageError(f"-o and --ort-streams both name {path}")


_SESSION_S = 1.5
"""Seconds, about, to open a session of ONNX Runtime in a separate process."""
_SESSIONS = 5
"""Sessions that are timed for streams: three at first, then two again."""


def _streams_s(result: StageResult, runs: int) -> float:
    """The seconds that timing streams may take, estimated from ONNX Runtime's measured time, or without it from the
    plan's."""
    measured = [seconds for name, seconds in result.peer_s.items() if name.startswith("ONNX Runtime")]
    run_s = max(measured[0]) if measured and measured[0] else result.plan.evidence.value
    return _SESSIONS * (_SESSION_S + (runs + 1) * run_s)


def _write_streams(path: str, loaded: Graph, threads: int, options: Mapping[str, Any]) -> tuple[str, str]:
    """Time ONNX Runtime's streams, and write them only if they were faster; return a line on the result, and why they
    were not written, "" if they were."""
    from downset.process.whole_files import write_whole
    from downset.tuning.ort_streams import time_streams

    shapes = {loaded.tensors[tensor].name: loaded.tensors[tensor].shape for tensor in loaded.inputs}
    runs, device = options["runs"], options["device"]
    timed = time_streams(loaded.source.path, threads=threads, runs=runs, shapes=shapes, device=device)
    if timed.kept:
        write_whole(path, timed.content())
    return str(timed), timed.why_not


def _streams_lines(path: str, why_not: str) -> list[str]:
    """The line on a file of streams, written or not."""
    if why_not:
        return [f"not written: {path} ({why_not})"]
    return written_lines({}, (path, "streams for ONNX Runtime"))


def _named(output: str | None, pictures: Mapping[str, str | None], *, quiet: bool) -> Written:
    """A context that names the files written before it, where an error ends the command."""
    written = Written(quiet=quiet)
    if output is not None:
        written.add(output, "a plan of stages")
    for option, path in pictures.items():
        if path is not None:
            written.add_picture(option, path)
    return written


def _write_pictures(result: StageResult, paths: Mapping[str, str | None], model: str) -> None:
    if all(path is None for path in paths.values()):
        return
    from downset.reports.stages import stage_document
    from downset.reports.timeline import stage_timeline

    if paths["--report"] is not None:
        write_page(paths["--report"], stage_document(result, title=Path(model).name), source=model)
    write_timelines(paths["--trace"], [stage_timeline(result.plan, result.unit_s, result.unit_names)], source=model)
