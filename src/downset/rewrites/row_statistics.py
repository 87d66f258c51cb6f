"""The normalisations and means over rows of a network that can be computed in two passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.parts import Part

__all__ = ["Site", "reduced", "sites"]

_FIRST_VERSION = 13
"""The first version of ONNX's operators of which all that are used here have today's form, but for axes."""


@dataclass(frozen=True, slots=True)
class Site:
    """A normalisation or a mean. `ops`: the operators whose place it takes, the last of which makes `result`. `groups`:
    how many statistics there are for each image; 0 for a mean of the image itself. `scale` and `bias`: constants, or
    ABSENT, for each channel, for each group, or with `by_element` for each element."""

    ops: tuple[int, ...]
    source: int
    result: int
    groups: int = 0
    scale: int = ABSENT
    bias: int = ABSENT
    epsilon: float = 0.0
    by_element: bool = False


def sites(graph: Graph) -> Iterator[Site]:
    """Yields those of a network whose tensors no rewrite has divided or joined."""
    torch = graph.source.format == "torch"
    is_onnx = graph.source.format in ("onnx", "built") and graph.source.version >= _FIRST_VERSION
    if not (is_onnx or torch) or not _is_plain(graph):
        return
    made_by, read_by = graph.producers(), graph.consumers()
    for index, op in enumerate(graph.ops):
        if not op.inputs or op.inputs[0] == ABSENT or graph.tensors[op.inputs[0]].dtype != "float32" or op.after:
            continue
        yield from _simple_site(graph, index, op)
        if torch:
            yield from _pytorch_site(graph, index, op)
            continue
        yield from _function_site(graph, made_by, index, op)
        if op.kind == "InstanceNormalization":
            yield from _instance_site(graph, made_by, read_by, index)


def _instance_site(
    graph: Graph, made_by: Sequence[int], read_by: Sequence[Sequence[int]], index: int
) -> Iterator[Site]:
    """The site of an InstanceNormalization, alone or between two reshapes, if it is one."""
    op = graph.ops[index]
    if any(graph.constant(tensor) is None for tensor in op.inputs[1:3]):
        return
    source, result, shape = op.inputs[0], op.outputs[0], graph.tensors[op.inputs[0]].shape
    scale, bias, epsilon = op.inputs[1], op.inputs[2], float(op.attrs.get("epsilon", 1e-5))
    if len(shape) == 4 and shape[2] > 1:
        yield Site((index,), source, result, shape[1], scale, bias, epsilon)
        return
    before, behind = made_by[source], read_by[result][0] if len(read_by[result]) == 1 else -1
    if min(before, behind) < 0 or {*graph.outputs} & {source, result} or len(read_by[source]) != 1:
        return
    one, two = graph.ops[before], graph.ops[behind]
    image = graph.tensors[one.inputs[0]].shape if one.inputs else ()
    if {one.kind, two.kind} != {"Reshape"} or len(image) != 4 or graph.tensors[two.outputs[0]].shape != image:
        return
    if len(shape) == 3 and shape[0] == image[0] and image[1] % shape[1] == 0 and image[2] > 1 and not two.after:
        yield Site((before, index, behind), one.inputs[0], two.outputs[0], shape[1], scale, bias, epsilon)


def _simple_site(graph: Graph, index: int, op: Op) -> Iterator[Site]:
    """The site of a LayerNormalization or a mean over rows and columns of an image of several rows, if it is one."""
    shape = graph.tensors[op.inputs[0]].shape
    if len(shape) != 4 or shape[2] < 2 or len([one for one in op.outputs if one != ABSENT]) != 1:
        return
    if op.kind == "LayerNormalization":
        axis = int(op.attrs.get("axis", -1)) % 4
        constant = all(graph.constant(tensor) is not None for tensor in op.inputs[1:] if tensor != ABSENT)
        if axis in (1, 2) and constant and op.attrs.get("stash_type", 1) == 1:
            scale, bias = (*op.inputs[1:3], ABSENT)[:2]
            groups, epsilon = 1 if axis == 1 else shape[1], float(op.attrs.get("epsilon", 1e-5))
            yield Site((index,), op.inputs[0], op.outputs[0], groups, scale, bias, epsilon, by_element=True)
    elif op.kind == "GlobalAveragePool" or (op.kind == "ReduceMean" and reduced(graph, op) in ([2, 3], [1, 2, 3])):
        yield Site((index,), op.inputs[0], op.outputs[0])


_PYTORCH: Mapping[str, Sequence[Any]] = {
    "aten::group_norm.default": (1, None, None, 1e-5, True),
    "aten::instance_norm.default": (None, None, None, None, True, 0.1, 1e-5, True),
    "aten::layer_norm.default": ((), None, None, 1e-5, True),
}
"""PyTorch's normalisations with the arguments behind the first one, as they are by default."""


