"""`downset split`: which device of a cluster computes which part of a model on which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.options import SECONDS, console, parse_shapes, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from downset.graph.core import Graph
    from downset.pipelines.tasks import DeviceLoad
    from downset.plans import Pipeline

__all__ = ["split"]


@click.command()
@click.argument("model", type=click.Path())
@click.option("--cluster", "cluster_file", required=True, help="A TOML file, or one that comes along (pico_1mac).")
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
    help="How exact hands rows on: through stages' leaders, or from device to device.",
)
@click.option("--source", metavar="DEVICE", help="Where frames come from, at a cost; default: outside, at none.")
@click.option("--sink", metavar="DEVICE", help="Where results go; default: outside.")
@click.option(
    "--window", type=click.IntRange(1, 1_000_000), help="Most frames inside at once; default: as many as help."
)
@click.option("--time-limit", type=SECONDS, default="10s", show_default=True, help="For the search.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Fix an input's shape; repeatable.")
@click.option("--compare", is_flag=True, help="Also the periods of all other methods.")
@click.option("--export", "export_dir", type=click.Path(), help="Write each device's shard as ONNX into this folder.")
@click.option("-o", "--output", type=click.Path(), help="Where to write the plan; without it nothing is written.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/split.json).")
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")
def split(
    model: str, cluster_file: str, method: str, compare: bool, output: str | None, as_json: bool, quiet: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Plan MODEL as a pipeline over the devices of a cluster: stages, rows, period, latency, bound."""
    from downset.clusters.toml_file import load_cluster
    from downset.formats.onnx.write import weights_beside
    from downset.formats.plan_json import write_plan
    from downset.formats.reading import load
    from downset.pipelines.check import verify_pipeline
    from downset.pipelines.plan import plan_pipeline

    _check_outputs(output, options["export_dir"], (model, cluster_file))
    cluster = load_cluster(cluster_file)
    graph = load(model, shapes=parse_shapes(options["shapes"]))
    _check_outputs(output, options["export_dir"], weights_beside(graph))
    asked = ("comm", "topology", "source", "sink", "window")
    shared = {name: options[name] for name in asked}
    shared |= {"max_latency_s": options["max_latency"], "time_limit_s": options["time_limit"]}
    plan = plan_pipeline(graph, cluster, method=method, **shared)
    verify_pipeline(graph, plan)
    compared = _compared(graph, cluster, plan, shared) if compare else {}
    if options["export_dir"] is not None:  # before the plan: not every plan can be exported
        from downset.formats.shards.write import export_shards

        export_shards(options["export_dir"], graph, plan)
    if output is not None:
        write_plan(output, plan)
    if as_json:
        print_json(split_json(plan, compared))
    else:
        _print_tables(plan, compared, console())
    if plan.note:
        console(stderr=True, quiet=quiet).print(f"note: {plan.note}", markup=False, soft_wrap=True)


def _check_outputs(output: str | None, export_dir: str | None, sources: Sequence[str | Path]) -> None:
    """What cannot be written is said before anything is planned or written."""
    from pathlib import Path

    from downset.errors import UsageError
    from downset.formats.shards.write import WRITTEN
    from downset.formats.whole_files import check_folder, check_output

    if output is not None:
        check_output(output, source=sources)
    if export_dir is None:
        return
    check_folder(export_dir, sources=sources, written=WRITTEN)
    if output is not None:
        plan, folder = Path(output).resolve(), Path(export_dir).resolve()
        if plan == folder or plan in folder.parents or (plan.parent == folder and WRITTEN.fullmatch(plan.name)):
            raise UsageError(f"-o {output} is what --export {export_dir} writes; give the plan another name")


def split_json(plan: Pipeline, compared: dict[str, Pipeline | None]) -> dict[str, Any]:
    """The stable JSON form; docs/schemas/split.json describes it."""
    devices = plan.cluster.devices
    memory = {held.device: held.total_bytes for held in plan.memory}
    busy = [
        {
            "device": device.name,
            "compute_s": load.compute_s,
            "send_s": load.send_s,
            "receive_s": load.receive_s,
            "memory_bytes": memory.get(number),
        }
        for number, (device, load) in enumerate(zip(devices, _loads(plan), strict=True))
    ]
    return {
        "method": plan.evidence.method,
        "comm": plan.comm,
        "topology": plan.topology,
        "source": plan.source,
        "sink": plan.sink,
        "period_s": plan.period_s,
        "latency_s": plan.latency_s,
        "load_bound_s": None if plan.schedule is None else plan.schedule.load_bound_s,
        "window": None if plan.schedule is None else plan.schedule.window,
        "bound_period_s": plan.evidence.bound,
        "proven": plan.evidence.proven,
        "space": plan.space,
        "note": plan.note,
        "stages": [
            {
                "ops": list(stage.ops),
                "leader": devices[stage.leader].name if stage.leader >= 0 else None,
                "devices": [devices[device].name for device in stage.devices],
                "blocks": [
                    {
                        "frame_rows": block.frame_rows,
                        "rule": block.rule,
                        "rows": [
                            {"device": devices[strip.device].name, "start": strip.start, "stop": strip.stop}
                            | ({"columns": list(strip.columns)} if strip.columns else {})
                            for strip in block.strips
                        ],
                    }
                    for block in stage.blocks
                ],
                "macs": stage.macs,
                "redundant_macs": stage.redundant_macs,
                "bytes": _bytes_of(plan, place),
            }
            for place, stage in enumerate(plan.stages)
        ],
        "devices": busy,
        "stopped": plan.stopped,
        "compare": {name: None if other is None else other.period_s for name, other in compared.items()},
        "compare_stopped": [name for name, other in compared.items() if other is not None and other.stopped],
    }


