"""`downset simulate`: run a pipeline plan frame by frame, on paper."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import rich_click as click

from downset.commands.options import SECONDS, console, print_json
from downset.errors import InvalidPlan, UsageError
from downset.text import parse_seconds, printable

if TYPE_CHECKING:
    from downset.distributed.simulator import Disturbance
    from downset.plans import Pipeline

__all__ = ["simulate"]


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path())
@click.option("--frames", type=click.IntRange(1, 100_000), default=1000, show_default=True)
@click.option("--arrival", type=SECONDS, help="A frame comes this often; without it one is always waiting.")
@click.option(
    "--jitter",
    type=click.FloatRange(0, 100),
    default=0.0,
    show_default=True,
    help="Of computing times, as a share of their mean.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the jitter.")
@click.option("--fail", "fails", multiple=True, metavar="DEVICE@10s", help="The device dies then; repeatable.")
@click.option("--slow", "slows", multiple=True, metavar="DEVICE@10s*2", help="It takes that many times as long.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/simulate.json).")
def simulate(
    plan_file: str, frames: int, arrival: float | None, jitter: float, seed: int, fails: tuple[str, ...],
    slows: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Simulate PLAN (from `downset split -o`): period, latency, utilisation, redundancy, energy."""
    from downset.distributed.simulator import simulate as run
    from downset.formats.plan_json import read_plan
    from downset.pipelines.check import verify_without_graph
    from downset.plans import Pipeline

    plan = read_plan(plan_file)
    if not isinstance(plan, Pipeline):
        raise UsageError(f"{plan_file} is no pipeline plan; make one with downset split -o")
    try:
        verify_without_graph(plan)
    except InvalidPlan as error:
        raise InvalidPlan(f"{plan_file}: {error}") from None
    disturbances = [_disturbance(plan, text, dies=True) for text in fails]
    disturbances += [_disturbance(plan, text, dies=False) for text in slows]
    with _progress(frames) as progress:
        found = run(
            plan, frames=frames, arrival_s=arrival, jitter=jitter, seed=seed, disturbances=disturbances,
            progress=progress,
        )  # fmt: skip
    if as_json:
        names = [device.name for device in plan.cluster.devices]
        print_json(
            {
                "frames": found.frames,
                "completed": found.completed,
                "period_s": found.period_s if found.completed else None,
                "analytic_period_s": plan.period_s,
                "latency_s": dict(
                    zip(("p50", "p90", "p99", "max"), found.latency_s if found.completed else [None] * 4, strict=True)
                ),
                "utilisation": dict(zip(names, found.utilisation, strict=True)),
                "redundancy": dict(zip(names, found.redundancy, strict=True)),
                "energy_j": found.energy_j,
                "stalled_at_s": found.stalled_at_s,
            }
        )
        return
    names = [printable(device.name) for device in plan.cluster.devices]
    out = console()
    latencies = zip(("p50", "p90", "p99", "max"), found.latency_s, strict=True)
    lines = [
        f"simulated: {found.completed} of {found.frames} frames, period {found.period_s:.6g} s (analytic "
        f"{plan.period_s:.6g} s)",
        "latency: "
        + ", ".join(f"{quantile} {seconds:.4g} s" for quantile, seconds in latencies)
        + f" (analytic, one frame alone: {plan.latency_s:.4g} s), from when the first stage begins with a frame"
        + (f"; up to {found.window} frames are inside at once" if arrival is None else ""),
        "utilisation: " + ", ".join(f"{n} {u:.0%}" for n, u in zip(names, found.utilisation, strict=True)),
        "redundancy: " + ", ".join(f"{n} {r:.1%}" for n, r in zip(names, found.redundancy, strict=True)),
    ]
    if not found.completed:
        lines = [f"simulated: none of {found.frames} frames was completed (analytic period {plan.period_s:.6g} s)"]
    if found.energy_j is not None:
        lines.append(f"energy: {found.energy_j:.4g} J a frame")
    if 0 < found.completed < 3 * found.window:
        lines.append(f"few frames: the pipeline fills and drains in {found.window} each; give --frames more")
    if found.stalled_at_s is not None:
        lines.append(f"stalled at {found.stalled_at_s:.6g} s: a dead device is needed for every frame after that")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


@contextmanager
def _progress(frames: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.progress import Progress

    talk = console(stderr=True)
    with Progress(console=talk, transient=True, disable=not talk.is_terminal) as bar:
        task = bar.add_task("frames", total=frames)
        yield lambda left: None if left % 100 else bar.update(task, completed=left)


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
        raise UsageError(f"{where}: a device takes more than 0 times as long")
    try:
        return Disturbance(names.index(match[1]), parse_seconds(match[2], zero=True), factor)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
