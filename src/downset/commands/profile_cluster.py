"""`downset profile-cluster`: measures the rates of devices and links on the running cluster, and writes them for
planners."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import tell_note
from downset.commands.options import SECONDS, console, path_option, size_options
from downset.commands.waiting import reading, waiting
from downset.text import shortened

if TYPE_CHECKING:
    from downset.distributed.profiling.measured import MeasuredCluster

__all__ = ["profile_cluster"]

_BESIDE_S = 6.0
"""Seconds, about, to join a device and to measure its links, in addition to the probes."""
_COSTS = 80
"""The time, about, to measure the costs of a device's messages, in least seconds of a batch of probes."""


@click.command("profile-cluster")
@click.option(
    "--devices", required=True, metavar="NAME,NAME,...", help="The devices to measure, by their workers' names."
)
@click.option("--local", is_flag=True, help="Start the devices on this machine, on loopback.")
@click.option(
    "--head", metavar="HOST:PORT", help="Address at which this machine listens; the workers have the same --head."
)
@path_option("--keys", help="The folder of keys of this machine (downset keys issue).")
@path_option("--model", help="Time this model's own operators; default: those of small networks.")
@size_options
@click.option(
    "--probe-time",
    "least_s",
    type=SECONDS,
    default="300ms",
    show_default=True,
    help="Least time of each of the three batches of runs of a probe.",
)
@click.option("--wait", "joins_s", type=SECONDS, default="2min", show_default=True, help="Time for devices to join.")
@path_option("-o", "--output", help="The cluster file to write; without it, it is printed.")
@json_option("profile-cluster")
@click.option("-q", "--quiet", is_flag=True, help="Print no notes on stderr.")
def profile_cluster(
    devices: str, output: str | None, as_json: bool, quiet: bool, least_s: float, joins_s: float, **options: Any
) -> None:
    """Measure a running cluster: rates by kind of operator, links with their latencies, memory of the runtime."""
    from downset.distributed.profiling.joined import joined_cluster
    from downset.distributed.profiling.measure import Effort, check_devices, measure_cluster
    from downset.distributed.profiling.measured import cluster_text
    from downset.distributed.profiling.probes import model_probes, standard_probes
    from downset.formats.onnx.data_files import weights_beside
    from downset.formats.reading import load
    from downset.process.whole_files import check_output, write_whole

    names = tuple(name.strip() for name in devices.split(",") if name.strip())
    head, keys, model = options["head"], options["keys"], options["model"]
    _check_head(head, keys, local=options["local"])
    check_devices(names)
    if output is not None:
        check_output(output, source=model)
    talk = console(stderr=True, quiet=quiet)
    graph = None
    if model is not None:
        with reading(talk, model):
            graph = load(model, shapes=options["shapes"], dims=options["dims"], folded=True)
        tell_note(talk, graph.source.note)
        if output is not None:
            check_output(output, source=weights_beside(graph))
    probes = standard_probes() if graph is None else model_probes(graph)
    effort = Effort(least_s=least_s)
    estimate_s = effort.batches * effort.least_s * len(probes)
    estimate_s += (_BESIDE_S + _COSTS * least_s) * len(names)
    with waiting(talk, f"measuring {len(names)} devices", limit_s=estimate_s) as progress:

        def show(line: str) -> None:
            progress(shortened(line, 60))
            talk.print(line, markup=False, soft_wrap=True)

        with joined_cluster(names, head=head, keys=keys, joins_s=joins_s, progress=show) as fleet:
            measured = measure_cluster(fleet, names, probes, effort=effort, progress=show)
    if model is not None:
        measured = replace(measured, what=f"operators of {model}")
    text = cluster_text(measured)
    if output is not None:
        write_whole(output, text.encode())
    if as_json:
        print_json("profile-cluster", _json_form(measured, output))
    elif output is None:
        click.echo(text, nl=False)
    else:
        talk.print(f"written: {output}; plan with downset split MODEL --cluster {output}", markup=False, soft_wrap=True)


def _check_head(head: str | None, keys: str | None, *, local: bool) -> None:
    from downset.errors import UsageError

    if local and (head is not None or keys is not None):
        raise UsageError("--local starts the devices on loopback, without keys: leave --head and --keys out")
    if not local and (head is None or keys is None):
        raise UsageError("give --head HOST:PORT and --keys DIR for a cluster of devices, or --local")


def _json_form(measured: MeasuredCluster, output: str | None) -> dict[str, Any]:
    common = measured.common
    names = [device.name for device in measured.devices]
    return {
        "path": output,
        "measured_at": measured.unix_s,
        "what": measured.what,
        "network": {
            "kind": measured.kind,
            "duplex": measured.duplex,
            "bytes_per_s": common.bytes_per_s,
            "latency_s": common.latency_s,
            "spread": common.spread,
            "occupied_bytes_per_s": common.occupied_bytes_per_s,
            "occupied_latency_s": common.occupied_latency_s,
            "links": [
                {
                    "between": [names[end] for end in pair],
                    "bytes_per_s": link.bytes_per_s,
                    "latency_s": link.latency_s,
                    "spread": link.spread,
                    "occupied_bytes_per_s": link.occupied_bytes_per_s,
                    "occupied_latency_s": link.occupied_latency_s,
                }
                for pair, link in sorted(measured.links.items())
            ],
        },
        "devices": [
            {
                "name": device.name,
                "mac_per_s": device.rates.mac_per_s,
                "alpha_of": dict(device.rates.alpha_of),
                "bytes_per_s": device.rates.bytes_per_s,
                "weight_bytes_per_s": device.rates.weight_bytes_per_s,
                "spread": device.rates.spread,
                "samples": device.rates.samples,
                "memory_bytes": device.memory_bytes,
                "runtime_bytes": device.runtime_bytes,
                "threads": device.threads,
                "messages": asdict(device.messages),
            }
            for device in measured.devices
        ],
    }
