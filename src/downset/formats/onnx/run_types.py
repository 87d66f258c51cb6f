"""Types of values that ONNX cannot infer, from runs in ONNX Runtime: those of operators that ONNX does not know, and
of all that follows them.

A type counts only where it is the same for all inputs that are tried, because some sizes depend on values. The runtime
optimises nothing in these runs, so every value is computed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import onnxruntime_library
from downset.formats.onnx.data_files import save_linked
from downset.formats.onnx.model_file import forget_shapes
from downset.formats.onnx.scope import is_open
from downset.process.isolation import isolated
from downset.process.limits import limits
from downset.text import brief

__all__ = ["complete_types"]

_WHAT = "finding shapes that ONNX cannot infer"
_LEAST = 2
"""The least runs that have to agree."""


def complete_types(onnx: Any, path: Path, model: Any) -> tuple[int, str]:
    """Complete the types of the model's values that operators make and that are read or are results, where a run of
    the file `path` tells them. The inputs of `model` have fixed sizes.

    Returns the number of types that runs told, and why others stay open where the runtime is missing or did not run
    the file (else "")."""
    graph = model.graph
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    results = [name for node in graph.node for name in node.output if name]
    left = [name for name in results if (name in types or name in read) and is_open(types.get(name))]
    if not left:
        return 0, ""
    asked = type(model)()
    asked.CopyFrom(model)
    forget_shapes(asked.graph)
    outputs = {value.name for value in graph.output}
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in left if name not in outputs)
    try:
        told = _types(path, asked.SerializeToString(), tuple(left))
    except UnsupportedError as error:
        return 0, error.message
    for value in graph.output:
        if value.name in told:
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(*told[value.name]))
    kept = [value for value in graph.value_info if value.name not in told]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    inner = (name for name in told if name not in outputs)
    graph.value_info.extend(onnx.helper.make_tensor_value_info(name, *told[name]) for name in inner)
    return len(told), ""


@lru_cache(maxsize=16)
def _types(path: Path, model: bytes, names: tuple[str, ...]) -> Mapping[str, tuple[int, tuple[int, ...]]]:
    """The (element type, shape) of the outputs of these names that are the same in all runs of a changed form of the
    model at `path`, given as its skeleton. Raises UnsupportedError where too few inputs make it run."""
    import onnx

    changed = onnx.ModelProto.FromString(model)
    with tempfile.TemporaryDirectory(prefix="downset-") as folder, limits(operators=len(changed.graph.node)):
        copy = save_linked(changed, path, Path(folder))
        arrays, _ = isolated(__name__, "types_here", {"path": str(copy), "names": list(names)})
    shapes = {name: arrays[str(place)] for place, name in enumerate(names) if str(place) in arrays}
    return {name: (int(one[0]), tuple(map(int, one[1:]))) for name, one in shapes.items()}


def types_here(path: str, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The part of `complete_types` that runs in a worker. By position in `names`: the element type and the sizes of an
    output that is a tensor of the same type in all runs."""
    runtime = onnxruntime_library(_WHAT)
    runtime.set_default_logger_severity(4)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise UnsupportedError(f"ONNX Runtime cannot load it: {brief(error)}") from None
    runs, refused = [], ""
    for kind in ("zeros", "ones", "mixed", "wide") if session.get_inputs() else ("none", "none"):
        try:
            feeds = {value.name: _array(value, kind) for value in session.get_inputs()}
            ortvalues = {name: runtime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
            runs.append([_type(value) for value in session.run_with_ort_values(list(names), ortvalues)])
        except Exception as error:
            refused = brief(error)
    if len(runs) < _LEAST:
        raise UnsupportedError(f"ONNX Runtime cannot run it: {refused}")
    types = [set(of_runs) for of_runs in zip(*runs, strict=True)]
    single = {place: next(iter(one)) for place, one in enumerate(types) if len(one) == 1}
    return {str(place): np.asarray(one, np.int64) for place, one in single.items() if one}


def _type(value: Any) -> tuple[int, ...]:
    """(element type, *sizes) of a tensor; empty for another value."""
    return (value.element_type(), *value.shape()) if value.is_tensor() else ()


_NUMPY = {"float": "float32", "double": "float64", "string": "str"}


def _array(value: Any, kind: str) -> npt.NDArray[Any]:
    """An input of a session. `mixed` and `wide`: random floats; integers are 2, and from 11 on, as sizes may follow
    from them: a wide one may enlarge what a small one leaves as it is."""
    called = value.type.removeprefix("tensor(").removesuffix(")")
    dtype, shape = np.dtype(_NUMPY.get(called, called)), tuple(value.shape)
    if kind == "zeros" or dtype.kind not in "biuf":
        return np.zeros(shape, dtype)
    if kind == "wide" and dtype.kind in "iu":
        return np.resize(np.arange(11, 43, dtype=dtype), shape)
    if kind in ("mixed", "wide") and dtype.kind == "f":
        return np.asarray(np.random.default_rng(0).standard_normal(shape), dtype)
    return np.full(shape, 2 if kind == "mixed" else 1, dtype)
