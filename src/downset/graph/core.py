"""The graph that every part of downset uses: tensors, operators, and the order of the operators in the file.

Operator kinds and attribute names are ONNX's. An index names a tensor by its position in `Graph.tensors` and an
operator by its position in `Graph.ops`. The operators of a graph are always in a topological order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from downset.errors import LoadError, UsageError
from downset.graph.parts import ChannelPiece, Part
from downset.text import abridged

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ABSENT",
    "LARGEST_BYTES",
    "WORKSPACE",
    "Graph",
    "InPlaceState",
    "Op",
    "Role",
    "Source",
    "Tensor",
    "dtype_bits",
    "tensor_bytes",
]

ABSENT = -1
"""The index in `Op.inputs` and `Op.outputs` of an optional tensor that is not given."""

WORKSPACE = " workspace"
"""The end of an operator's name in the name of a tensor that `graph.edit.with_workspaces` adds."""

Role = Literal["activation", "constant", "state"]
"""`constant`: weights, and values computed from weights alone. `state`: keeps its value from one run to the next.
`activation`: every other tensor. Only activations take part in planning."""

LARGEST_BYTES = 1 << 60
"""All tensors of a graph together have fewer bytes than this, so that sums of bytes fit into 64 bits."""

_BITS = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8e4m3fn": 8,
    "float8e4m3fnuz": 8,
    "float8e5m2": 8,
    "float8e5m2fnuz": 8,
    "float8e8m0": 8,
    "float4e2m1": 4,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int4": 4,
    "int2": 2,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "uint4": 4,
    "uint2": 2,
    "bool": 8,
    "complex64": 64,
    "complex128": 128,
    "string": 0,
    "resource": 0,
    "variant": 0,
    "opaque": 0,
}


def dtype_bits(dtype: str) -> int:
    """Bits of one element; 0 for strings, resources, variants and opaque values. Raises LoadError for an unknown
    name."""
    try:
        return _BITS[dtype]
    except KeyError:
        raise LoadError(f"unknown element type {dtype!r}; known: {', '.join(_BITS)}") from None


def tensor_bytes(shape: Iterable[int], dtype: str) -> int:
    """Bytes of a dense tensor. Elements smaller than a byte are packed, and the sum is rounded up to whole bytes."""
    elements = 1
    for extent in shape:
        elements *= int(extent)
    return (elements * dtype_bits(dtype) + 7) // 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value. `nbytes` is a field because a plain graph states sizes without a shape or element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    role: Role = "activation"
    quantization: Mapping[str, Any] | None = None
    """`scale` and `zero_point` are sequences of equal length: one entry for the tensor, or one for each index along
    `axis`."""

    __repr__ = abridged

    @property
    def is_workspace(self) -> bool:
        """Whether `graph.edit.with_workspaces` added it, or it is a strip's share of one that was added."""
        return WORKSPACE in self.name


