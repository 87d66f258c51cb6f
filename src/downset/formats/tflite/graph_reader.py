"""Reads the tables of a `.tflite` file into a Graph. The counts and references in them are not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError
from downset.formats.open_sizes import Axes, settled
from downset.formats.tflite.kinds import RENAMED, TRANSLATED, Translated
from downset.formats.tflite.side_effects import SideEffects, variable_name
from downset.formats.tflite.stored_states import STATES_KEY, read_states
from downset.graph.core import ABSENT, Graph, InPlaceState, Op, Role, Source, Tensor, tensor_bytes
from downset.messages import Setting
from downset.process.file_ranges import FileRange, FileState
from downset.results.two_memories import MEMORIES_KEY, TwoMemories, read_two_memories
from downset.text import printable

__all__ = ["DTYPES", "TfliteGraphReader"]

DTYPES = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    5: "string",
    6: "bool",
    7: "int16",
    8: "complex64",
    9: "int8",
    10: "float64",
    11: "complex128",
    12: "uint64",
    13: "resource",
    14: "variant",
    15: "uint32",
    16: "uint16",
    17: "int4",
    18: "bfloat16",
    19: "int2",
    20: "uint4",
    21: "float8e4m3fn",
    22: "float8e5m2",
}
_PERSISTENT = frozenset({"DEQUANTIZE", "DENSIFY"})
"""Operators that are computed once where they read constants: their results are weights, not activations."""


class TfliteGraphReader:
    """Reads one file. The counts of vectors together are bounded by the file's size, so that a damaged length cannot
    demand more memory."""

    def __init__(self, schema: Any, data: bytes, state: FileState, path: Path) -> None:
        self._schema, self._data, self._path, self._state = schema, data, path, state
        self._model = schema.Model.GetRootAs(data, 0)
        self._budget = len(data) // 4
        self._names = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}

    def _counted(self, count: int, what: str) -> range:
        self._budget -= count
        if count < 0 or self._budget < 0:
            raise LoadError(f"{self._path} is damaged: {count} {what} do not fit into a file of this size")
        return range(count)

    def graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        subgraph, raw, inputs, names = self._main()
        outputs = self._indices(subgraph.OutputsAsNumpy(), len(raw))
        resolved = self._resolved_shapes(raw, names, inputs, shapes)
        constants: dict[int, Callable[[], npt.NDArray[Any]]] = {}
        tensors = [
            self._tensor(index, raw[index], names[index], resolved[index], index in inputs, constants)
            for index in range(len(raw))
        ]
        ops = self._operators(subgraph, tensors)
        if self._metadata(MEMORIES_KEY) is not None:
            ops = [_marked(op, tensors) for op in ops]
        written = {index for op in ops for index in op.outputs} | set(inputs)
        for index, tensor in enumerate(tensors):
            if tensor.nbytes == 0 and index not in written and tensor.role == "activation":
                tensors[index] = replace(tensor, role="constant")  # an empty constant has no bytes in the file
        source = Source("tflite", str(self._path), tuple(range(len(ops))), tuple(range(len(raw))))
        states = self._states({tensor.name: index for index, tensor in enumerate(tensors)})
        return Graph(self._path.stem, tuple(tensors), tuple(ops), inputs, outputs, constants, source, states)

    def _states(self, number: Mapping[str, int]) -> tuple[InPlaceState, ...]:
        """The states that the file's metadata says to be in place. `number`: the tensors by name."""
        said = self._metadata(STATES_KEY)
        if said is None:
            return ()
        stored = read_states(said)
        lost = next((name for one in stored for name in (one.input, one.output) if name not in number), None)
        if lost is not None:
            raise LoadError(f"{self._path} names a state {lost!r} that is not a tensor of it")
        return tuple(InPlaceState(one.name, number[one.input], number[one.output], one.initial_bytes) for one in stored)

    def _metadata(self, name: str) -> bytes | None:
        """The content of the last metadata of this name; None where there are none."""
        entries = (self._model.Metadata(index) for index in range(self._model.MetadataLength()))
        buffers = [entry.Buffer() for entry in entries if entry.Name() == name.encode()]
        if not buffers:
            return None
        start, size = self._buffer(buffers[-1])
        return self._data[start : start + size]

    def two_memories(self) -> TwoMemories | None:
        said = self._metadata(MEMORIES_KEY)
        return None if said is None else read_two_memories(said)

    def input_axes(self) -> dict[str, Axes]:
        """The sizes of the inputs, by name."""
        _, raw, inputs, names = self._main()
        return {names[index]: self._axes(raw[index], _shape(raw[index])) for index in inputs}

    def _main(self) -> tuple[Any, list[Any], tuple[int, ...], list[str]]:
        """The main subgraph, its tensors, the indices of its inputs, and the tensors' names."""
        if self._model.SubgraphsLength() < 1:
            raise LoadError(f"{self._path} has no subgraph: nothing to plan")
        subgraph = self._model.Subgraphs(0)
        raw = [subgraph.Tensors(i) for i in self._counted(subgraph.TensorsLength(), "tensors")]
        return subgraph, raw, self._indices(subgraph.InputsAsNumpy(), len(raw)), self._unique_names(raw)

    def _indices(self, array: Any, limit: int) -> tuple[int, ...]:
        if isinstance(array, int):  # the accessor returns 0 where there is no vector
            return ()
        indices = tuple(int(index) for index in array)
        if any(not 0 <= index < limit for index in indices):
            raise LoadError(f"{self._path} is damaged: a graph input or output is not a tensor of it")
        return indices

    def _unique_names(self, raw: list[Any]) -> list[str]:
        """A different name for every tensor, because users choose tensors by name. TFLite allows equal names."""
        names: list[str] = []
        seen: dict[str, int] = {}
        for index, tensor in enumerate(raw):
            name = (tensor.Name() or b"").decode(errors="replace") or f"tensor_{index}"
            names.append(f"{name}#{index}" if name in seen else name)
            seen[name] = index
        return names

    def _resolved_shapes(
        self, raw: list[Any], names: list[str], inputs: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        stated = [*map(_shape, raw)]
        by_name = {names[index]: index for index in inputs}
        for name in shapes:
            if name not in by_name:
                raise LoadError(
                    Setting("shapes"),
                    f" names {name!r}, but the inputs of {self._path} are {printable(', '.join(by_name))}",
                )
        shapes = settled({names[i]: self._axes(raw[i], stated[i]) for i in inputs}, shapes).check().shapes
        changed = {index: shapes[names[index]] for index in inputs if names[index] in shapes}
        if any(stated[index] != shape for index, shape in changed.items()):
            from downset.formats.tflite.interpreter import resolve_shapes

            stated = resolve_shapes(self._path, changed)
            if len(stated) < len(raw):
                raise LoadError(f"{self._path}: LiteRT could not resolve the shapes for the inputs given")
            stated = stated[: len(raw)]
        for index, shape in enumerate(stated):
            if any(extent < 0 for extent in shape):
                fixing = Setting("shapes", {names[i]: stated[i] for i in inputs})
                raise LoadError(f"{self._path}: the shape of tensor {names[index]!r} is not fixed; add ", fixing)
        return stated

    def _axes(self, raw: Any, shape: tuple[int, ...]) -> Axes:
        return self._open_sizes(raw, shape) if self._is_open(raw, shape) else shape

    def _is_open(self, raw: Any, shape: tuple[int, ...]) -> bool:
        """Whether a size of an input is missing, or its signature leaves an axis other than the batch open."""
        return any(extent < 0 for extent in shape) or any(extent < 0 for extent in self._signature(raw)[1:])

    def _open_sizes(self, raw: Any, shape: tuple[int, ...]) -> list[int | str]:
        """The sizes of an input with open axes; an open axis is "", because TFLite has no names of axes."""
        signature = self._signature(raw)
        stated = signature if len(signature) == len(shape) else shape
        return ["" if min(one) < 0 else one[0] for one in zip(shape, stated, strict=True)]

    def _signature(self, raw: Any) -> tuple[int, ...]:
        stated = raw.ShapeSignatureAsNumpy()
        return () if isinstance(stated, int) else tuple(int(extent) for extent in stated)

    def _tensor(
        self,
        index: int,
        raw: Any,
        name: str,
        shape: tuple[int, ...],
        is_input: bool,
        constants: dict[int, Callable[[], npt.NDArray[Any]]],
    ) -> Tensor:
        if raw.Type() not in DTYPES:
            raise LoadError(f"{self._path}: tensor {name!r} has the unknown element type {raw.Type()}")
        dtype = DTYPES[raw.Type()]
        nbytes = tensor_bytes(shape, dtype)
        if nbytes >= 1 << 48:
            raise LoadError(f"{self._path}: tensor {name!r} of shape {list(shape)} is impossibly large")
        role: Role = "activation"
        start, size = self._buffer(raw.Buffer())
        if raw.IsVariable() or dtype in ("resource", "variant"):
            role = "state"
        elif size and not is_input:
            role = "constant"
            weight = FileRange(str(self._path.absolute()), start, size, self._state)  # the file is not held
            constants[index] = lambda: _constant(weight.read(), dtype, shape)
        return Tensor(name, shape, dtype, nbytes, role, self._quantization(raw.Quantization()))

    def _buffer(self, index: int) -> tuple[int, int]:
        """(start, size) in bytes of a buffer's data in the file. In large files the data lie behind the flatbuffer."""
        if not 0 <= index < self._model.BuffersLength():
            raise LoadError(f"{self._path} is damaged: buffer {index} does not exist")
        buffer = self._model.Buffers(index)
        size, start = buffer.DataLength(), 0
        if size:
            start = buffer._tab.Vector(buffer._tab.Offset(4))
        elif buffer.Size() > 1 and buffer.Offset() > 1:
            start, size = int(buffer.Offset()), int(buffer.Size())
        if start + size > len(self._data):
            raise LoadError(f"{self._path} is cut short: buffer {index} ends outside the file")
        return start, size

    def _quantization(self, raw: Any) -> Mapping[str, Any] | None:
        if raw is None or raw.ScaleLength() == 0:
            return None
        self._counted(raw.ScaleLength() + raw.ZeroPointLength(), "quantization parameters")
        scale = [float(value) for value in raw.ScaleAsNumpy()]
        zero = [int(value) for value in raw.ZeroPointAsNumpy()] if raw.ZeroPointLength() else [0] * len(scale)
        return {"scale": scale, "zero_point": zero, "axis": int(raw.QuantizedDimension())}

    def _operators(self, subgraph: Any, tensors: list[Tensor]) -> list[Op]:
        ops: list[Op] = []
        effects = SideEffects(self._numbers_are_visible(), {i for i, tensor in enumerate(tensors) if _is_state(tensor)})
        seen: dict[str, int] = {}
        for position in self._counted(subgraph.OperatorsLength(), "operators"):
            raw = subgraph.Operators(position)
            name = self._operator_name(raw.OpcodeIndex())
            inputs = self._references(raw.InputsAsNumpy(), len(tensors))
            outputs = self._references(raw.OutputsAsNumpy(), len(tensors))
            translated = self._translate(name, raw, [tensors[i].shape if i >= 0 else () for i in inputs])
            if translated.inputs is not None and all(place < len(inputs) for place in translated.inputs):
                inputs = tuple(inputs[place] for place in translated.inputs)
            if name in _PERSISTENT and all(tensors[i].role == "constant" for i in inputs if i >= 0):
                for index in outputs:
                    tensors[index] = replace(tensors[index], role="constant")
            label = tensors[outputs[0]].name if outputs and outputs[0] >= 0 else f"{name}_{position}"
            label = f"{label}#{position}" if label in seen else label
            seen[label] = position
            after = effects.after(name, position, inputs, outputs, self._options(raw))
            ops.append(Op(label, translated.kind, inputs, outputs, translated.attrs, after))
        return ops

    def _references(self, array: Any, limit: int) -> tuple[int, ...]:
        if isinstance(array, int):
            return ()
        self._counted(len(array), "operands")
        references = tuple(int(index) if index >= 0 else ABSENT for index in array)
        if any(index >= limit for index in references):
            raise LoadError(f"{self._path} is damaged: an operator refers to a tensor that does not exist")
        return references

    def operator_names(self, first: int = 0) -> list[str]:
        """The kinds in the subgraphs from this one on."""
        return sorted({self._operator_name(operator.OpcodeIndex()) for operator in self._every_operator(first)})

    def variable_names(self) -> set[tuple[bytes, bytes]]:
        return {
            variable_name(self._options(operator))
            for operator in self._every_operator()
            if self._operator_name(operator.OpcodeIndex()) == "VAR_HANDLE"
        }

    def _numbers_are_visible(self) -> bool:
        """Whether something may depend on the numbers that the runtime gives variables in the order of their handles: a
        handle is more than the name of what is read or assigned, or there are tables, whose numbers the file states."""
        for place in range(self._model.SubgraphsLength()):
            subgraph = self._model.Subgraphs(place)
            operators = [subgraph.Operators(number) for number in range(subgraph.OperatorsLength())]
            called = [(self._operator_name(operator.OpcodeIndex()), operator) for operator in operators]
            handles = {t for name, one in called if name == "VAR_HANDLE" for t in _tensors(one.OutputsAsNumpy())}
            if handles & {*_tensors(subgraph.OutputsAsNumpy())}:
                return True
            for name, operator in called:
                read = _tensors(operator.InputsAsNumpy())
                names = read[:1] if name in ("ASSIGN_VARIABLE", "READ_VARIABLE") else []
                if name.startswith("HASHTABLE") or not handles.issuperset(names) or handles & {*read[len(names) :]}:
                    return True
        return False

    def _every_operator(self, first: int = 0) -> Iterator[Any]:
        """Yields the operators of all subgraphs from this one on."""
        for subgraph in (self._model.Subgraphs(place) for place in range(first, self._model.SubgraphsLength())):
            yield from (subgraph.Operators(place) for place in range(subgraph.OperatorsLength()))

    def _operator_name(self, index: int) -> str:
        if not 0 <= index < self._model.OperatorCodesLength():
            raise LoadError(f"{self._path} is damaged: operator code {index} does not exist")
        code = self._model.OperatorCodes(index)
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if number == self._schema.BuiltinOperator.CUSTOM:
            return "custom." + (code.CustomCode() or b"?").decode(errors="replace")
        if number not in self._names:
            raise LoadError(f"{self._path}: builtin operator {number} is unknown; is the file damaged or newer?")
        return str(self._names[number])

    def _translate(self, name: str, raw: Any, shapes: list[tuple[int, ...]]) -> Translated:
        if name.startswith("custom."):
            return Translated(f"tflite.{name.replace('custom.', 'custom::', 1)}", {})
        if name in TRANSLATED:
            options = self._options(raw)
            return TRANSLATED[name](options, shapes) if options is not None else Translated(f"tflite::{name}", {})
        return Translated(RENAMED.get(name, f"tflite::{name}"), {})

    def _options(self, raw: Any) -> Any:
        """The operator's builtin options as the schema's own object, or None."""
        table = raw.BuiltinOptions()
        if table is None:
            return None
        creator = getattr(self._schema, "BuiltinOptionsCreator", None)
        return creator(raw.BuiltinOptionsType(), table) if creator else None


def _marked(op: Op, tensors: Sequence[Tensor]) -> Op:
    """The operator, marked (attribute `move`) where it moves a tensor from one memory to the other."""
    ends = [tensors[tensor] for tensor in (*op.inputs[:1], *op.outputs) if tensor != ABSENT]
    moves = op.kind == "Reshape" and len(ends) == 2 and ends[0].shape == ends[1].shape
    return replace(op, attrs={**op.attrs, "move": 1}) if moves else op


def _shape(raw: Any) -> tuple[int, ...]:
    """The sizes that a tensor states."""
    array = raw.ShapeAsNumpy()
    return () if isinstance(array, int) else tuple(int(extent) for extent in array)


def _constant(data: bytes, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A weight's value; a flat array of bytes if it is packed, sparse or of a type that numpy does not have."""
    raw = np.frombuffer(data, np.uint8)
    unsupported = {"bfloat16", "string", "resource", "variant", "int4", "int2", "uint4", "float8e4m3fn", "float8e5m2"}
    if dtype in unsupported or len(data) != tensor_bytes(shape, dtype):
        return raw
    return raw.view(dtype).reshape(shape)


def _tensors(array: Any) -> list[int]:
    return [] if isinstance(array, int) else [int(index) for index in array]  # 0 where there is no vector


def _is_state(tensor: Tensor) -> bool:
    return tensor.role == "state" and tensor.dtype not in ("resource", "variant")
