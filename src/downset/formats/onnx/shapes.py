"""Shapes that follow from an ONNX file, where ONNX's own inference leaves them open or gets them wrong.

ONNX propagates values through a few operators only. This module also evaluates sizes that the graph computes from other
sizes. An `If` gets the shapes of the branch that runs, where its condition is known. The bodies of `Loop` and `Scan`
and the model's functions are inferred for the types of their arguments. If a pool may have other sizes than ONNX infers
(`pools`), every node is inferred again, because the sizes of later values may be wrong as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from downset.formats.onnx.bodies import captures
from downset.formats.onnx.pools import may_differ, pooled_sizes
from downset.formats.onnx.scope import Scope, element_type, elements_of, is_open, shape_of
from downset.formats.onnx.values import Array, evaluate

__all__ = ["settle"]

_VISITS = 200_000
"""The most nodes that are visited, bodies included. Functions that call each other could be unfolded without end."""

Found = Mapping[str, tuple[Any, Array | None]]
"""The type of each value, by its name, and the value itself where it is known and small."""


def settle(onnx: Any, model: Any) -> None:
    """Complete the types in the model's `value_info` and outputs: those that are open but follow from the file, and
    those that ONNX infers wrongly because of a pool. Types that depend on the values of inputs stay open.

    Each node is inferred at most once more; the nodes of a function count once for each call. At most 200,000 nodes are
    visited, and types that only later nodes would give stay as they were."""
    graph = model.graph
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    again = may_differ(graph.node) or any(may_differ(body.node) for body in model.functions)
    if not again and not any(is_open(types.get(name)) for node in graph.node for name in node.output if name):
        return
    scope = Scope(onnx, types, graph.initializer)
    _ShapeInference(onnx, model, again=again).through(graph.node, scope)
    for value in (*graph.output, *graph.value_info):
        if value.name in scope.found:
            value.type.CopyFrom(scope.found[value.name])
    graph.value_info.extend(
        onnx.ValueInfoProto(name=name, type=kind) for name, kind in scope.found.items() if name not in types
    )


class _ShapeInference:
    def __init__(self, onnx: Any, model: Any, *, again: bool) -> None:
        self._onnx, self._again = onnx, again
        self._opsets = {entry.domain or "ai.onnx": entry for entry in model.opset_import}
        self._functions = {(item.domain, item.name): item for item in model.functions}
        self._ir_version = max(model.ir_version, 4)
        self._left = _VISITS

    def through(self, nodes: Iterable[Any], scope: Scope) -> None:
        """Infer the results of the nodes, in the order of the graph, and note them in the scope."""
        for node in nodes:
            self._left -= 1
            if self._left < 0:
                return
            self._visit(node, scope)

    def _visit(self, node: Any, scope: Scope) -> None:
        values = {name: scope.value(name) for name in node.input if name}
        if self._again or any(is_open(scope.type(name)) for name in node.output if name):
            for name, (kind, value) in self._infer(node, scope, values).items():
                scope.learn(name, kind, value)
        if node.domain not in ("", "ai.onnx") or not node.output:
            return
        self._follow_sequences(node, scope)
        shapes = {name: shape_of(scope.type(name)) for name in (*node.input, *node.output) if name}
        results = evaluate(self._onnx, node, values=values, shapes=shapes, opsets=[*self._opsets.values()])
        for name, value in results.items():
            scope.learn(name, None, value)

    def _follow_sequences(self, node: Any, scope: Scope) -> None:
        """Note what is known of the result of an operator of sequences: the types of the elements of a sequence that it
        makes, the length that it reads, or the type of the element that it takes or the tensor that it joins."""
        elements = [scope.elements(name) if name else None for name in node.input]
        values = [scope.value(name) if name else None for name in node.input]
        result = elements_of(node, [scope.type(name) for name in node.input], elements, values)
        if result is not None:
            scope.learn_elements(node.output[0], result)
        if not elements or elements[0] is None:
            return
        if node.op_type == "SequenceLength":
            scope.learn(node.output[0], None, np.asarray(len(elements[0]), np.int64))
        elif self._again or is_open(scope.type(node.output[0])):
            kind = element_type(node, elements[0], values[1] if len(values) > 1 else None)
            if not is_open(kind):
                scope.learn(node.output[0], kind, None)

    def _infer(self, node: Any, scope: Scope, values: Mapping[str, Array | None]) -> Found:
        if node.domain in ("", "ai.onnx") and node.op_type in ("If", "Loop", "Scan"):
            bodies = {item.name: item.g for item in node.attribute if item.type == 5}
            results = {"If": self._branch, "Loop": self._loop, "Scan": self._scan}[node.op_type](node, bodies, scope)
            if results:
                return results
        if (node.domain, node.op_type) in self._functions:
            return self._call(node, scope)
        input_types = {name: scope.type(name) for name in (*node.input, *captures(node)) if name}
        if (node.domain, node.op_type) == ("com.microsoft", "FusedMatMul"):
            return _settled(node.output, [(_product(node, [input_types.get(name) for name in node.input]), None)])
        if any(kind is None for kind in input_types.values()):
            return {}
        entry = self._opsets.get(node.domain or "ai.onnx")
        data = {
            name: self._onnx.numpy_helper.from_array(value, name) for name, value in values.items() if value is not None
        }
        try:
            schema = self._onnx.defs.get_schema(
                node.op_type, entry.version if entry else 1, "" if node.domain == "ai.onnx" else node.domain
            )
            types = self._onnx.shape_inference.infer_node_outputs(
                schema, node, input_types, data, opset_imports=[*self._opsets.values()], ir_version=self._ir_version
            )
        except self._onnx.shape_inference.InferenceError:
            scope.refused = True
            return {}
        except Exception:  # such as a node without a schema: it keeps the types of the whole model's inference
            return {}
        shape = shape_of(input_types[node.input[0]]) if node.input and node.input[0] else None
        weights = shape_of(input_types[node.input[1]]) if len(node.input) > 1 and node.input[1] else None
        sizes = None if shape is None else pooled_sizes(self._onnx, node, shape, weights or ())
        if sizes is not None and shape is not None:
            types = {name: _of_shape(kind, (*(shape_of(kind) or shape)[:2], *sizes)) for name, kind in types.items()}
        return {name: (kind, None) for name, kind in types.items() if name and not is_open(kind)}

    def _body(self, body: Any, arguments: Sequence[tuple[Any, Array | None]], scope: Scope) -> tuple[list[Any], bool]:
        """The type and value of each result of a body whose inputs have these types and values, and whether a node of
        the body cannot run with them."""
        named = [*zip((value.name for value in body.input), arguments, strict=False)]
        types = {value.name: value.type for value in (*body.value_info, *body.output, *body.input)}
        inner = Scope(self._onnx, types, body.initializer, scope)
        for name, (kind, value) in named:
            inner.learn(name, kind, value)
        self.through(body.node, inner)
        return [(inner.type(value.name), inner.value(value.name)) for value in body.output], inner.refused

    def _branch(self, node: Any, bodies: Mapping[str, Any], scope: Scope) -> Found:
        """The results of the branch of an If that runs. If the condition is not known: the results of the only branch
        that can run with these sizes or, if both can, those that have the same type in both."""
        condition = scope.value(node.input[0]) if node.input else None
        names = ["then_branch", "else_branch"]
        if condition is not None:
            names = [names[0 if condition.all() else 1]]
        if any(name not in bodies for name in names):
            return {}
        taken = [self._body(bodies[name], (), scope) for name in names]
        runs = [results for results, refused in taken if not refused]
        scope.refused |= not runs
        branches = [_settled(node.output, results) for results in runs]
        if len(branches) < 2:
            return branches[0] if branches else {}
        both = ((name, kind, branches[1][name][0]) for name, (kind, _) in branches[0].items() if name in branches[1])
        return {name: (kind, None) for name, kind, other in both if _alike(kind, other)}

    def _loop(self, node: Any, bodies: Mapping[str, Any], scope: Scope) -> Found:
        """The results of a Loop whose body returns its carried values with the types that it is given; else none. A
        result that collects a row from each turn is included only if the number of turns is known and no condition ends
        the loop earlier."""
        body, carried = bodies.get("body"), [scope.type(name) for name in node.input[2:]]
        if body is None or len(body.input) != 2 + len(carried) or any(map(is_open, carried)):
            return {}
        turns = scope.value(node.input[0]) if node.input[0] else None
        goes_on = scope.value(node.input[1]) if node.input[1] else np.asarray(True)
        scalar = self._onnx.helper.make_tensor_type_proto
        arguments = [(scalar(7, ()), None), (scalar(9, ()), goes_on), *((kind, None) for kind in carried)]
        results, _ = self._body(body, arguments, scope)
        if not results or not all(_alike(one, kind) for (one, _), kind in zip(results[1:], carried, strict=False)):
            return {}
        ends = goes_on is None or not goes_on.all() or results[0][1] is None or not results[0][1].all()
        settled = turns is not None and turns.size == 1 and not ends
        count = max(0, int(turns.reshape(-1)[0])) if settled and turns is not None else None
        rows = [(_stacked(kind, count, 0), None) for kind, _ in results[1 + len(carried) :]]
        return _settled(node.output, [*((kind, None) for kind in carried), *rows])

    def _scan(self, node: Any, bodies: Mapping[str, Any], scope: Scope) -> Found:
        """The results of a Scan, which is a loop over the rows of its inputs. There are none before opset 9, in which
        Scan was a different operator."""
        settings = {item.name: self._onnx.helper.get_attribute_value(item) for item in node.attribute if item.type != 5}
        body, scanned = bodies.get("body"), settings.get("num_scan_inputs", 0)
        entry, kinds = self._opsets.get("ai.onnx"), [scope.type(name) for name in node.input]
        if body is None or entry is None or entry.version < 9 or not 0 < scanned <= len(kinds):
            return {}
        if any(map(is_open, kinds)) or not all(kind.HasField("tensor_type") for kind in kinds):
            return {}
        carried, rows, count = kinds[: len(kinds) - scanned], [], None
        for kind, axis in zip(kinds[-scanned:], settings.get("scan_input_axes") or [0] * scanned, strict=False):
            shape = shape_of(kind) or ()
            if not -len(shape) <= axis < len(shape):
                return {}
            count = shape[axis]
            left = [extent for position, extent in enumerate(shape) if position != axis % len(shape)]
            rows.append(self._onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, left))
        body_results, _ = self._body(body, [(kind, None) for kind in (*carried, *rows)], scope)
        if not all(_alike(one, kind) for (one, _), kind in zip(body_results, carried, strict=False)):
            return {}
        stacks = body_results[len(carried) :]
        axes = settings.get("scan_output_axes") or [0] * len(stacks)
        results = [(_stacked(kind, count, axis), None) for (kind, _), axis in zip(stacks, axes, strict=False)]
        return _settled(node.output, [*((kind, None) for kind in carried), *results])

    def _call(self, node: Any, scope: Scope) -> Found:
        """The results of a call of one of the model's functions, for the call's inputs and attributes."""
        body = self._functions[node.domain, node.op_type]
        settings = {item.name: item for item in (*body.attribute_proto, *node.attribute)}
        inner = Scope(self._onnx, {})
        for inside, outside in zip(body.input, node.input, strict=False):
            if outside:
                inner.learn(inside, scope.type(outside), scope.value(outside))
        outer = self._opsets
        self._opsets = {entry.domain or "ai.onnx": entry for entry in body.opset_import}
        self.through([_bound(item, settings) for item in body.node], inner)
        self._opsets = outer
        return _settled(node.output, [(inner.type(name), inner.value(name)) for name in body.output])


def _settled(names: Iterable[str], results: Iterable[tuple[Any, Array | None]]) -> Found:
    """The results whose types are not open, by the names that the node gives them."""
    named = zip(names, results, strict=False)
    return {name: (kind, value) for name, (kind, value) in named if name and not is_open(kind)}


def _product(node: Any, kinds: Sequence[Any]) -> Any:
    """The type of the result of ONNX Runtime's FusedMatMul, which may transpose its inputs; None if it is not known."""
    shapes = [shape_of(kind) for kind in kinds]
    turned = {item.name for item in node.attribute if item.i}
    if len(shapes) != 2 or turned & {"transBatchA", "transBatchB"}:
        return None
    one, other = (shape or () for shape in shapes)
    if min(len(one), len(other)) < 2:
        return None
    rows, columns = one[-1 if "transA" in turned else -2], other[-2 if "transB" in turned else -1]
    try:
        return _of_shape(kinds[0], (*np.broadcast_shapes(one[:-2], other[:-2]), rows, columns))
    except ValueError:
        return None


