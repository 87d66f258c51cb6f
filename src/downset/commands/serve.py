"""`downset serve`: runs a model on the devices of a cluster, frame after frame."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import given_cluster, pipeline_of, tell_note
from downset.commands.options import (
    SECONDS,
    console,
    path_option,
    size_options,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.commands.pictures import (
    Written,
    check_pictures,
    report_option,
    trace_option,
    write_page,
    write_timelines,
)
from downset.commands.waiting import reading, waiting
from downset.commands.wording import worded
from downset.errors import DownsetError, UsageError
from downset.process.command import Stopped, stopping_in_order
from downset.text import counted, format_seconds

if TYPE_CHECKING:
    from downset.commands.frames import Frames, Results
    from downset.commands.listening import Listening
    from downset.distributed.serving.serve import RunningPipeline
    from downset.graph.core import Graph
    from downset.reports.timeline import Timeline
    from downset.results.pipelines import Pipeline
    from downset.results.serving import RanTask, Served, Simulation

__all__ = ["serve"]

_BAR = 11
"""Characters of the bar of frames."""

_STOPPING_S = 60.0
"""Seconds that ending the pipeline and its nodes may take."""

_SIMULATED_FRAMES, _SIMULATED_TASKS = 200, 20_000
"""The most frames, and the most tasks, of the simulation that accompanies the measurements; it takes about a second."""


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--cluster", "cluster_file", help="A TOML file, or the name of a built-in cluster; not needed with --plan."
)
@path_option("--plan", "plan_file", help="The plan of `downset split -o`; default: planned now.")
@path_option("--input", "source", help="frames.npy, or a folder of one .npy or .npz file a frame.")
@path_option("-o", "--output", help="Where results go: .npy, or .npz for several outputs.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Take frames from clients at this address, in place of --input, until stopped (Open Inference Protocol).",
)
@click.option("--queue", type=click.IntRange(1, 65536), default=64, show_default=True, help="Most frames that wait.")
@click.option("--deadline", type=SECONDS, default="30s", show_default=True, help="Of frames that clients give none.")
@click.option("--log-json", is_flag=True, help="Log as lines of JSON.")
@click.option("--local", is_flag=True, help="Start the devices on this machine: the default without --head.")
@click.option("--head", metavar="HOST:PORT", help="Address at which to listen for `downset worker` on the devices.")
@path_option("--keys", help="This machine's folder of keys, for --head and --listen.")
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="Threads of ONNX Runtime on each device; 0: one for each core, or one with --local.",
)
@click.option("--wait", "gather_s", type=SECONDS, default="60s", show_default=True, help="Time for devices to join.")
@click.option(
    "--ahead/--no-ahead",
    default=True,
    help="Plan for losses of devices in advance, and place the shards of these plans.",
)
@click.option(
    "--spare-frames",
    type=click.IntRange(0, 64),
    default=None,
    show_default="as many as the frame window, at least 3",
    help="Frames in the pipeline beyond the plan's frame window, where memory has room: 0 for the shortest latency.",
)
@time_limit_option("Time for planning.")
@worker_memory_option
@size_options
@click.option("-v", "--verbose", is_flag=True, help="Log every frame, stage and device to stderr.")
@trust_option
@report_option
@trace_option
@json_option("serve")
@click.option(
    "-q", "--quiet", is_flag=True, help="Print no progress and no notes on stderr, and no line for a written file."
)
def serve(
    model: str,
    cluster_file: str | None,
    plan_file: str | None,
    source: str | None,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL over the devices of a cluster: frames in, results out in their order, through losses of devices."""
    from downset.commands.frames import Results, read_frames
    from downset.distributed.serving.serve import serve as run
    from downset.formats.onnx.data_files import weights_beside
    from downset.formats.reading import load
    from downset.process.whole_files import check_output
    from downset.reports.json_form import json_of
    from downset.reports.pipeline_documents import served_document
    from downset.reports.terminal import print_document
    from downset.reports.timeline import planned_timeline

    if options["local"] and options["head"] is not None:
        raise UsageError("--local starts the devices on this machine, --head waits for them: give one")
    listening = _listening(source, output, as_json=as_json, **options)
    if source is None and listening is None:
        raise UsageError(
            "--input says which frames: a .npy file with a frame a row, or a folder of .npy files; --listen takes them "
            "from clients"
        )
    pictures = {"--report": options["report_path"], "--trace": options["trace_path"]}
    given = [model, *([] if source is None else [source])]
    check_pictures(pictures, others={"-o": output}, source=given)
    talk = console(stderr=True, quiet=options["quiet"])
    with reading(talk, model):
        graph = load(model, shapes=options["shapes"], dims=options["dims"], trust=options["trust"], folded=True)
    tell_note(talk, graph.source.note)
    if output is not None:
        check_output(output, source=[*given, *(map(str, weights_beside(graph)))])
    frames = None if source is None else read_frames(source, graph)
    with waiting(talk, "planning", limit_s=options["time_limit"]):
        plan = _plan(graph, cluster_file, plan_file, options["time_limit"])
    rates_of = str(plan_file or cluster_file) if options["head"] is None else ""
    with Written(quiet=options["quiet"]) as written, ExitStack() as stack:
        stack.enter_context(stopping_in_order(_STOPPING_S))
        stack.enter_context(_logging(verbose=options["verbose"], quiet=options["quiet"], as_json=options["log_json"]))
        results = None
        if output is not None and frames is not None:
            results = stack.enter_context(Results(output, graph, len(frames)))
        with waiting(talk, f"starting {counted(len(plan.cluster.devices), 'device')}", limit_s=options["gather_s"]):
            pipeline = stack.enter_context(
                run(
                    graph,
                    plan,
                    head=options["head"],
                    keys=None if options["head"] is None else options["keys"],
                    threads=options["threads"],
                    gather_s=options["gather_s"],
                    ahead=options["ahead"],
                    spare_frames=options["spare_frames"],
                )
            )
        if frames is None:
            assert listening is not None
            listening.run(pipeline, graph, model, talk)
            return
        _run(pipeline, frames, results, written, quiet=options["quiet"])
        served, ran = pipeline.report(), pipeline.ran()
    with written, waiting(talk, "writing the pictures"):
        drawn = _drawn(plan, served, ran) if any(pictures.values()) else (None, [])
        simulation, timelines = drawn
        document = served_document(
            plan, served, model=Path(model).name, simulation=simulation, timelines=timelines, rates_of=rates_of
        )
        if pictures["--report"] is not None:
            write_page(pictures["--report"], document, source=model, packages=("onnxruntime", "ray"))
            written.add_picture("--report", pictures["--report"])
        if pictures["--trace"] is not None:
            write_timelines(pictures["--trace"], [planned_timeline(plan), *timelines], source=model)
            written.add_picture("--trace", pictures["--trace"])
    if as_json:
        print_json("serve", json_of(document) | {"files": written.paths})
    else:
        print_document(console(), worded(document), written=written.lines)