def _pytorch_site(graph: Graph, index: int, op: Op) -> Iterator[Site]:
    """The site of a normalisation of an image with its own kind, if it is one."""
    shape = graph.tensors[op.inputs[0]].shape
    if op.kind not in _PYTORCH or len(shape) != 4 or shape[2] < 2 or op.attrs["call"]["kwargs"]:
        return
    given = op.attrs["call"]["args"][1:]
    given = [*given, *_PYTORCH[op.kind][len(given) :]]
    if op.kind == "aten::group_norm.default":
        groups, scale, bias, epsilon, _ = given
    elif op.kind == "aten::layer_norm.default":
        sizes, scale, bias, epsilon, _ = given
        groups = {3: 1, 2: shape[1]}.get(len(sizes), 0)
    else:
        scale, bias, *kept, own, _, epsilon, _ = given
        groups = shape[1] if own and kept == [None, None] else 0
    scale, bias = (ABSENT if one is None else op.inputs[one["tensor"]] for one in (scale, bias))
    constant = all(one == ABSENT or graph.constant(one) is not None for one in (scale, bias))
    if groups and shape[1] % groups == 0 and constant and (scale != ABSENT or bias == ABSENT):
        by_element = op.kind == "aten::layer_norm.default"
        yield Site((index,), op.inputs[0], op.outputs[0], groups, scale, bias, float(epsilon), by_element)


def _function_site(graph: Graph, made_by: Sequence[int], index: int, op: Op) -> Iterator[Site]:
    """The site of a GroupNormalization of which `op` is the last of its plain operators, if it is one: a product with
    the scale and a sum with the bias, both for each channel, of (x - mean) / sqrt(variance + epsilon), where the
    variance is the mean of the squares less the square of the mean."""

    def of(tensor: int, kind: str) -> tuple[int, ...]:
        """The inputs of the operator of this kind that makes a tensor, past reshapes and casts of one type."""
        tensor = _unreshaped(graph, made_by, tensor)
        maker = graph.ops[made_by[tensor]] if made_by[tensor] >= 0 else None
        return maker.inputs if maker is not None and maker.kind == kind else ()

    image = graph.tensors[op.outputs[0]].shape
    if op.kind != "Reshape" or len(image) != 4 or image[2] < 2:
        return
    try:
        scaled, bias = of(op.inputs[0], "Add")
        scale, normal = of(scaled, "Mul")
        deviation, root = of(normal, "Div")
        x, mean = of(deviation, "Sub")
        (shifted,) = of(root, "Sqrt")
        variance, least = of(shifted, "Add")
        of_squares, squared = of(variance, "Sub")
        squares, *_ = of(of_squares, "ReduceMean")
        source, *_ = of(mean, "ReduceMean")
        (one, other), (first, second) = of(squares, "Mul"), of(squared, "Mul")
        same = one == other == source == x and first == second == mean
    except ValueError:  # another operator, or another number of inputs
        return
    whole, shape = _unreshaped(graph, made_by, x), graph.tensors[x].shape
    factors, added = (_unreshaped(graph, made_by, tensor) for tensor in (scale, bias))
    values = [graph.constant(tensor) for tensor in (factors, added)]
    epsilon = graph.constant(_unreshaped(graph, made_by, least))
    means = graph.tensors[mean].shape
    if (
        same
        and graph.tensors[whole].shape == image
        and means == (*shape[:2], 1) == (image[0], shape[1], 1)
        and all(value is not None and value.size == image[1] for value in values)
        and epsilon is not None
        and epsilon.size == 1
        and graph.tensors[scale].shape == graph.tensors[bias].shape == (1, image[1], 1)
    ):
        yield Site((index,), whole, op.outputs[0], shape[1], factors, added, float(epsilon.reshape(())))


def _unreshaped(graph: Graph, made_by: Sequence[int], tensor: int) -> int:
    """The tensor of which this one is a reshape, or a cast to the type that it has."""
    while made_by[tensor] >= 0:
        op = graph.ops[made_by[tensor]]
        if op.kind not in ("Reshape", "Cast") or graph.tensors[op.inputs[0]].dtype != graph.tensors[tensor].dtype:
            break
        tensor = op.inputs[0]
    return tensor


def reduced(graph: Graph, op: Op) -> list[int]:
    """The axes of an image over which an operator takes the mean; none where they are not known."""
    if op.kind == "GlobalAveragePool":
        return [2, 3]
    axes = op.attrs.get("axes") or []
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        value = graph.constant(op.inputs[1])
        axes = [] if value is None else value.reshape(-1).tolist()
    return sorted({int(axis) % 4 for axis in axes})


def _is_plain(graph: Graph) -> bool:
    """Whether no rewrite has divided or joined tensors of the file; constants may have been folded."""
    whole = all(part == Part(graph.tensors[tensor].name) for tensor, part in graph.source.parts.items())
    return whole and not graph.source.joined