def _alike(kind: Any, other: Any) -> bool:
    """Whether two types are tensors with the same element type and the same fixed sizes."""
    shape = shape_of(kind)
    return shape is not None and shape == shape_of(other) and kind.tensor_type.elem_type == other.tensor_type.elem_type


def _stacked(kind: Any, count: int | None, axis: int) -> Any:
    """The type of `count` tensors stacked along the new axis `axis`; None if `count` or their shape is not known."""
    shape = shape_of(kind)
    if count is None or shape is None or not -len(shape) - 1 <= axis <= len(shape):
        return None
    place = axis % (len(shape) + 1)
    return _of_shape(kind, (*shape[:place], count, *shape[place:]))


def _of_shape(kind: Any, shape: Sequence[int]) -> Any:
    """The type of a tensor with the element type of `kind` and the sizes `shape`."""
    other = type(kind)()
    other.CopyFrom(kind)
    del other.tensor_type.shape.dim[:]
    for extent in shape:
        other.tensor_type.shape.dim.add().dim_value = extent
    return other


def _bound(node: Any, settings: Mapping[str, Any]) -> Any:
    """A node of a function's body, with the call's attributes in place of references to them. A reference to an
    attribute that has no value is left out."""
    if not any(item.ref_attr_name for item in node.attribute):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for item in node.attribute:
        source = settings.get(item.ref_attr_name) if item.ref_attr_name else item
        if source is not None:
            bound = copy.attribute.add()
            bound.CopyFrom(source)
            bound.name = item.name
    return copy
