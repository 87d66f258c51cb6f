"""`downset simulate`: run a pipeline plan frame by frame, on paper."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import SECONDS, console
from downset.errors import InvalidPlan, UsageError
from downset.text import parse_seconds

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
@json_option("simulate")
def simulate(
    plan_file: str, frames: int, arrival: float | None, jitter: float, seed: int, fails: tuple[str, ...],
    slows: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Simulate PLAN (from `downset split -o`): period, latency, utilisation, redundancy, energy."""
    from downset.distributed.simulator import simulate as run
    from downset.formats.plan_json import read_plan
    from downset.joint.check import verify
    from downset.plans import Pipeline
    from downset.reports.json_form import simulation_json
    from downset.reports.simulations import simulation_lines

    plan = read_plan(plan_file)
    if not isinstance(plan, Pipeline):
        raise UsageError(f"{plan_file} is no pipeline plan; make one with downset split -o")
    try:
        verify(plan)
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
        print_json("simulate", simulation_json(found, plan))
        return
    out = console()
    for line in simulation_lines(found, plan, arrives=arrival is not None):
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
