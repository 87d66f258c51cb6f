"""`.onnx` -> FileNetwork: every field of the file, in the form of `onnx_form`.

Names of values are replaced by what they refer to: a graph sees its own values and, unless it is a function, those of
the graphs around it; its own hide others of the same name. Functions are graphs of the network. A value that a caller
may give is an input, although the file has an initializer for it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from downset.equivalence.file_network import ABSENT, Body, Effect, FileNetwork, FileNode, FileValue
from downset.equivalence.onnx_form import OnnxForm
from downset.errors import LoadError
from downset.formats.certificates import METADATA_KEY
from downset.formats.onnx.bodies import subgraphs
from downset.formats.onnx.model_file import infer, onnx_library, read_model, read_unfixed
from downset.graph.kinds import kind_of

__all__ = ["at_sizes", "read_onnx", "with_shapes"]

_STANDARD = ("", "ai.onnx")
_TENSOR = 4
"""The type of an attribute that is a tensor."""
_KNOWN = ("", "com.microsoft")
"""The domains of which operators have a known meaning."""

Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


def read_onnx(path: str | os.PathLike[str]) -> tuple[FileNetwork, bytes | None]:
    """(the network of the file, the certificate in it or None). Raises LoadError for a damaged file, UnsupportedError
    without the extra `onnx`."""
    onnx = onnx_library()
    model = read_unfixed(Path(path))
    carried = [entry.value.encode() for entry in model.metadata_props if entry.key == METADATA_KEY]
    try:
        return _OnnxNetworkReader(onnx, Path(path)).network(model), carried[0] if carried else None
    except (KeyError, IndexError, ValueError, TypeError, RecursionError) as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} while reading it ({error})") from None


def with_shapes(
    network: FileNetwork, path: str | os.PathLike[str], shapes: Mapping[str, tuple[int, ...]] | None
) -> FileNetwork:
    """The network with shapes and element types of the main graph's values, as ONNX infers them with the inputs fixed
    to `shapes`. Raises LoadError where the size of an input stays open."""
    onnx = onnx_library()
    graph = infer(onnx, Path(path), read_model(Path(path), shapes or {})).graph
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output, *graph.input)}
    main = {value for index in network.bodies[0].nodes for value in network.nodes[index].outputs} | {
        *network.bodies[0].inputs
    }
    values, form = list(network.values), OnnxForm(onnx, Path(path))
    for index in sorted(main - {ABSENT}):
        stated = types.get(values[index].label)
        if stated is not None and stated.HasField("shape"):
            shape = tuple(dim.dim_value for dim in stated.shape.dim if dim.HasField("dim_value"))
            if len(shape) == len(stated.shape.dim):
                dtype = form.numpy_name(stated.elem_type)
                values[index] = replace(values[index], shape=shape, dtype=dtype)
    return replace(network, values=tuple(values))


def at_sizes(
    network: FileNetwork, path: str | os.PathLike[str], shapes: Mapping[str, tuple[int, ...]] | None
) -> FileNetwork:
    """The network `with_shapes`, in which a tensor of known sizes is stated with these, also where the file leaves some
    open: for proofs about these sizes alone."""
    sized = with_shapes(network, path, shapes)
    values, inputs = list(sized.values), {*sized.bodies[0].inputs}
    for index, value in enumerate(values):
        if value.form and value.content is None and value.shape is not None and value.dtype:
            given = value.form[:2] if index in inputs and isinstance(value.form, tuple) else ()
            values[index] = replace(value, form=(*given, value.dtype, value.shape))
    return replace(sized, values=tuple(values))


class _OnnxNetworkReader:
    def __init__(self, onnx: Any, path: Path) -> None:
        self._path, self._form = path, OnnxForm(onnx, path)
        self._values: list[FileValue] = []
        self._nodes: list[FileNode | None] = []
        self._functions: dict[Key, Any] = {}
        self._draws: dict[Key, bool] = {}
        self._inside = ""

    def network(self, model: Any) -> FileNetwork:
        for function in model.functions:
            if self._functions.setdefault(_key(function), function) is not function:
                raise LoadError(f"{self._path} defines the function {_called(_key(function))} twice")
        for key in self._functions:
            self._function_draws(key, ())
        scope: dict[str, int] = {"": ABSENT}
        main = self._body(model.graph, scope, "the main graph")
        training = tuple(self._form.stated(each) for each in model.training_info)
        if training:  # it refers to values of the main graph by name
            main = replace(
                main, named={**main.named, **{("name", name): value for name, value in scope.items() if name}}
            )
        functions = [self._function(self._functions[key]) for key in sorted(self._functions)]
        named = {("input", value.name): scope[value.name] for value in model.graph.input}
        named |= {("output", value.name): scope[value.name] for value in model.graph.output}
        versions: defaultdict[str, tuple[Hashable, ...]] = defaultdict(tuple)
        for entry in model.opset_import:
            further = self._form.stated(entry, frozenset({"domain", "version"}))
            versions[_domain(entry.domain)] += (entry.version, *further)
        settings: dict[tuple[str, ...], Hashable] = {
            ("version of operator set", name): version for name, version in sorted(versions.items())
        }
        settings["version of the format",] = model.ir_version
        settings["functions",] = tuple(sorted(self._functions))
        settings["training",] = training
        without = frozenset({"graph", "opset_import", "ir_version", "functions", "training_info"})
        settings["further fields",] = self._form.stated(model, without)
        nodes = tuple(node for node in self._nodes if node is not None)
        assert len(nodes) == len(self._nodes)
        return FileNetwork(str(self._path), tuple(self._values), nodes, (main, *functions), settings, named)

    def _function_draws(self, key: Key, callers: tuple[Key, ...]) -> bool:
        """Whether a function draws random numbers. Raises LoadError for one that calls itself."""
        if key in callers:
            raise LoadError(f"{self._path}: the function {_called(key)} calls itself")
        if key not in self._draws:
            inner = [*_all_nodes(self._functions[key].node)]
            calls = [called for node in inner if (called := self._function_of(node)) is not None]
            drawn = [self._function_draws(called, (*callers, key)) for called in calls]
            self._draws[key] = any(drawn) or any(kind_of(node.op_type).draws != "never" for node in inner)
        return self._draws[key]

    def _function_of(self, node: Any) -> Key | None:
        """The function of the file that a node calls; where a standard operator has this name, it may be called."""
        domains = _STANDARD if node.domain in _STANDARD else (node.domain,)
        keys = ((domain, node.op_type, node.overload) for domain in domains)
        return next((key for key in keys if key in self._functions), None)

    def _function(self, function: Any) -> Body:
        key = _key(function)
        self._inside = f" in function {_called(key)}"
        body = self._body(function, {"": ABSENT}, f"the function {_called(key)}")
        self._inside = ""
        return body

    def _add(self, scope: dict[str, int], value: FileValue) -> int:
        self._values.append(value)
        scope[value.label] = len(self._values) - 1
        return scope[value.label]

    def _body(self, graph: Any, scope: dict[str, int], label: str) -> Body:
        """Read a graph or a function. Its values are added to `scope`, which holds those of the graphs around it."""
        is_graph = graph.DESCRIPTOR.name == "GraphProto"
        named_inputs = [value.name if is_graph else value for value in graph.input]
        weights = self._weights(graph) if is_graph else {}
        results = [name for node in graph.node for name in node.output if name]
        self._once([*weights, *results], label)
        self._once([*named_inputs, *results], label)
        types = self._types(graph, is_graph)
        shapes = {info.name: self._shape(info.type) for info in (*graph.value_info, *(graph.input if is_graph else ()))}
        constants = self._constants(graph)
        inputs = []
        for name in named_inputs:
            shape, dtype = shapes.get(name, (None, ""))
            value = weights.pop(name, None) or FileValue(name, shape=shape, dtype=dtype)
            form = ("input", value.form, *types.pop(name, ()))
            inputs.append(self._add(scope, replace(value, form=form, content=None, default=value.content)))
        for name, value in weights.items():
            self._add(scope, replace(value, form=(value.form, *types.pop(name, ()))))
        for name in results:
            shape, dtype = shapes.get(name, (None, ""))
            value = FileValue(name, types.pop(name, ()), shape=shape, dtype=dtype)
            self._add(scope, replace(value, computed=constants.get(name)))
        results_of = [tuple(scope[name] for name in node.output) for node in graph.node]
        nodes = [self._node(node, out, scope) for node, out in zip(graph.node, results_of, strict=True)]
        outputs = tuple(scope[value.name if is_graph else value] for value in graph.output)
        # ONNX Runtime leaves the types of values that its optimisation removed; types of no value say nothing.
        if is_graph:
            types = {name: stated for name, stated in types.items() if scope.get(name, ABSENT) != ABSENT}
        return Body(label, tuple(inputs), outputs, tuple(nodes), *self._settings(graph, scope, types))

    def _types(self, graph: Any, is_graph: bool) -> dict[str, tuple[Hashable, ...]]:
        """By name: where the types of a value are stated, with the types."""
        types: defaultdict[str, tuple[Hashable, ...]] = defaultdict(tuple)
        for section in ("input", "output", "value_info") if is_graph else ("value_info",):
            for info in getattr(graph, section):
                types[info.name] += ((section, self._form.stated(info, frozenset({"name"}))),)
        return types

    def _settings(
        self, graph: Any, scope: Mapping[str, int], types: Mapping[str, Hashable]
    ) -> tuple[dict[tuple[str, ...], Hashable], dict[tuple[str, str], int]]:
        """The settings of a graph or a function, and the values to which they refer by name.
        `types`: what it states about names that are not its own."""
        read = {"node", "input", "output", "value_info", "initializer", "sparse_initializer", "quantization_annotation"}
        settings: dict[tuple[str, ...], Hashable] = {("type of", name): stated for name, stated in types.items()}
        settings["further fields",] = self._form.stated(graph, frozenset(read))
        annotations = graph.quantization_annotation if graph.DESCRIPTOR.name == "GraphProto" else ()
        settings["annotations",] = tuple(self._form.stated(each) for each in annotations)
        names = [each.tensor_name for each in annotations]
        names += [entry.value for each in annotations for entry in each.quant_parameter_tensor_names]
        names += [name for name in types if name]
        return settings, {("name", name): scope[name] for name in names if scope.get(name, ABSENT) != ABSENT}

    def _once(self, names: list[str], label: str) -> None:
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise LoadError(f"{self._path}: the name {twice!r} is given to two values of {label}")

    def _shape(self, kind: Any) -> tuple[tuple[int, ...] | None, str]:
        """(sizes, numpy's name of the element type) as far as a type states them."""
        stated = kind.tensor_type
        dtype = self._form.numpy_name(stated.elem_type) if kind.HasField("tensor_type") else ""
        fixed = stated.HasField("shape") and all(dim.HasField("dim_value") for dim in stated.shape.dim)
        return (tuple(dim.dim_value for dim in stated.shape.dim) if fixed else None), dtype

    def _weights(self, graph: Any) -> dict[str, FileValue]:
        """The initializers of a graph, by name."""
        names = [*(weight.name for weight in graph.initializer), *(one.values.name for one in graph.sparse_initializer)]
        self._once(names, graph.name or "the main graph")
        return {
            **{weight.name: self._weight(weight) for weight in graph.initializer},
            **{sparse.values.name: self._sparse(sparse) for sparse in graph.sparse_initializer},
        }

    def _constants(self, graph: Any) -> dict[str, Callable[[], bytes]]:
        """The bytes of the results of Constant operators that state a tensor, by name."""
        return {
            node.output[0]: partial(self._form.content, attribute.t)
            for node in graph.node
            if node.op_type == "Constant" and node.domain in _STANDARD and self._function_of(node) is None
            if len(node.output) == len(node.attribute) == 1
            for attribute in node.attribute
            if attribute.name == "value" and attribute.type == _TENSOR and not attribute.ref_attr_name
        }

    def _weight(self, weight: Any) -> FileValue:
        form = ("constant", *self._form.tensor(weight))
        dtype = self._form.numpy_name(weight.data_type)
        return FileValue(
            weight.name,
            form,
            lambda: self._form.content(weight),
            shape=tuple(weight.dims),
            dtype=dtype,
            stored=self._form.stored(weight),
        )

    def _sparse(self, sparse: Any) -> FileValue:
        values, indices = sparse.values, sparse.indices
        further = self._form.stated(sparse, frozenset({"values", "indices", "dims"}))
        parts = (self._form.tensor(values), indices.name, self._form.tensor(indices))  # their sizes part the bytes
        form = ("sparse", tuple(sparse.dims), parts, further)
        return FileValue(values.name, form, lambda: self._form.content(values) + self._form.content(indices))

    def _node(self, node: Any, outputs: tuple[int, ...], scope: Mapping[str, int]) -> int:
        index = len(self._nodes)
        self._nodes.append(None)
        inputs = [scope[name] for name in node.input]
        self._once([attribute.name for attribute in node.attribute], f"the attributes of {node.name or node.op_type}")
        settings: dict[Any, Hashable] = {}
        bodies: list[Body] = []
        captured: dict[int, None] = {}
        for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
            settings |= self._form.attribute(attribute)
            graphs = self._form.graphs(attribute)
            label = f"{attribute.name} of {node.name}"
            bodies += [self._inner(graph, scope, captured, label) for graph in graphs]
        read = frozenset({"input", "output", "op_type", "domain", "overload", "attribute"})
        further = self._form.stated(node, read)
        if further:  # it may refer to the node's values by name
            settings["further fields",] = (further, tuple(node.input), tuple(node.output))
        label = (node.name or next((name for name in node.output if name), f"node {index}")) + self._inside
        effects: tuple[Effect, ...] = (("random numbers", True),) if self._may_draw(node) else ()
        self._nodes[index] = FileNode(
            label, self._kind(node), settings, _trimmed(inputs), outputs, tuple(bodies), tuple(captured), effects
        )
        return index

    def _kind(self, node: Any) -> str | tuple[str, ...]:
        """The name of an operator with a known meaning; of any other, all that identifies it."""
        domain = _domain(node.domain)
        if self._function_of(node) is not None:
            return ("function", node.domain, node.op_type, node.overload)
        if domain in _KNOWN and node.op_type.isidentifier() and not node.overload:
            return f"{domain}::{node.op_type}" if domain else str(node.op_type)
        return (domain, node.op_type, node.overload)

    def _may_draw(self, node: Any) -> bool:
        for inner in _all_nodes([node]):
            key = self._function_of(inner)
            if kind_of(inner.op_type).draws != "never" or (key is not None and self._draws[key]):
                return True
        return False

    def _inner(self, graph: Any, scope: Mapping[str, int], captured: dict[int, None], label: str) -> Body:
        around = set(scope.values()) - {ABSENT}
        first = len(self._nodes)
        body = self._body(graph, dict(scope), label)
        for node in self._nodes[first:]:
            assert node is not None
            captured |= {value: None for value in node.inputs if value in around}
        captured |= {value: None for value in body.outputs if value in around}
        return body


def _key(function: Any) -> Key:
    return function.domain, function.name, function.overload


def _called(key: Key) -> str:
    return "::".join(part for part in key if part)


def _all_nodes(nodes: Any) -> Iterator[Any]:
    """Nodes and those in their bodies."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


def _trimmed(values: list[int]) -> tuple[int, ...]:
    """The inputs without absent ones at the end, which mean nothing."""
    count = max((index + 1 for index, value in enumerate(values) if value != ABSENT), default=0)
    return tuple(values[:count])


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