@dataclass(frozen=True, slots=True)
class Op:
    """An operator. `kind` is ONNX's name, or `DOMAIN::NAME` for a kind that ONNX does not define.

    `attrs` holds ONNX's attributes and also `layout` ("NHWC" where the file's kernels are channels-last) and `fill`
    (the value of a ConstantOfShape).
    `after`: operators that must run before this one because of side effects on resources, although no tensor connects
    them.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[int, ...] = ()

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class InPlaceState:
    """A state that stays at one place from one call to the next: the graph output `written` is put over the graph input
    `read`. `initial`: the bytes, repeated to the size of the tensor, that the caller puts there before the first call
    and after a reset."""

    name: str
    read: int
    written: int
    initial: bytes = bytes(1)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a graph came from. `format`: onnx, tflite, torch, json or built. Operator i of the graph is node
    `op_index[i]` of the file's main graph, and tensor i is tensor `tensor_index[i]` (-1: not in the file). After a
    rewrite, operator i keeps the settings of node `settings_of[i]` of the file (-1: of none). `settings_of` is empty
    for a graph that was not rewritten."""

    format: str
    path: str = ""
    op_index: tuple[int, ...] = ()
    tensor_index: tuple[int, ...] = ()
    settings_of: tuple[int, ...] = ()
    parts: Mapping[int, Part] = field(default_factory=dict)
    """After a rewrite: for each tensor that the rewrite made, the part of the file's tensors that it holds."""
    joined: Mapping[int, tuple[ChannelPiece, ...]] = field(default_factory=dict)
    """After a merge: for each tensor that holds several of the file's tensors one after another along the channels,
    these."""

    @property
    def rewritten(self) -> bool:
        """Whether the graph differs from that of the file in more than the order."""
        return bool(self.settings_of)

    state: tuple[int, int, int] | None = field(default=None, compare=False)
    """That of the file before it was read (`process.file_ranges`); a writer copies from the file in no other state."""
    version: int = 0
    """The version of ONNX's operators that the file uses; 0 for other formats."""
    trusted: bool = False
    """Whether the user lets PyTorch load the file; loading runs code that the file contains."""
    note: str = field(default="", compare=False)
    """One line about the sizes that the file leaves open and that the reader assumed."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Graph:
    """A trained network as a directed acyclic graph. It is immutable; a rewrite returns a new graph.

    `constants[t]()` reads and returns the value of constant tensor t. Values are not kept, as weights may be large or
    in other files.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Callable[[], npt.NDArray[Any]]] = field(default_factory=dict)
    source: Source = Source("built")
    states: tuple[InPlaceState, ...] = ()
    """States in place, which only TFLite Micro keeps (memory model tflm)."""
    facts: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """A cache of results that follow from the operators and are asked for often (`graph.halos`, `graph.cost`)."""

    def __repr__(self) -> str:
        name = self.name if len(self.name) <= 60 else f"{self.name[:57]}..."
        return f"<Graph {name!r}: {len(self.ops)} operators, {len(self.tensors)} tensors, {self.source.format}>"

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: object) -> Graph:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The form that pickle writes. Raises UsageError where weights are read from a file when they are asked for."""
        if self.constants:
            raise UsageError(
                f"{self.name}: a graph with weights cannot be pickled, as it reads them from its file when they are "
                "needed; load the file where the graph is used"
            )
        return object.__reduce_ex__(self, protocol)

    def producers(self) -> tuple[int, ...]:
        """By tensor: the operator that makes it, or -1."""
        made_by = [-1] * len(self.tensors)
        for index, op in enumerate(self.ops):
            for tensor in op.outputs:
                if tensor != ABSENT:
                    made_by[tensor] = index
        return tuple(made_by)

    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """By tensor: the operators that read it, ascending, each once."""
        read_by: list[list[int]] = [[] for _ in self.tensors]
        for index, op in enumerate(self.ops):
            for tensor in dict.fromkeys(op.inputs):
                if tensor != ABSENT:
                    read_by[tensor].append(index)
        return tuple(map(tuple, read_by))

    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """By operator: the operators that make its inputs, those in its `after`, and those that read the state over
        which it writes, ascending, each once."""
        made_by = self.producers()
        waits = [{*op.after, *(made_by[tensor] for tensor in op.inputs if tensor != ABSENT)} for op in self.ops]
        for state in self.states:
            waits[made_by[state.written]].update(
                index
                for index, op in enumerate(self.ops)
                if state.read in op.inputs and state.written not in op.outputs
            )
        return tuple(tuple(sorted(earlier - {-1})) for earlier in waits)

    def constant(self, tensor: int) -> npt.NDArray[Any] | None:
        """The value of a constant tensor, or None where the tensor is not a constant with a known value."""
        import numpy as np

        read = self.constants.get(tensor)
        return None if read is None else np.asarray(read())

    def check(self) -> Graph:
        """Return the graph itself if it keeps every law; raise LoadError that names the first broken law.

        The laws: every index exists. Sizes are not negative, and their sum is below `LARGEST_BYTES`. An operator makes
        each tensor at most once, and makes no graph input. An operator reads inputs, constants, states and tensors that
        an earlier operator made; no later operator makes a tensor that was read. `after` names earlier operators. Every
        graph output is an input, a constant, a state or made by an operator. O(tensors + operators).
        """
        count = len(self.tensors)
        for tensor in self.tensors:
            if tensor.nbytes < 0 or any(extent < 0 for extent in tensor.shape):
                raise LoadError(f"tensor {tensor.name!r}: negative size or dimension {tensor.shape}")
        if sum(tensor.nbytes for tensor in self.tensors) >= LARGEST_BYTES:
            name, nbytes = max(((tensor.name, tensor.nbytes) for tensor in self.tensors), key=lambda item: item[1])
            raise LoadError(
                f"the tensors add up to more than {LARGEST_BYTES} bytes; the largest is {name!r}, {nbytes} bytes"
            )
        made_by = [-1] * count
        read_first: dict[int, int] = {}
        inputs = set(self.inputs)
        for role, tensors in (("input", self.inputs), ("output", self.outputs)):
            for index in tensors:
                if not 0 <= index < count:
                    raise LoadError(f"graph {role} refers to tensor {index}, but there are {count} tensors")
        for position, op in enumerate(self.ops):
            for index in (*op.inputs, *op.outputs):
                if index != ABSENT and not 0 <= index < count:
                    raise LoadError(f"operator {op.name!r} refers to tensor {index}, but there are {count} tensors")
            for earlier in op.after:
                if not 0 <= earlier < position:
                    raise LoadError(f"operator {op.name!r} waits for operator {earlier}, which is not before it")
            for index in op.inputs:
                tensor = self.tensors[index]
                if index != ABSENT and index not in inputs and made_by[index] < 0 and tensor.role == "activation":
                    raise LoadError(
                        f"operator {op.name!r} reads tensor {tensor.name!r}, which no earlier operator makes: "
                        "a dangling reference or a cycle"
                    )
                if index != ABSENT and made_by[index] < 0:
                    read_first.setdefault(index, position)
            for index in op.outputs:
                if index == ABSENT:
                    continue
                name = self.tensors[index].name
                if made_by[index] >= 0:
                    other = self.ops[made_by[index]].name
                    raise LoadError(f"tensor {name!r} is made twice: by {other!r} and by {op.name!r}")
                if index in inputs:
                    raise LoadError(f"tensor {name!r} is a graph input and is also made by operator {op.name!r}")
                if index in read_first:
                    reader = self.ops[read_first[index]].name
                    raise LoadError(f"operator {op.name!r} makes tensor {name!r}, which {reader!r} has read before")
                made_by[index] = position
        for index in self.outputs:
            tensor = self.tensors[index]
            if made_by[index] < 0 and index not in inputs and tensor.role == "activation":
                raise LoadError(f"graph output {tensor.name!r} is made by no operator")
        self._check_states(made_by)
        return self

    def _check_states(self, made_by: list[int]) -> None:
        """Raise LoadError for a state that cannot stay in place: its next value would be written over the old one while
        that is still read."""
        seen: set[int] = set()
        for state in self.states:
            lawful = state.read in self.inputs and state.read not in self.outputs and state.written in self.outputs
            if not lawful or made_by[state.written] < 0:
                raise LoadError(f"state {state.name!r} is not an input, and an output that an operator makes")
            before, after = self.tensors[state.read], self.tensors[state.written]
            if (before.shape, before.dtype, before.nbytes) != (after.shape, after.dtype, after.nbytes):
                raise LoadError(f"state {state.name!r}: {before.name!r} and {after.name!r} differ in shape or type")
            if seen & {state.read, state.written} or not state.initial or before.nbytes % len(state.initial):
                raise LoadError(
                    f"state {state.name!r} shares a tensor with another, or its initial bytes do not fill it"
                )
            seen |= {state.read, state.written}
            writer = made_by[state.written]
            late = next((op for op in self.ops[writer:] if state.read in op.inputs), None)
            if late is not None:
                raise LoadError(
                    f"state {state.name!r} is not in place: {self.ops[writer].name!r} writes its next value over it, "
                    f"but {late.name!r} reads it then or later"
                )


def fingerprint(graph: Graph) -> str:
    """32 hexadecimal digits: a hash of operators' names, kinds, attributes, tensor indices and shapes. Weights are left
    out, so that a plan also holds after further training."""
    digest = hashlib.sha256()
    for op in graph.ops:
        shapes = [graph.tensors[tensor].shape for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT]
        attributes = sorted((key, repr(value)) for key, value in op.attrs.items())
        digest.update(repr((op.name, op.kind, attributes, shapes, op.inputs, op.outputs)).encode())
    return digest.hexdigest()[:32]