def _listening(source: str | None, output: str | None, *, as_json: bool, **options: Any) -> Listening | None:
    """The settings of --listen; None without it. Raises UsageError for outputs, as it runs until it is stopped."""
    from downset.commands.listening import Listening

    if options["listen"] is None:
        return None
    others = {"--input": source, "-o": output, "--report": options["report_path"], "--trace": options["trace_path"]}
    for name, value in {**others, "--json": as_json or None}.items():
        if value is not None:
            raise UsageError(f"--listen takes frames from clients until it is stopped: leave out {name}")
    return Listening(options["listen"], options["keys"], deadline_s=options["deadline"], queue=options["queue"])


def _drawn(
    plan: Pipeline, served: Served, ran: tuple[Pipeline, Sequence[RanTask]]
) -> tuple[Simulation | None, list[Timeline]]:
    """A simulation of the first plan, its timeline, and that of the measured tasks of the plan in use at the end."""
    from downset.distributed.simulator import simulate
    from downset.reports.timeline import measured_timeline, simulated_timeline

    used, tasks = ran
    timelines, simulation = [], None
    observed: list[RanTask] = []
    frames = min(_SIMULATED_FRAMES, _SIMULATED_TASKS // max(len(plan.tasks), 1))
    if frames > 0:
        simulation = simulate(plan, frames=frames, observe=lambda *task: observed.append(task))
    if observed:
        timelines.append(simulated_timeline(plan, observed))
    if tasks:
        timelines.append(measured_timeline(used, tasks, served.period_s))
    return simulation, timelines


def _plan(graph: Graph, cluster_file: str | None, plan_file: str | None, time_limit_s: float) -> Pipeline:
    """The plan in the file, if the cluster has its devices, or a plan made now."""
    from downset.pipelines.plan import plan_pipeline

    if plan_file is None:
        cluster = given_cluster(cluster_file, otherwise=", and so is --plan")
        return plan_pipeline(graph, cluster, time_limit_s=time_limit_s)
    plan = pipeline_of(plan_file)
    if cluster_file is not None:
        names = [device.name for device in given_cluster(cluster_file).devices]
        missing = [device.name for device in plan.cluster.devices if device.name not in names]
        if missing:
            raise UsageError(
                f"{plan_file} names device {missing[0]!r}, which is not in {cluster_file}; it has {', '.join(names)}"
            )
    return plan


def _run(pipeline: RunningPipeline, frames: Frames, results: Results | None, written: Written, *, quiet: bool) -> None:
    """Run all frames through the pipeline, with progress on a terminal. After a failure or a signal the results
    finished so far are written. Their file is added to `written`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    talk = console(stderr=True, quiet=quiet)
    room = talk.width - len(f" {len(frames)}/{len(frames)} 0:00:00 ") - _BAR
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=_BAR - 1),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=talk, transient=True, disable=quiet or not talk.is_terminal) as bar:
        task, shown_s, finished = bar.add_task("frames", total=len(frames)), 0.0, 0
        try:
            for outputs in pipeline.run(frames):
                finished += 1
                if results is not None:
                    results.add(outputs)
                if time.monotonic() - shown_s > 0.5:
                    shown_s = time.monotonic()
                    bar.update(task, completed=pipeline.report().completed, description=_rate(pipeline.report(), room))
        except (Exception, Stopped) as error:
            _finish(results, written)
            if isinstance(error, DownsetError | Stopped) and not quiet:
                error.add_lines([f"{finished:,} of {counted(len(frames), 'frame')} finished"])
            raise
    _finish(results, written)


def _finish(results: Results | None, written: Written) -> None:
    """Write the finished results, if they are wanted and there are any."""
    if results is not None and results.finish():
        written.add(results.path, results.what)


def _rate(served: Served, room: int) -> str:
    """Rate, latency and plans so far, as many of them as fit completely into `room` characters."""
    parts = ["- frames/s" if not served.period_s else f"{1 / served.period_s:.4g} frames/s"]
    if served.planned_period_s:
        parts.append(f"planned {1 / served.planned_period_s:.4g}")
    if served.latency_s is not None:
        parts += [f"p50 {format_seconds(served.latency_s[0])}", f"p99 {format_seconds(served.latency_s[2])}"]
    if served.replans:
        parts.append(f"planned again {counted(served.replans, 'time')}")
    while len(parts) > 1 and len(", ".join(parts)) > room:
        parts.pop()
    return ", ".join(parts)


@contextmanager
def _logging(*, verbose: bool, quiet: bool, as_json: bool) -> Iterator[None]:
    import logging
    import sys

    from downset.commands.listening import JsonLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(message)s"))
    logs = [logging.getLogger(name) for name in ("downset.serving", "downset.service")]
    before = [(log.level, log.propagate) for log in logs]
    for log in logs:
        log.setLevel(logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING)
        log.propagate = False
        log.addHandler(handler)
    try:
        yield
    finally:
        for log, (level, propagate) in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate
