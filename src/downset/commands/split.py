"""`downset split`: decides which device of a cluster computes which part of a model on which rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import given_cluster, tell_note
from downset.commands.method_names import METHODS
from downset.commands.options import (
    SECONDS,
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
    check_pictures,
    report_option,
    trace_option,
    write_page,
    write_timelines,
    written_lines,
)
from downset.commands.waiting import reading, waiting
from downset.commands.wording import worded

__all__ = ["split"]


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--cluster", "cluster_file", metavar="CLUSTER", help="A TOML file, or the name of a built-in cluster (pico_1mac)."
)
@click.option("--method", default="exact", show_default=True, help=f"{METHODS['plan_pipeline']}.")
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
@size_options
@click.option("--compare", is_flag=True, help="Also print the periods of all other methods.")
@click.option(
    "--what-if",
    is_flag=True,
    help="Also plan for one device more, for a device or links twice as fast and for twice the memory, in --time-limit "
    "together; --report does, too.",
)
@path_option("--export", "export_dir", help="Write each device's shard as ONNX into this folder.")
@path_option("-o", "--output", help="Where to write the plan; without it nothing is written.")
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
    from downset.pipelines.replan import plan_alone, plan_by_every_method, plan_upgraded
    from downset.reports.json_form import json_of
    from downset.reports.pipeline_documents import split_document
    from downset.reports.pipeline_sentences import longest_computing
    from downset.reports.terminal import print_document
    from downset.reports.timeline import planned_timeline

    cluster = given_cluster(cluster_file)
    _check_outputs(output, options["export_dir"], (model, str(cluster_file)))
    pictures = {"--report": options["report_path"], "--trace": options["trace_path"]}
    check_pictures(pictures, others={"-o": output}, source=model)
    talk = console(stderr=True, quiet=quiet)
    with reading(talk, model, limit_s=options["time_limit"]):
        graph = load(model, shapes=options["shapes"], dims=options["dims"], trust=options["trust"], folded=True)
    tell_note(talk, graph.source.note)
    _check_outputs(output, options["export_dir"], weights_beside(graph))
    names = ("comm", "topology", "source", "sink", "window")
    shared = {name: options[name] for name in names}
    limit_s, work = search_s(options["time_limit"], options["work_limit"]), options["work_limit"]
    shared |= {"max_latency_s": options["max_latency"], "time_limit_s": limit_s, "work_limit": work}
    wants_more = options["what_if"] or options["report_path"] is not None
    with waiting(talk, f"planning for {len(cluster.devices)} devices", limit_s=limit_s) as progress:
        plan = plan_pipeline(graph, cluster, method=method, **shared)
        verify(graph, plan)
        alone = plan_alone(graph, cluster, **shared)
        compared, upgraded = {}, {}
        if compare:
            progress("planning by every other method")
            compared = plan_by_every_method(graph, cluster, plan=plan, **shared)
        if wants_more:
            progress("planning for larger clusters")
            faster = longest_computing(plan)
            upgraded = plan_upgraded(graph, cluster, faster=faster, method=method, **shared)
        if output is not None or options["export_dir"] is not None or any(pictures.values()):
            progress("writing the files")
        if options["export_dir"] is not None:  # before the plan is written: not every plan can be exported
            from downset.formats.shards.write import export_shards

            export_shards(options["export_dir"], graph, plan)
        if output is not None:
            write_plan(output, plan)
        document = split_document(plan, model=Path(model).name, alone=alone, compared=compared, upgraded=upgraded)
        write_page(pictures["--report"], document, source=model)
        if pictures["--trace"] is not None:
            write_timelines(pictures["--trace"], [planned_timeline(plan)], source=model)
    if as_json:
        print_json("split", json_of(document))
    else:
        shards = (options["export_dir"], "a folder of shards, one for each device")
        written = [] if quiet else written_lines(pictures, (output, "a plan of a pipeline"), shards)
        print_document(console(), worded(document), written=written)
    if plan.note:
        console(stderr=True, quiet=quiet).print(f"note: {worded(plan.note)}", markup=False, soft_wrap=True)


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
