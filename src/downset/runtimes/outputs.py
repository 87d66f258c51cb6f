"""Values that a file computes in a runtime on given inputs: its outputs in every run, and tensors inside it in the
first run.

Each function uses a worker process. LiteRT shows tensors inside by keeping all of them; in ONNX Runtime they are made
outputs. TFLite Micro gives outputs only: it could keep all tensors, but would then ignore the offsets in the file,
which are to be tested.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import onnxruntime_library, optional_library, torch_library
from downset.formats.onnx.data_files import save_linked
from downset.formats.onnx.inference import read_skeleton
from downset.formats.tflite.interpreter import open_interpreter
from downset.formats.tflite.read import resource_variables
from downset.process.isolation import isolated
from downset.results.sessions import DEFAULT, SessionSettings
from downset.runtimes.feeds import Feeds, saved, unpacked
from downset.runtimes.ort_settings import open_session, session_outputs
from downset.runtimes.tflm import arena_size, count_of
from downset.text import brief

__all__ = [
    "Array",
    "Computed",
    "calls_in_tflm",
    "in_litert",
    "in_ort",
    "in_tflm",
    "in_torch",
    "ort_inside",
    "with_outputs",
    "worker_outputs",
]

Array = npt.NDArray[Any]
Named = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Computed:
    """`outputs`: those of each run, in the file's order; none of one that failed. `inside`: other tensors of the first
    run, by name."""

    outputs: Sequence[Sequence[Array]]
    inside: Mapping[str, Array]


def in_litert(
    path: Named, feeds: Feeds, *, inside: Sequence[str] = (), settings: SessionSettings = DEFAULT
) -> Computed:
    """Run the file in LiteRT. All runs use one interpreter, so that states are kept from run to run. There are no
    delegates, so the order of the file is the order of execution."""
    del settings
    return worker_outputs("litert_here", path, feeds, inside)


def in_tflm(path: Named, feeds: Feeds, *, inside: Sequence[str] = (), settings: SessionSettings = DEFAULT) -> Computed:
    """Run the file in TFLite Micro. All runs use one interpreter, so that states are kept from run to run."""
    del inside, settings
    return worker_outputs("tflm_here", path, feeds)


def calls_in_tflm(path: Named, feeds: Feeds, states: Mapping[int, bytes]) -> Computed:
    """Call the file in TFLite Micro as a firmware does that keeps its states in place: `states`, the initial bytes by
    the position of the input, are put there once, and a call sets the first inputs only. Before that, calls on noise
    have left their bytes everywhere in the arena, unless the file has variables, too, which noise would reach."""
    given = {"states": [[place, initial.hex()] for place, initial in states.items()]}
    return worker_outputs("tflm_here", path, feeds, options=given)


def in_ort(path: Named, feeds: Feeds, *, inside: Sequence[str] = (), settings: SessionSettings = DEFAULT) -> Computed:
    """Run the file in ONNX Runtime with these settings. Tensors inside are those of a copy of which they are outputs:
    ONNX Runtime's optimisation may fuse that in other ways."""
    computed = worker_outputs("ort_here", path, feeds, options={"settings": settings})
    return Computed(computed.outputs, ort_inside(path, feeds[:1], inside, settings=settings) if inside else {})


def ort_inside(path: Named, feeds: Feeds, inside: Sequence[str], *, settings: SessionSettings) -> Mapping[str, Array]:
    """Tensors inside the file, by name, in a run of ONNX Runtime with these settings."""
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        opened = with_outputs(Path(path), Path(folder), inside)
        return worker_outputs("ort_here", opened, feeds, inside, options={"settings": settings}).inside


def in_torch(
    path: Named,
    feeds: Feeds,
    *,
    inside: Sequence[str] = (),
    settings: SessionSettings = DEFAULT,
    trust: bool = False,
) -> Computed:
    """Run a .pt2 file in PyTorch, call by call, in a process that has read it as data; with `trust` PyTorch loads it,
    which runs code that the file brings."""
    del inside, settings
    return worker_outputs("torch_here", path, feeds, options={"trust": trust})


