"""`downset run`: runs a model by a plan of stages, on given or random inputs, and compares with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import OutputsDiffer, json_option, print_json
from downset.commands.inputs import dims_at_batch, stages_of, tell_note
from downset.commands.options import (
    console,
    path_option,
    size_options,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.commands.pictures import written_lines
from downset.commands.waiting import reading, waiting
from downset.commands.wording import worded

if TYPE_CHECKING:
    from downset.graph.core import Graph, Tensor
    from downset.results.plans import StagePlan

__all__ = ["run"]

_STARTING_S = 2.0
"""Seconds, about, to open a device and copy the weights to it, in addition to the runs."""


@click.command()
@click.argument("model", type=click.Path())
@path_option(
    "--plan",
    "plan_path",
    required=True,
    help="The plan that `downset stage -o` wrote. Its batch is that of the run.",
)
@click.option("--input", "inputs", multiple=True, type=click.Path(), help="A .npy file for each input, in order.")
@path_option("--output", "outputs", help="Write the outputs to this .npz file.")
@click.option("--check", is_flag=True, help="Compare with ONNX Runtime (.onnx models); exit 4 if they differ.")
@click.option(
    "--runs",
    type=click.IntRange(1, 10**6),
    default=5,
    show_default=True,
    help="Number of timed runs, after one untimed run.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of random inputs.")
@size_options
@time_limit_option("Time for reading and running.", as_argument=False)
@worker_memory_option
@trust_option
@json_option("run")
def run(
    model: str,
    plan_path: str,
    inputs: tuple[str, ...],
    outputs: str | None,
    check: bool,
    runs: int,
    seed: int,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, int],
    trust: bool,
    as_json: bool,
) -> None:
    """Run MODEL as the plan says; print how long it took."""
    from downset.commands.frames import check_names
    from downset.errors import InvalidPlan, UsageError
    from downset.executor.stage_engine import run_stages
    from downset.formats.onnx.data_files import weights_beside
    from downset.formats.reading import load
    from downset.process.whole_files import check_output
    from downset.reports.json_form import json_of
    from downset.reports.stages import run_document
    from downset.reports.terminal import print_document
    from downset.rewrites.rebatch import batch_or_one

    if outputs is not None:
        check_output(outputs, source=(model, plan_path, *inputs))
    if check and Path(model).suffix.lower() != ".onnx":
        raise UsageError(f"--check compares with ONNX Runtime, which runs .onnx files; {model} is not one")
    plan = stages_of(plan_path)
    if not plan.device:
        raise UsageError(f"{plan_path} was planned from prices, not for a device; make one with `downset stage`")
    talk = console(stderr=True)
    with reading(talk, model):
        dims = dims_at_batch(model, shapes, dims, plan.batch)
        loaded = load(model, shapes=shapes, dims=dims, trust=trust)
    tell_note(talk, loaded.source.note)
    if (shapes or dims) and batch_or_one(loaded) not in (1, plan.batch):  # shapes of one sample fit any batch
        raise InvalidPlan(f"the plan was made for batch {plan.batch}; the sizes given are for {batch_or_one(loaded)}")
    if outputs is not None:
        check_output(outputs, source=weights_beside(loaded))
        check_names(outputs, (loaded.tensors[tensor].name for tensor in loaded.outputs))
    arrays = [_array(path, loaded, plan) for path in inputs]
    for path, array, tensor in zip(inputs, arrays, loaded.inputs, strict=False):
        _check_dtype(path, array, loaded.tensors[tensor])
    what = f"running {Path(model).name} {runs + 1} times on {plan.device_name}"
    with waiting(talk, what, limit_s=(runs + 1) * plan.evidence.value + _STARTING_S):
        outcome = run_stages(loaded, plan, arrays, runs=runs, seed=seed, compare=check)
    if outputs is not None:
        _write_outputs(outputs, outcome.outputs)
    document = run_document(outcome, [f"{name}: {_summary(value)}" for name, value in outcome.outputs.items()])
    if not as_json:
        print_document(console(), worded(document), written=written_lines({}, (outputs, "the outputs")))
    if not outcome.agrees:
        raise OutputsDiffer(
            f"outputs differ from ONNX Runtime's by {outcome.max_relative_error:.2g} of the largest value; allowed: "
            f"{outcome.allowed_error}",
            json_of(document),
        )
    if as_json:
        print_json("run", json_of(document))


def _check_dtype(path: str, array: Any, tensor: Tensor) -> None:
    """Raise an error for an array that would lose digits in the input's type."""
    from downset.errors import UsageError

    if array.dtype.kind == "f" and tensor.dtype.startswith("float") and str(array.dtype) != tensor.dtype:
        raise UsageError(
            f"{path} is {array.dtype}, but input {tensor.name!r} takes {tensor.dtype}; convert it with "
            f"array.astype({tensor.dtype!r})"
        )


def _array(path: str, graph: Graph, plan: StagePlan) -> Any:
    """The array of a .npy file for an input of the graph."""
    import numpy as np

    from downset.errors import LoadError
    from downset.runtimes.feeds import most_input_bytes, read_array

    array = read_array(path, most_bytes=most_input_bytes(graph, batch=plan.batch))
    if not isinstance(array, np.ndarray):
        raise LoadError(f"{path} is not a .npy file; numpy.save writes one")
    return array


def _summary(value: Any) -> str:
    """Shape and range, and the number of elements that are NaN."""
    import numpy as np

    text = str(list(value.shape))
    if value.dtype.kind not in "biuf" or not value.size:
        return f"{text} of {value.dtype}"
    numbers = value[~np.isnan(value)].astype(np.float64)
    if numbers.size:
        text += f", from {numbers.min():.5g} to {numbers.max():.5g}"
    missing = value.size - numbers.size
    return f"{text}, {missing} of {value.size} not a number" if missing else text


def _write_outputs(path: str, outputs: Mapping[str, Any]) -> None:
    import io
    import zipfile

    import numpy as np

    from downset.process.whole_files import write_whole

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # numpy.savez takes some names as its arguments
        for name, value in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, value, allow_pickle=False)
    write_whole(path, buffer.getvalue())
