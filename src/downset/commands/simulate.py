"""`downset simulate`: simulates a pipeline plan frame by frame."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import pipeline_of, tell_note
from downset.commands.options import SECONDS, console, path_option, size_options
from downset.commands.pictures import (
    check_pictures,
    report_option,
    trace_option,
    write_page,
    write_timelines,
    written_lines,
)
from downset.commands.waiting import reading, waiting
from downset.commands.wording import worded
from downset.errors import InvalidPlan, UsageError
from downset.text import parse_seconds

if TYPE_CHECKING:
    from downset.distributed.simulator import Disturbance
    from downset.graph.core import Graph
    from downset.results.pipelines import Pipeline
    from downset.results.serving import Simulation

__all__ = ["simulate"]

_REPLANNING_S = 10.0
"""Seconds for planning without the dead devices."""


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path())
@click.option("--frames", type=click.IntRange(1, 100_000), default=1000, show_default=True)
@click.option(
    "--arrival", "arrival_s", type=SECONDS, help="Time between two frames; without it a frame is always waiting."
)
@click.option(
    "--jitter",
    type=click.FloatRange(0, 100),
    default=0.0,
    show_default=True,
    help="Spread of computing times, as a share of their mean.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the jitter.")
@click.option("--fail", "fails", multiple=True, metavar="DEVICE@10s", help="The device dies at that time; repeatable.")
@click.option(
    "--slow",
    "slows",
    multiple=True,
    metavar="DEVICE@10s*2",
    help="From that time on the device takes this many times as long; repeatable.",
)
@path_option("--replan", "model", metavar="MODEL", help="Plan MODEL again without --fail's devices.")
@size_options
@path_option("-o", "--output", help="Where to write the plan that --replan makes.")
@report_option
@trace_option
@json_option("simulate")
def simulate(
    plan_file: str,
    fails: tuple[str, ...],
    slows: tuple[str, ...],
    model: str | None,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, int],
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate PLAN (from `downset split -o`): period, latency, what devices do, queues, redundancy, energy."""
    from downset.formats.onnx.data_files import weights_beside
    from downset.formats.plan_json import write_plan
    from downset.formats.reading import load
    from downset.joint.check import verify
    from downset.process.whole_files import check_output
    from downset.reports.json_form import json_of
    from downset.reports.pipeline_documents import simulation_document
    from downset.reports.terminal import print_document
    from downset.reports.timeline import planned_timeline, simulated_timeline

    if model is None and (output is not None or shapes or dims):
        raise UsageError("-o, --shape and --dim are for the plan that --replan MODEL makes: give --replan")
    if output is not None:
        check_output(output, source=[plan_file, str(model)])
    pictures = {"--report": options.pop("report_path"), "--trace": options.pop("trace_path")}
    check_pictures(pictures, others={"-o": output}, source=[plan_file] if model is None else [plan_file, model])
    plan = pipeline_of(plan_file)
    try:
        verify(plan)
    except InvalidPlan as error:
        raise InvalidPlan(f"{plan_file}: {error}") from None
    dead = [_disturbance(plan, text, dies=True) for text in fails]
    slow = [_disturbance(plan, text, dies=False) for text in slows]
    anew, talk = None, console(stderr=True)
    if model is not None:
        with reading(talk, model):
            graph = load(model, shapes=shapes, dims=dims, folded=True)
        tell_note(talk, graph.source.note)
        if output is not None:
            check_output(output, source=weights_beside(graph))
        with waiting(talk, "planning without the dead devices", limit_s=_REPLANNING_S):
            anew = _anew(plan, plan_file, model, graph, dead)
    ran = _Observed() if any(pictures.values()) else None
    simulation = _simulated(plan, [*dead, *slow], options, ran)
    found_anew = None if anew is None else _simulated(anew, [], options)
    if anew is not None and output is not None:
        write_plan(output, anew)
    timelines = [simulated_timeline(plan, ran.tasks)] if ran is not None and ran.tasks else []
    arrives = options["arrival_s"] is not None
    document = simulation_document(
        plan,
        simulation,
        model=Path(plan_file).name,
        timelines=timelines,
        arrives=arrives,
        replanned=anew is not None,
    )
    with waiting(talk, "writing the pictures"):
        write_page(pictures["--report"], document, source=plan_file)
        write_timelines(pictures["--trace"], [planned_timeline(plan), *timelines], source=plan_file)
    without_dead = None
    if anew is not None and found_anew is not None:
        without_dead = simulation_document(anew, found_anew, arrives=arrives)
    if as_json:
        replan = {} if without_dead is None else {"replan": json_of(without_dead)}
        print_json("simulate", json_of(document) | replan)
        return
    written = written_lines(pictures, (output, "a plan of a pipeline, without the dead devices"))
    print_document(console(), worded(document), written=written)
    if anew is not None and without_dead is not None:
        console().print(f"planned again by {anew.evidence.method} without the dead devices:")
        print_document(console(), worded(without_dead))


class _Observed:
    """The latest tasks that a simulation ran; pictures show a few periods."""

    def __init__(self) -> None:
        self.tasks: deque[tuple[int, int, float, float]] = deque(maxlen=200_000)

    def __call__(self, frame: int, task: int, begin: float, end: float) -> None:
        self.tasks.append((frame, task, begin, end))


def _simulated(
    plan: Pipeline, disturbances: list[Disturbance], options: dict[str, Any], ran: _Observed | None = None
) -> Simulation:
    from downset.distributed.simulator import simulate as run

    with _progress() as progress:
        return run(plan, disturbances=disturbances, progress=progress, observe=ran, **options)


def _anew(plan: Pipeline, plan_file: str, model: str, graph: Graph, dead: list[Disturbance]) -> Pipeline:
    """A plan for the devices that are not dead. Raises if the graph is not that of the plan."""
    from downset.pipelines.check import verify_pipeline
    from downset.pipelines.replan import replan

    if not dead:
        raise UsageError("--replan plans without the devices of --fail: give at least one")
    try:
        verify_pipeline(graph, plan)
    except InvalidPlan as error:
        raise UsageError(f"{plan_file} is not a plan of {model}: {error}") from None
    return replan(graph, plan, [item.device for item in dead], time_limit_s=_REPLANNING_S)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    from rich.progress import Progress

    talk = console(stderr=True)
    with Progress(console=talk, transient=True, disable=not talk.is_terminal) as bar:
        task = bar.add_task("frames")
        yield lambda done, of: None if done % 100 else bar.update(task, completed=done, total=of)


def _disturbance(plan: Pipeline, text: str, *, dies: bool) -> Disturbance:
    from downset.distributed.simulator import Disturbance

    where = f"{'--fail' if dies else '--slow'} {text!r}"
    match = re.fullmatch(r"(.+)@([^*@]+)" + ("" if dies else r"\*(\d+(?:\.\d+)?)"), text)
    if match is None:
        raise UsageError(f"{where} is not {'DEVICE@10s' if dies else 'DEVICE@10s*2'}")
    names = [device.name for device in plan.cluster.devices]
    if match[1] not in names:
        raise UsageError(f"{where}: no device is called {match[1]!r}; the plan has {', '.join(names)}")
    factor = math.inf if dies else float(match[3])
    if not factor > 0:
        raise UsageError(f"{where}: the factor must be above 0")
    try:
        return Disturbance(names.index(match[1]), parse_seconds(match[2], zero=True), factor)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