def _loads(plan: Pipeline) -> list[DeviceLoad]:
    from downset.pipelines.tasks import device_loads

    return device_loads(plan)


def _bytes_of(plan: Pipeline, stage: int) -> int:
    """What is sent for a stage, its input included."""
    return sum(task.transfer.nbytes for task in plan.tasks if task.transfer is not None and task.stage == stage)


def _compared(graph: Graph, cluster: Any, plan: Pipeline, shared: dict[str, Any]) -> dict[str, Pipeline | None]:
    """Plans of all methods; None where a method has no plan within the limits."""
    from downset.errors import InfeasibleError, LimitReached
    from downset.pipelines.plan import plan_pipeline
    from downset.pipelines.planners import PIPELINERS

    plans: dict[str, Pipeline | None] = {}
    for name in PIPELINERS:
        if name == plan.evidence.method:
            plans[name] = plan
            continue
        try:
            plans[name] = plan_pipeline(graph, cluster, method=name, **shared)
        except (InfeasibleError, LimitReached):
            plans[name] = None
    return plans


def _short(value: float) -> str:
    """Three digits of what is small, whole numbers of what is large."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _device_table(plan: Pipeline, names: Sequence[str]) -> Any:
    """What each device does for a frame, and what it holds."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("device", "computes", "sends", "receives", "of a period", "memory")
    memory = {held.device: held.total_bytes for held in plan.memory}
    for number, (name, load) in enumerate(zip(names, _loads(plan), strict=True)):
        seconds = (load.compute_s, load.send_s, load.receive_s)
        share = sum(seconds) / plan.period_s if plan.period_s else 0.0
        held = f"{_short(memory[number] / 1e6)} MB" if number in memory else "-"
        table.add_row(escape(name), *(f"{one:.4g} s" for one in seconds), f"{share:.0%}", held)
    return table


def _print_tables(plan: Pipeline, compared: dict[str, Pipeline | None], out: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    from downset.text import printable

    names = [printable(device.name) for device in plan.cluster.devices]
    table = Table("stage", "operators", "devices: rows (* leads)", "MMACs", "redundant", "kB sent")
    for place, stage in enumerate(plan.stages):
        rows = "\n".join(
            " ".join(
                f"{names[strip.device]}{'*' if strip.device == stage.leader else ''}: {strip.start}-{strip.stop}"
                + (f" x {strip.columns[0]}-{strip.columns[1]}" if strip.columns else "")
                for strip in block.strips
            )
            for block in stage.blocks[:4]
        ) + (f"\n... {len(stage.blocks) - 4} more blocks" if len(stage.blocks) > 4 else "")
        table.add_row(
            str(place), str(len(stage.ops)), escape(rows), _short(stage.macs / 1e6),
            f"{stage.redundant_macs / max(stage.macs, 1):.1%}", _short(_bytes_of(plan, place) / 1e3),
        )  # fmt: skip
    out.print(table)
    out.print(_device_table(plan, names))
    evidence = plan.evidence
    gap = evidence.value / evidence.bound - 1 if evidence.bound else 0.0
    proof = "proven" if evidence.proven else f"bound {evidence.bound:.6g} s, gap {gap:.1%}"
    schedule = "by the paper's equations"
    if plan.schedule is not None:
        schedule = (
            f"by resources, up to {plan.schedule.window} frames inside, busiest {plan.schedule.load_bound_s:.6g} s"
        )
    out.print(
        f"{evidence.method}: period {plan.period_s:.6g} s ({proof}), latency {plan.latency_s:.6g} s, "
        f"{plan.throughput_per_s:.4g} frames/s; analytic, {schedule}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    for name, other in sorted(compared.items(), key=lambda item: item[1].period_s if item[1] else float("inf")):
        said = "no plan within the limits"
        if other is not None:
            ratio = f" ({other.period_s / plan.period_s:.2f}x)" if plan.period_s > 0 else ""
            said = f"{other.period_s:.6g} s{ratio}{', best so far: stopped at its limit' if other.stopped else ''}"
        out.print(f"  {name:14} {said}", markup=False)