def worker_outputs(
    function: str,
    path: Named,
    feeds: Feeds,
    inside: Sequence[str] = (),
    *,
    options: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> Computed:
    """Run one of the functions below, with its further `options`, in a worker process. With `failing` runs may fail one
    by one."""
    chosen = options or {}
    with saved(feeds) as where:
        arguments = msgspec.to_builtins({"path": os.fspath(path), **where, "inside": list(inside), **chosen})
        arrays, _ = isolated("downset.runtimes.outputs", function, arguments, timeout_s=timeout_s)
    count = int(arrays.pop("count"))
    outputs = [
        [arrays[f"output_{run}_{index}"] for index in range(count) if f"output_{run}_{index}" in arrays]
        for run in range(len(feeds))
    ]
    return Computed(
        outputs, {name: arrays[f"inside_{index}"] for index, name in enumerate(inside) if f"inside_{index}" in arrays}
    )


def _packed(outputs: Sequence[Sequence[Array]], inside: Mapping[int, Array]) -> dict[str, Array]:
    arrays = {
        f"output_{run}_{index}": value for run, values in enumerate(outputs) for index, value in enumerate(values)
    }
    count = {"count": np.asarray(max(map(len, outputs), default=0))}
    return arrays | {f"inside_{index}": value for index, value in inside.items()} | count


def _each(feeds: Feeds, run: Callable[[Mapping[str, Array]], list[Array]], failing: bool) -> list[list[Array]]:
    """The outputs of each run; nothing for one that fails, where that is allowed."""
    outputs: list[list[Array]] = []
    for fed in feeds:
        try:
            outputs.append(run(fed))
        except (ValueError, RuntimeError, UnsupportedError):
            if not failing:
                raise
            outputs.append([])
    return outputs


def litert_here(
    path: str, feeds: str, names: list[list[str]], inside: list[str], failing: bool = False
) -> dict[str, Array]:
    """`in_litert` inside the worker process. Inputs are given by position, since two may have the same name."""
    runs = unpacked(feeds, names)
    interpreter = open_interpreter(path, preserve=bool(inside))
    kept: dict[int, Array] = {}

    def run_once(run: Mapping[str, Array]) -> list[Array]:
        for detail, value in zip(details, run.values(), strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        values = [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]
        if not kept and inside:
            place_of = {name: index for index, name in enumerate(inside)}
            for detail in interpreter.get_tensor_details():
                if detail["name"] in place_of:
                    kept[place_of[detail["name"]]] = np.array(interpreter.get_tensor(detail["index"]))
        return values

    try:
        details = interpreter.get_input_details()
        for detail, value in zip(details, runs[0].values(), strict=True):
            if tuple(detail["shape"]) != value.shape:
                interpreter.resize_tensor_input(detail["index"], value.shape)
        interpreter.allocate_tensors()
        outputs = _each(runs, run_once, failing)
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot run {Path(path).name}: {error}") from None
    return _packed(outputs, kept)


def tflm_here(
    path: str, feeds: str, names: list[list[str]], inside: list[str], states: Sequence[tuple[int, str]] = ()
) -> dict[str, Array]:
    """`in_tflm` inside the worker process, or with `states` `calls_in_tflm`."""
    del inside
    runtime = optional_library("tflite_micro", what="running in TFLite Micro", extra="tflm").runtime
    outputs = []
    try:
        interpreter = runtime.Interpreter.from_file(path, arena_size=arena_size(path))
        if states and not resource_variables(path):
            _fill_with_noise(interpreter)
        for place, initial in states:
            detail = interpreter.get_input_details(place)
            size = int(np.prod(detail["shape"])) * np.dtype(detail["dtype"]).itemsize
            content = bytes.fromhex(initial)
            repeated = content * -(-size // len(content))
            filled = np.frombuffer(repeated, detail["dtype"], int(np.prod(detail["shape"])))
            interpreter.set_input(filled.reshape(detail["shape"]), place)
        for run in unpacked(feeds, names):
            for index, value in enumerate(run.values()):
                interpreter.set_input(value, index)
            interpreter.invoke()
            values = [np.array(interpreter.get_output(index)) for index in count_of(interpreter.get_output_details)]
            outputs.append(values)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"TFLite Micro cannot run {Path(path).name}: {error}") from None
    return _packed(outputs, {})


def _fill_with_noise(interpreter: Any) -> None:
    random = np.random.default_rng(0)
    for _ in range(3):
        for place in count_of(interpreter.get_input_details):
            detail = interpreter.get_input_details(place)
            noise = random.integers(0, 100, detail["shape"]).astype(detail["dtype"])
            interpreter.set_input(noise, place)
        interpreter.invoke()


def torch_here(path: str, feeds: str, names: list[list[str]], inside: list[str], trust: bool) -> dict[str, Array]:
    """`in_torch` inside the worker process."""
    del inside
    torch = torch_library("running .pt2 files")
    run = _trusted_run(torch, Path(path)) if trust else _run_of_data(torch, Path(path))
    try:
        with torch.no_grad():
            outputs = [run(list(fed.values())) for fed in unpacked(feeds, names)]
            arrays = [[np.asarray(value.detach().numpy()) for value in values] for values in outputs]
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"PyTorch cannot run {Path(path).name}: {brief(error)}") from None
    return _packed(arrays, {})


def _run_of_data(torch: Any, path: Path) -> Callable[[list[Array]], list[Any]]:
    from downset.formats.torch.runnable import runnable_program

    program = runnable_program(path)
    return lambda arrays: program.run(program.inputs_of(torch, arrays))


def _trusted_run(torch: Any, path: Path) -> Callable[[list[Array]], list[Any]]:
    from downset.formats.torch.read import trusted_program

    program, tree = trusted_program(path), torch.utils._pytree

    def run(arrays: list[Array]) -> list[Any]:
        tensors = [torch.from_numpy(np.ascontiguousarray(value)) for value in arrays]
        arguments, named = tree.tree_unflatten(tensors, program.call_spec.in_spec)
        return list(tree.tree_flatten(program.module()(*arguments, **named))[0])

    return run


def ort_here(
    path: str, feeds: str, names: list[list[str]], inside: list[str], settings: Any, failing: bool = False
) -> dict[str, Array]:
    """`in_ort` inside the worker process: the outputs of all runs, or those named `inside` of the first."""
    library = onnxruntime_library()
    library.set_default_logger_severity(4)
    runs = unpacked(feeds, names)
    session = open_session(library, path, msgspec.convert(settings, SessionSettings))
    if inside:
        return _packed([], dict(enumerate(session_outputs(session, runs[0], inside))))
    return _packed(_each(runs, lambda run: session_outputs(session, run), failing), {})


def with_outputs(path: Path, folder: Path, names: Sequence[str]) -> Path:
    """Write a copy of the file into `folder` in which the tensors of these names are outputs, too; ONNX Runtime infers
    their types."""
    model = read_skeleton(path)
    for name in names:
        model.graph.output.add().name = name
    return save_linked(model, path, folder)
