"""`downset run`: run a model by a plan of stages, on given or random inputs, and compare with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import rich_click as click

from downset.commands.options import (
    console,
    parse_shapes,
    print_json,
    time_limit_option,
    trust_option,
    worker_memory_option,
)

__all__ = ["run"]


@click.command()
@click.argument("model", type=click.Path())
@click.option("--plan", "plan_path", type=click.Path(), required=True, help="As `downset stage -o` wrote it.")
@click.option("--input", "inputs", multiple=True, type=click.Path(), help="A .npy file for each input, in order.")
@click.option("--output", "outputs", type=click.Path(), help="Write the outputs to this .npz file.")
@click.option("--check", is_flag=True, help="Compare with ONNX Runtime (.onnx models); exit 4 if they differ.")
@click.option(
    "--runs", type=click.IntRange(1, 10**6), default=5, show_default=True, help="Timed runs after one untimed."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random inputs.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Fix an input's shape; repeatable.")
@trust_option
@time_limit_option("For reading and running.", given=False)
@worker_memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/run.json).")
def run(
    model: str,
    plan_path: str,
    inputs: tuple[str, ...],
    outputs: str | None,
    check: bool,
    runs: int,
    seed: int,
    shapes: tuple[str, ...],
    trust: bool,
    as_json: bool,
) -> None:
    """Run MODEL as the plan says; print how long it took."""
    from downset.errors import InvalidPlan, UsageError
    from downset.executor.arena import seeded_inputs
    from downset.executor.device import open_device
    from downset.executor.staged import check_plan, prepare, stage_engine
    from downset.formats.onnx.write import weights_beside
    from downset.formats.plan_json import read_plan
    from downset.formats.reading import load
    from downset.formats.whole_files import check_output
    from downset.plans import StagePlan
    from downset.rewrites.rebatch import batch_or_one
    from downset.runtimes.agreement import allowed_difference, as_array

    if outputs is not None:
        check_output(outputs, source=(model, plan_path, *inputs))
    if check and Path(model).suffix.lower() != ".onnx":
        raise UsageError(f"--check compares with ONNX Runtime, which runs .onnx files; {model} is none")
    plan = read_plan(plan_path)
    if not isinstance(plan, StagePlan):
        raise UsageError(f"{plan_path} is no plan of stages; make one with `downset stage`")
    fixed = parse_shapes(shapes)
    device = open_device(plan.device, dtype=plan.dtype, threads=plan.threads if plan.device == "cpu" else None)
    loaded = load(model, shapes=fixed, trust=trust)
    if fixed and batch_or_one(loaded) not in (1, plan.batch):  # a plan for several may be asked for by one's sizes
        raise InvalidPlan(f"the plan was made for batch {plan.batch}; --shape gives {batch_or_one(loaded)}")
    if outputs is not None:
        check_output(outputs, source=weights_beside(loaded))
    graph = prepare(loaded, batch=plan.batch)
    check_plan(graph, plan, device)
    values = _given(graph, inputs) if inputs else seeded_inputs(graph, seed=seed)
    engine = stage_engine(graph, plan, device, values)
    try:
        results = [as_array(value) for value in engine.outputs()]
        seconds = engine.time(runs)
    finally:
        engine.close()
    if outputs is not None:
        _write_outputs(outputs, graph, results)
    worst = None
    if check:
        worst = _compare(model, values, results, fixed)
    if as_json:
        print_json(
            {
                "device": device.name,
                "p50_s": median(seconds),
                "runs": runs,
                "max_relative_error": worst if worst is None or worst < float("inf") else None,
            }
        )
    else:
        out = console()
        out.print(f"{device.name}: median {median(seconds) * 1e3:.3f} ms of {runs} runs", markup=False, soft_wrap=True)
        for tensor, value in zip(graph.outputs, results, strict=True):
            out.print(f"{graph.tensors[tensor].name}: {_summary(value)}", markup=False, soft_wrap=True)
    allowed = allowed_difference(plan.device, plan.dtype)
    if worst is not None and not worst <= allowed:
        raise InvalidPlan(f"outputs differ from ONNX Runtime's by {worst:.2g} of the largest value; allowed: {allowed}")
    if worst is not None and not as_json:
        console().print(f"equal to ONNX Runtime within {worst:.1e} of the largest value (allowed: {allowed})")


def _given(graph: Any, paths: Sequence[str]) -> list[Any]:
    import numpy as np

    from downset.errors import UsageError

    if len(paths) != len(graph.inputs):
        raise UsageError(f"{graph.name} has {len(graph.inputs)} inputs; --input was given {len(paths)} times")
    values = []
    for path, tensor in zip(paths, graph.inputs, strict=True):
        value, wanted = _array(path), graph.tensors[tensor]
        if value.shape != wanted.shape:
            raise UsageError(f"{path} has shape {list(value.shape)}; input {wanted.name!r} takes {list(wanted.shape)}")
        try:
            dtype = np.dtype(wanted.dtype)
        except TypeError:
            raise UsageError(f"input {wanted.name!r} of {wanted.dtype} cannot be given as a .npy file") from None
        taken = None
        if value.dtype.kind in "biuf" or (value.dtype.kind == dtype.kind == "c"):
            with np.errstate(invalid="ignore", over="ignore"):
                taken = value.astype(dtype)
        if taken is None or (dtype.kind not in "fc" and not np.array_equal(taken, value)):
            raise UsageError(f"{path} holds {value.dtype} that input {wanted.name!r} of {wanted.dtype} cannot take")
        values.append(taken)
    return values


def _array(path: str) -> Any:
    """Of a .npy file."""
    import numpy as np

    from downset.errors import LoadError

    try:
        with Path(path).open("rb") as file:
            magic = file.read(len(np.lib.format.MAGIC_PREFIX))
        if magic != np.lib.format.MAGIC_PREFIX:
            raise LoadError(f"{path} is no .npy file; numpy.save writes one")
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        reason = "it holds Python objects, not numbers" if "pickle" in str(error) else str(error)
        raise LoadError(f"cannot read {path}: {reason}") from None


def _summary(value: Any) -> str:
    """Shape and range, and how many are no numbers."""
    import numpy as np

    text = str(list(value.shape))
    if value.dtype.kind not in "biuf" or not value.size:
        return f"{text} of {value.dtype}"
    numbers = value[~np.isnan(value)].astype(np.float64)
    if numbers.size:
        text += f", from {numbers.min():.5g} to {numbers.max():.5g}"
    missing = value.size - numbers.size
    return f"{text}, {missing} of {value.size} not a number" if missing else text


def _write_outputs(path: str, graph: Any, results: Sequence[Any]) -> None:
    import io
    import zipfile

    import numpy as np

    from downset.formats.whole_files import write_whole

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:  # numpy.savez takes some names for arguments of its own
        for tensor, value in zip(graph.outputs, results, strict=True):
            with archive.open(f"{graph.tensors[tensor].name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, value, allow_pickle=False)
    write_whole(path, held.getvalue())


def _compare(model: str, values: Sequence[Any], results: Sequence[Any], shapes: Any) -> float:
    """The largest difference over the largest value, one sample at a time where the model has a batch of its own."""
    import numpy as np

    from downset.errors import InvalidPlan
    from downset.formats.reading import load
    from downset.runtimes import ort
    from downset.runtimes.agreement import difference

    loaded = load(model, shapes=shapes)
    own = loaded.tensors[loaded.inputs[0]].shape[0] if loaded.inputs else 1
    batch = values[0].shape[0] if values else 1
    parts = []
    for start in range(0, batch, own):
        feeds = {
            loaded.tensors[tensor].name: value[start : start + own]
            for tensor, value in zip(loaded.inputs, values, strict=True)
        }
        parts.append(ort.run_on(model, feeds, shapes=shapes))
    expected = [np.concatenate(outputs) if len(parts) > 1 else outputs[0] for outputs in zip(*parts, strict=True)]
    for at, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if ours.shape != theirs.shape:
            raise InvalidPlan(f"output {at} has shape {list(ours.shape)}; ONNX Runtime's has {list(theirs.shape)}")
    return difference(results, expected)
