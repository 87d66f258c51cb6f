"""A rewritten network as the JSON of a `.pt2` file. Calls that a rewrite did not change are copied. One that computes
some rows is a copy, too, with other tensors, pads and sizes; it never writes into its input. `new_calls` has the calls
that are new."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from downset.formats.torch.archive import DTYPES, STRIDED
from downset.formats.torch.kinds import adds_first
from downset.formats.torch.new_calls import Argument, argument, new_call
from downset.formats.torch.program import TorchProgram
from downset.graph.core import Graph, Op, Tensor
from downset.graph.kinds import kind_of
from downset.graph.parts import Part

__all__ = ["rewritten_body"]

Node = dict[str, Any]

_WINDOWS = {
    "conv": ("input", "weight", "bias", "stride", "padding"),
    "conv_transpose": ("input", "weight", "bias", "stride", "padding", "output_padding"),
    "pool": ("self", "kernel_size", "stride", "padding"),
}
"""The first arguments of windows, by name, up to the last one that a strip states."""
_RESHAPES = frozenset({"view", "reshape", "flatten", "_unsafe_view", "unflatten"})


def rewritten_body(
    body: dict[str, Any], program: TorchProgram, graph: Graph, steps: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Part]]:
    """(the graph of the file with the operators of the rewritten network in the order `steps`; by the name of each new
    value the part of the file's values that it holds). Raises UnsupportedError for an operator of which PyTorch
    has no call in this form."""
    return _BodyWriter(body, program, graph).written(steps)


@dataclass(slots=True)
class _BodyWriter:
    body: dict[str, Any]
    program: TorchProgram
    graph: Graph
    names: dict[int, str] = field(default_factory=dict)
    """By tensor: the name of its value in the file that is written."""
    _taken: set[str] = field(default_factory=set)

    def written(self, steps: Sequence[int]) -> tuple[dict[str, Any], dict[str, Part]]:
        graph, values = self.graph, self.body["tensor_values"]
        file_names = {
            f"{call.name}.{position}": value.name
            for call in self.program.calls
            if call.several
            for position, value in enumerate(call.results)
        }
        self._taken |= {*values, *(call.name for call in self.program.calls)}
        results = {
            tensor
            for op, place in zip(graph.ops, graph.source.op_index, strict=True)
            if place < 0
            for tensor in op.outputs
        }
        for index, tensor in enumerate(graph.tensors):
            name = file_names.get(tensor.name, tensor.name)
            new = index in results and name not in values
            self.names[index] = self._unique(name) if new else name
        nodes = [self._node(step) for step in steps]
        kept = {name for node in nodes for name in _named(node)} | {*_named(self.body["inputs"])}
        kept |= {*_named(self.body["outputs"])}
        stated = {name: meta for name, meta in values.items() if name in kept}
        for index in sorted(results):
            if self.names[index] not in stated and not graph.tensors[index].is_workspace:
                stated[self.names[index]] = _meta(graph.tensors[index], values)
        parts = {
            self.names[tensor]: Part(file_names.get(part.of, part.of), part.box, part.terms)
            for tensor, part in sorted(graph.source.parts.items())
            if self.names[tensor] in stated
        }
        return {**self.body, "nodes": nodes, "tensor_values": stated}, parts

    def _unique(self, name: str) -> str:
        """The name as an identifier that no other value has: PyTorch makes variables of names."""
        plain = unique = re.sub(r"\W", "_", name)
        number = 2
        while unique in self._taken:
            unique, number = f"{plain}_{number}", number + 1
        self._taken.add(unique)
        return unique

    def _node(self, step: int) -> Node:
        op, source = self.graph.ops[step], self.graph.source
        if source.op_index[step] >= 0:
            return self.body["nodes"][source.op_index[step]]  # type: ignore[no-any-return]
        settings = source.settings_of[step]
        new = settings < 0
        target, arguments = (
            new_call(self.graph, op, self.names) if new else self._copied(op, self.body["nodes"][settings])
        )
        results = [self.names[tensor] for tensor in op.outputs if not self.graph.tensors[tensor].is_workspace]
        outputs = [{"as_tensor": {}}] if new else self.body["nodes"][settings]["outputs"]
        left = iter(results)
        written: Node = {
            "target": f"torch.ops.aten.{target}",
            "inputs": arguments,
            "outputs": [_renamed(output, left) for output in outputs],
            "metadata": {},
            "is_hop_single_tensor_return": None,
        }
        return written if len(results) > 1 else {**written, "name": results[0]}

    def _copied(self, op: Op, node: Node) -> tuple[str, list[Argument]]:
        """The call `node` with the tensors of the operator, and its pads and sizes."""
        name, _, overload = node["target"].removeprefix("torch.ops.aten.").partition(".")
        shape = self.graph.tensors[op.outputs[0]].shape
        if name in _RESHAPES:
            source = {"as_tensor": {"name": self.names[op.inputs[0]]}}
            return "reshape.default", [argument("self", source), argument("shape", {"as_ints": list(shape)})]
        rows = kind_of(op.kind).rows
        if rows == "attention" and len(op.inputs) > 3:
            node = {**node, "inputs": _with_mask(node["inputs"])}
        inputs = op.inputs
        if adds_first(f"aten.{name}.{overload}", op.kind):
            inputs = (inputs[-1], *inputs[:-1])
        left = iter(self.names[tensor] for tensor in inputs)
        arguments = [{**argument, "arg": _renamed(argument["arg"], left)} for argument in node["inputs"]]
        if rows in ("window", "transposed window"):
            arguments = _with_pads(op, arguments)
        elif rows == "resize":
            arguments = _with_size(arguments, list(shape[2:]))
        elif rows == "slice":
            bounds = {"dim": op.attrs["axes"], "start": op.attrs["starts"], "end": op.attrs["ends"]}
            if name == "select":
                bounds = {"dim": op.attrs["axes"], "index": op.attrs["starts"]}
            stated = [argument(name, {"as_int": value}) for name, (value,) in bounds.items()]
            arguments = [arguments[0], *stated]
        return f"{name.removesuffix('_')}.{overload}", arguments


def _with_pads(op: Op, arguments: list[Argument]) -> list[Argument]:
    """The arguments of a window with the pads of the operator, which are equal at both ends."""
    rank = len(op.attrs["pads"]) // 2
    kind = "pool" if kind_of(op.kind).pools else "conv_transpose" if op.kind == "ConvTranspose" else "conv"
    stated = {"padding": op.attrs["pads"][:rank]}
    if kind == "conv_transpose":
        stated["output_padding"] = op.attrs.get("output_padding") or [0] * rank
    defaults: dict[str, Argument] = {"bias": {"as_none": True}, "stride": {"as_ints": [1] * rank}}
    if kind == "pool":
        defaults["stride"] = {"as_ints": op.attrs["strides"]}
    given = {one["name"]: one for one in arguments}
    first = [
        argument(name, {"as_ints": [int(one) for one in stated[name]]})
        if name in stated
        else given.pop(name)
        if name in given
        else argument(name, defaults[name])
        for name in _WINDOWS[kind]
    ]
    return [*first, *(one for name, one in given.items() if name not in stated)]


def _with_mask(arguments: list[Argument]) -> list[Argument]:
    """The arguments of an attention with a mask, which makes a causal one see what it says."""
    given = {one["name"]: one for one in arguments if one["name"] not in ("attn_mask", "is_causal")}
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    mask = argument("attn_mask", {"as_tensor": {"name": ""}})
    return [*tensors, mask, *({**one, "kind": 2} for one in given.values())]


def _with_size(arguments: list[Argument], size: list[int]) -> list[Argument]:
    """The arguments of a resize with this size of the result, where it states one."""
    return [
        {**argument, "arg": {"as_ints": size}}
        if argument["name"] in ("output_size", "size") and "as_ints" in argument["arg"]
        else argument
        for argument in arguments
    ]


def _renamed(argument: Argument, names: Iterator[str]) -> Argument:
    """The argument with the next names in place of those of tensors."""
    ((kind, content),) = argument.items()
    if kind == "as_tensor":
        return {kind: {"name": next(names)}}
    if kind == "as_tensors":
        return {kind: [{"name": next(names)} for _ in content]}
    if kind == "as_optional_tensor":
        return {kind: _renamed(content, names)}
    if kind == "as_optional_tensors":
        return {kind: [_renamed(item, names) for item in content]}
    return argument


def _named(item: Any) -> Iterator[str]:
    """The names of values in a part of the file."""
    if isinstance(item, Mapping):
        if set(item) == {"name"}:
            yield item["name"]
        for key, inner in item.items():
            if key != "metadata":
                yield from _named(inner)
    elif isinstance(item, list):
        for inner in item:
            yield from _named(inner)


def _meta(tensor: Tensor, values: Mapping[str, Any]) -> dict[str, Any]:
    """The type of a new value, dense in the order of its dimensions."""
    numbers = {name: number for number, name in DTYPES.items()}
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    device = next((meta["device"] for meta in values.values() if "device" in meta), {"type": "cpu", "index": None})
    return {
        "dtype": numbers[tensor.dtype],
        "sizes": [{"as_int": size} for size in tensor.shape],
        "requires_grad": False,
        "device": device,
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": 0},
        "layout": STRIDED,
    }
