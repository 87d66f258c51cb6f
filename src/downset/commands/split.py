"""`downset split`: decides which device of a cluster computes which part of a model on which rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import given_cluster
from downset.commands.options import (
    SECONDS,
    console,
    parse_shapes,
    print_table,
    search_s,
    time_limit_option,
    trust_option,
    work_limit_option,
    worker_memory_option,
)
from downset.commands.pictures import (
    check_pictures,
    print_written,
    report_option,
    trace_option,
    write_page,
    write_timelines,
    written_lines,
)
from downset.commands.waiting import reading, waiting
from downset.text import format_size, printable

if TYPE_CHECKING:
    from downset.results.pipelines import DeviceMemory, Pipeline

__all__ = ["split"]


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--cluster", "cluster_file", metavar="CLUSTER", help="A TOML file, or the name of a built-in cluster (pico_1mac)."
)
@click.option(
    "--method",
    default="exact",
    show_default=True,
    help="single, blocks, layerwise, early_fused, optimal_fused, coedge, pico, exact or exhaustive.",
)
@click.option("--max-latency", type=SECONDS, help="Longest time one frame may take through all stages.")
@click.option(
    "--comm",
    type=click.Choice(["resources", "paper"]),
    default="resources",
    show_default=True,
    help="paper: the equations of PICO, without schedules.",
)
@click.option(
    "--topology",
    type=click.Choice(["leader", "direct"]),
    default="leader",
    show_default=True,
    help="How exact hands over rows: through stages' leaders, or directly where that is faster.",
)
@click.option(
    "--source",
    metavar="DEVICE",
    help="The device where frames appear; default: outside, and bringing them costs nothing.",
)
@click.option("--sink", metavar="DEVICE", help="The device where results stay; default: outside.")
@click.option(
    "--window",
    type=click.IntRange(1, 1_000_000),
    help="The frame window: most frames in the pipeline at once; default: as many as help.",
)
@time_limit_option("Time for the search. Preparing it and checking its plan take longer for larger files.")
@work_limit_option
@worker_memory_option
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Fix an input's shape; repeatable.")
@click.option("--compare", is_flag=True, help="Also print the periods of all other methods.")
@click.option(
    "--what-if",
    is_flag=True,
    help="Also plan for one device more, for a device or links twice as fast and for twice the memory, in --time-limit "
    "together; --report does, too.",
)
@click.option("--export", "export_dir", type=click.Path(), help="Write each device's shard as ONNX into this folder.")
@click.option("-o", "--output", type=click.Path(), help="Where to write the plan; without it nothing is written.")
@trust_option
@report_option
@trace_option
@json_option("split")
@click.option("-q", "--quiet", is_flag=True, help="Print no notes on stderr, and no line for a written file.")
def split(
    model: str,
    cluster_file: str | None,
    method: str,
    compare: bool,
    output: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Plan MODEL as a pipeline over the devices of a cluster: stages, rows, period, latency, bound."""
    from downset.formats.onnx.data_files import weights_beside
    from downset.formats.plan_json import write_plan
    from downset.formats.reading import load
    from downset.joint.check import verify
    from downset.pipelines.plan import plan_pipeline
    from downset.pipelines.replan import plan_by_every_method, plan_upgraded
    from downset.reports.json_forms.pipelines import pipeline_json
    from downset.reports.next_steps import step_lines
    from downset.reports.pipelines import longest_computing
    from downset.reports.time_steps import pipeline_next_steps

    cluster = given_cluster(cluster_file)
    _check_outputs(output, options["export_dir"], (model, str(cluster_file)))
    pictures = {"--report": options["report_path"], "--trace": options["trace_path"]}
    check_pictures(pictures, others={"-o": output}, source=model)
    talk = console(stderr=True, quiet=quiet)
    with reading(talk, model, limit_s=options["time_limit"]):
        graph = load(model, shapes=parse_shapes(options["shapes"]), trust=options["trust"])
    _check_outputs(output, options["export_dir"], weights_beside(graph))
    asked = ("comm", "topology", "source", "sink", "window")
    shared = {name: options[name] for name in asked}
    limit_s, work = search_s(options["time_limit"], options["work_limit"]), options["work_limit"]
    shared |= {"max_latency_s": options["max_latency"], "time_limit_s": limit_s, "work_limit": work}
    wants_more = options["what_if"] or options["report_path"] is not None
    with waiting(talk, f"planning for {len(cluster.devices)} devices", limit_s=limit_s) as progress:
        plan = plan_pipeline(graph, cluster, method=method, **shared)
        verify(graph, plan)
        progress("planning by every other method")
        compared = plan_by_every_method(graph, cluster, plan=plan, **shared) if compare else {}
        progress("planning for a larger cluster")
        faster = longest_computing(plan)
        upgraded = plan_upgraded(graph, cluster, faster=faster, method=method, **shared) if wants_more else {}
        progress("writing shards and pictures")
        if options["export_dir"] is not None:  # before planning: not every plan can be exported
            from downset.formats.shards.write import export_shards

            export_shards(options["export_dir"], graph, plan)
        if output is not None:
            write_plan(output, plan)
        _write_pictures(plan, compared, upgraded, pictures, model)
    if as_json:
        print_json("split", pipeline_json(plan, compared, upgraded))
    else:
        out = console()
        _print_tables(plan, compared, out)
        if not quiet:
            shards = (options["export_dir"], "a folder of shards, one for each device")
            print_written(out, written_lines(pictures, (output, "a plan of a pipeline"), shards))
        for line in step_lines(pipeline_next_steps(plan, upgraded, compared)):
            out.print(line, markup=False, soft_wrap=True)
    if plan.note:
        console(stderr=True, quiet=quiet).print(f"note: {plan.note}", markup=False, soft_wrap=True)


def _check_outputs(output: str | None, export_dir: str | None, sources: Sequence[str | Path]) -> None:
    """Raise if a file cannot be written, before anything is planned or written."""
    from downset.errors import UsageError
    from downset.formats.shards.write import WRITTEN
    from downset.process.whole_files import check_folder, check_output

    if output is not None:
        check_output(output, source=sources)
    if export_dir is None:
        return
    check_folder(export_dir, sources=sources, written=WRITTEN)
    if output is not None:
        plan, folder = Path(os.path.realpath(output)), Path(os.path.realpath(export_dir))
        if plan == folder or plan in folder.parents or (plan.parent == folder and WRITTEN.fullmatch(plan.name)):
            raise UsageError(f"-o {output} is what --export {export_dir} writes; give the plan another name")


def _write_pictures(
    plan: Pipeline,
    compared: Mapping[str, Pipeline | None],
    upgraded: Mapping[str, Pipeline | None],
    paths: Mapping[str, str | None],
    model: str,
) -> None:
    if all(path is None for path in paths.values()):
        return

    from downset.reports.page.pipeline_page import pipeline_page
    from downset.reports.timeline import planned_timeline

    if paths["--report"] is not None:
        page = pipeline_page(plan, model=Path(model).name, compared=compared, upgraded=upgraded)
        write_page(paths["--report"], page, source=model)
    write_timelines(paths["--trace"], [planned_timeline(plan)], source=model)


def _ranges(cut: str, leads: str) -> str:
    """The caption of the table of stages: what its ranges and its star are."""
    said = f"a line is a block of operators; 0-16: {cut} 0 to 15 of its result"
    said = f"{said}; messages: bytes into a stage and between its devices"
    return f"{said}; *: gives the others their {cut} and gathers theirs" if leads else said


def _short(value: float) -> str:
    """A number with three digits if it is small, as a whole number if it is large."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _sizes(held: DeviceMemory | None) -> tuple[str, ...]:
    """The cells for weights, runtime, arena, and their sum."""
    if held is None:
        return ("-",) * 4
    parts = (held.weights_bytes, held.overhead_bytes, held.arena_bytes, held.total_bytes)
    return tuple(map(format_size, parts))


def _print_tables(plan: Pipeline, compared: dict[str, Pipeline | None], out: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    from downset.reports.pipelines import (
        busy_share,
        compared_lines,
        device_loads,
        hand_over_line,
        message_bytes,
        one_device_line,
        period_line,
        space_line,
        stage_rows,
        utilisation_line,
    )

    alone = one_device_line(plan)
    if alone is not None:
        out.print(alone, markup=False, soft_wrap=True)
    cut = "columns" if any(block.axis for stage in plan.stages for block in stage.blocks) else "rows"
    leads = " (* leads)" if any(stage.leader >= 0 for stage in plan.stages) else ""
    table = Table(
        "stage", "operators", f"devices: {cut}{leads}", "MMACs", "redundant", "messages", caption=_ranges(cut, leads)
    )
    for place, stage in enumerate(plan.stages):
        rows = "\n".join(stage_rows(plan, stage))
        table.add_row(
            str(place),
            str(len(stage.ops)),
            escape(rows),
            _short(stage.macs / 1e6),
            f"{stage.redundant_macs / max(stage.macs, 1):.1%}",
            format_size(message_bytes(plan, place)),
        )
    print_table(out, table)
    table = Table(
        "device",
        "computes",
        "sends",
        "receives",
        "busy",
        "weights",
        "runtime memory",
        "arena",
        "memory",
        caption="seconds of one frame; busy: the share of a period that the device is occupied",
    )
    memory = {held.device: held for held in plan.memory}
    for number, (device, load) in enumerate(zip(plan.cluster.devices, device_loads(plan), strict=True)):
        seconds = (load.compute_s, load.send_s, load.receive_s)
        busy = f"{busy_share(plan, number, load):.0%}"
        name = escape(printable(device.name))
        table.add_row(name, *(f"{one:.4g} s" for one in seconds), busy, *_sizes(memory.get(number)))
    print_table(out, table)
    said = (hand_over_line(plan), period_line(plan), space_line(plan), utilisation_line(plan))
    for line in (*said, *compared_lines(plan, compared)):
        if line is not None:
            out.print(line, markup=False, soft_wrap=True)
