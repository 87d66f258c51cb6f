"""A graph taken apart for a rewrite and put together again: the one place where indices change. What kernels hold
while they run is added as tensors (`with_workspaces`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, WORKSPACE, Graph, Op, Role, Tensor, tensor_bytes
from downset.graph.kinds import kind_of
from downset.graph.parts import ChannelPiece, Part, part_of_part
from downset.graph.row_axes import spatial_axis

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Edit", "with_workspaces"]


def _reading(op: Op) -> tuple[int, ...]:
    """The tensors that an operator reads. They are reversed for a kind that can add an input to its result: the
    operator that makes that last input is then placed first."""
    return op.inputs if kind_of(op.kind).adds is None else op.inputs[::-1]


def _unique(name: str, taken: set[str]) -> str:
    """The name, or where it is taken the name with the first number that makes it new. Adds the result to `taken`."""
    number = 2
    unique = name
    while unique in taken:
        unique = f"{name}_{number}"
        number += 1
    taken.add(unique)
    return unique


@dataclass(slots=True)
class _Slot:
    op: Op
    source: int
    settings: int
    original: bool = False


class Edit:
    """A graph under change. Tensors are only added, so that their indices stay valid until `finish`. Operators are
    replaced by their index in the original graph.

    `finish` sorts the operators topologically (an unchanged graph keeps its order), drops unused tensors and checks the
    laws. It also drops operators whose results are not used; those that were unused in the original graph stay.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tensors = list(graph.tensors)
        self.constants: dict[int, Callable[[], npt.NDArray[Any]]] = dict(graph.constants)
        source = graph.source.op_index or (-1,) * len(graph.ops)
        settings = graph.source.settings_of or source
        self._slots: dict[int, list[_Slot]] = {
            index: [_Slot(op, source[index], settings[index], True)] for index, op in enumerate(graph.ops)
        }
        self._settings = settings
        self._parts: dict[int, Part] = dict(graph.source.parts)
        self._parts_by_name = {graph.tensors[tensor].name: part for tensor, part in self._parts.items()}
        self._joined: dict[int, tuple[ChannelPiece, ...]] = dict(graph.source.joined)
        self._names = {tensor.name for tensor in graph.tensors}
        self._op_names = {op.name for op in graph.ops}
        self._inputs, self._outputs = graph.inputs, graph.outputs

    @property
    def graph(self) -> Graph:
        """The original."""
        return self._graph

    def op(self, index: int) -> Op:
        """The operator at an index of the original. Raises ValueError where several or none took its place."""
        (slot,) = self._slots[index]
        return slot.op

    def add_tensor(
        self,
        name: str,
        shape: Sequence[int],
        like: Tensor,
        *,
        role: Role = "activation",
        value: Callable[[], npt.NDArray[Any]] | None = None,
        part: Part | Sequence[ChannelPiece] | None = None,
    ) -> int:
        """Add a tensor with the element type and quantization of `like`, and return its index. `value` reads its value
        where it is a constant. A number is added to a name that is taken. `part`: the part of a tensor of the original
        graph that it holds, or the pieces that it holds one after another along the channels."""
        shape = tuple(shape)
        name = _unique(name, self._names)
        self.tensors.append(replace(like, name=name, shape=shape, nbytes=tensor_bytes(shape, like.dtype), role=role))
        if value is not None:
            self.constants[len(self.tensors) - 1] = value
        if isinstance(part, Part):
            self._parts[len(self.tensors) - 1] = part_of_part(self._parts_by_name.get(part.of), part)
        elif part is not None:
            self._joined[len(self.tensors) - 1] = tuple(part)
        return len(self.tensors) - 1

    def pieces(self, tensor: int) -> tuple[ChannelPiece, ...]:
        """The pieces of a tensor of the original graph, which is its own only piece where no merge made it."""
        return self._joined.get(tensor, (ChannelPiece(self.tensors[tensor].name),))

    def stays(self, tensor: int) -> None:
        """State that a tensor holds the same value as before. An edit that changes how a tensor is made and adds no
        tensor calls this: a file is known to be rewritten by its certificate, which would be empty otherwise."""
        self._parts.setdefault(tensor, Part(self.tensors[tensor].name))

    def fix(self, tensor: int, value: Callable[[], npt.NDArray[Any]]) -> None:
        """Make a tensor of the original a constant. What made it is to be replaced, and what reads it stays."""
        self.tensors[tensor] = replace(self.tensors[tensor], role="constant")
        self.constants[tensor] = value
        self.stays(tensor)

    def cut(self, tensor: int, shape: Sequence[int], part: Part) -> None:
        """Let an input of the network hold only this part of what it holds in the original, in this shape."""
        meta = self.tensors[tensor]
        self.tensors[tensor] = replace(meta, shape=tuple(shape), nbytes=tensor_bytes(shape, meta.dtype))
        self._parts[tensor] = part

    def add_ends(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Let these tensors be inputs and outputs of the network too, behind those of the original."""
        self._inputs, self._outputs = (*self._inputs, *inputs), (*self._outputs, *outputs)

    def replace(self, index: int, ops: Sequence[Op], *, settings_of: Sequence[int] = ()) -> None:
        """Put these operators in place of one. They count as new.

        A file format may say more about an operator than its attributes. Operator i keeps these settings of the
        operator at the original index `settings_of[i]` (-1: of none). By default it keeps those of the replaced
        operator if both have the same kind."""
        old = self._graph.ops[index].kind
        settings = settings_of or [index if op.kind == old else -1 for op in ops]
        named = [replace(op, name=_unique(op.name, self._op_names)) for op in ops]
        self._slots[index] = [
            _Slot(op, -1, self._settings[of] if of >= 0 else -1) for op, of in zip(named, settings, strict=True)
        ]

    def finish(self, *, as_placed: bool = False) -> Graph:
        """The edited graph. With `as_placed` its operators stay in the sequence in which they were put; LoadError where
        that is not topological. Otherwise they are sorted; UnsupportedError where they form a cycle."""
        slots = [slot for index in sorted(self._slots) for slot in self._slots[index]]
        slots = self._as_placed(slots) if as_placed else self._sorted(slots)
        used = {*self._inputs, *self._outputs}
        for slot in slots:
            used.update(tensor for tensor in (*slot.op.inputs, *slot.op.outputs) if tensor != ABSENT)
        number = {old: new for new, old in enumerate(sorted(used))}
        number[ABSENT] = ABSENT
        ops = tuple(
            replace(
                slot.op,
                inputs=tuple(number[tensor] for tensor in slot.op.inputs),
                outputs=tuple(number[tensor] for tensor in slot.op.outputs),
            )
            for slot in slots
        )
        old_source = self._graph.source
        in_file: Mapping[int, int] = dict(enumerate(old_source.tensor_index))
        source = replace(
            old_source,
            op_index=tuple(slot.source for slot in slots),
            tensor_index=tuple(in_file.get(old, -1) for old in sorted(used)),
            settings_of=tuple(slot.settings for slot in slots),
            parts={number[old]: part for old, part in self._parts.items() if old in number},
            joined={number[old]: pieces for old, pieces in self._joined.items() if old in number},
        )
        return Graph(
            self._graph.name,
            tuple(self.tensors[old] for old in sorted(used)),
            ops,
            tuple(number[tensor] for tensor in self._inputs),
            tuple(number[tensor] for tensor in self._outputs),
            {number[old]: read for old, read in self.constants.items() if old in number},
            source,
            tuple(
                replace(state, read=number[state.read], written=number[state.written]) for state in self._graph.states
            ),
        ).check()

    def _sorted(self, slots: list[_Slot]) -> list[_Slot]:
        """The slots in a topological order that keeps the present sequence where edges allow it, without operators
        that are not needed. Raises UnsupportedError for a cycle."""
        made_by = {
            tensor: slot_index
            for slot_index, slot in enumerate(slots)
            for tensor in slot.op.outputs
            if tensor != ABSENT
        }
        placed: dict[int, None] = {}
        begun: set[int] = set()
        keep = self._needed(slots, made_by)
        readers = {
            made_by[state.written]: [index for index in sorted(keep) if state.read in slots[index].op.inputs]
            for state in self._graph.states
        }
        for root in self._roots(slots, keep):
            stack = [root]
            while stack:
                slot_index = stack[-1]
                needed = [made_by[tensor] for tensor in _reading(slots[slot_index].op) if tensor in made_by]
                needed += readers.get(slot_index, ())
                waits = [earlier for earlier in needed if earlier not in placed and earlier != slot_index]
                if slot_index in placed:
                    stack.pop()
                elif waits:
                    if slot_index in begun:
                        name = slots[slot_index].op.name
                        raise UnsupportedError(f"{self._graph.name}: in the edited graph {name!r} waits for itself")
                    begun.add(slot_index)
                    stack.extend(reversed(waits))
                else:
                    placed[slot_index] = None
                    stack.pop()
        return self._waiting(slots, list(placed))

    def _waiting(self, slots: list[_Slot], placed: Sequence[int]) -> list[_Slot]:
        """The slots in this sequence, with every `after` changed to the new places."""
        new_index = {slot_index: position for position, slot_index in enumerate(placed)}
        original = {id(slot): index for index, group in self._slots.items() for slot in group}
        first_of = {original[id(slots[slot_index])]: new_index[slot_index] for slot_index in reversed(placed)}
        result = []
        for slot_index in placed:
            slot = slots[slot_index]
            after = tuple(first_of[earlier] for earlier in slot.op.after if earlier in first_of)
            result.append(replace(slot, op=replace(slot.op, after=after)) if slot.op.after else slot)
        return result

    def _as_placed(self, slots: list[_Slot]) -> list[_Slot]:
        made_by = {
            tensor: slot_index
            for slot_index, slot in enumerate(slots)
            for tensor in slot.op.outputs
            if tensor != ABSENT
        }
        return self._waiting(slots, sorted(self._needed(slots, made_by)))

    def _roots(self, slots: list[_Slot], keep: set[int]) -> list[int]:
        """The operators in the sequence in which they are placed: first those of the file, then those that rewrites
        made. Each is placed after what it needs, so an operator of a rewrite comes just before the first that needs it:
        of a sum of parts, only one part is live at a time."""
        from_file = bool(self._graph.source.op_index)
        roots = [
            slot_index
            for slot_index in sorted(keep)
            if (slots[slot_index].source >= 0 if from_file else slots[slot_index].original)
        ]
        first = set(roots)
        return roots + [slot_index for slot_index in sorted(keep) if slot_index not in first]

    def _needed(self, slots: list[_Slot], made_by: Mapping[int, int]) -> set[int]:
        """Operators that the graph's outputs need, those whose results were not read in the original, those with side
        effects, and all that these need."""
        was_read = {tensor for op in self._graph.ops for tensor in op.inputs} | set(self._graph.outputs)
        waited_for = {earlier for op in self._graph.ops for earlier in op.after}
        original = {id(slot): index for index, group in self._slots.items() for slot in group}
        stack = [made_by[tensor] for tensor in self._outputs if tensor in made_by]
        for slot_index, slot in enumerate(slots):
            index = original[id(slot)]
            dead_before = slot.original and not any(tensor in was_read for tensor in slot.op.outputs)
            if dead_before or slot.op.after or index in waited_for:
                stack.append(slot_index)
        keep: set[int] = set()
        while stack:
            slot_index = stack.pop()
            if slot_index not in keep:
                keep.add(slot_index)
                stack.extend(made_by[tensor] for tensor in slots[slot_index].op.inputs if tensor in made_by)
        return keep


def with_workspaces(graph: Graph, workspaces: Mapping[int, int]) -> Graph:
    """The graph in which each of these operators also makes a tensor of so many bytes, which is live while it runs.
    Every memory model then counts them; indices and the file's order stay. A workspace has the rows of its operator's
    result, so that a strip of rows is planned with its share. One that the operator has already is replaced."""
    tensors, ops = list(graph.tensors), list(graph.ops)
    for operator, nbytes in sorted(workspaces.items()):
        op = ops[operator]
        place = next((t for t in op.outputs if t != ABSENT and tensors[t].is_workspace), len(tensors))
        tensor = Tensor(f"{op.name}{WORKSPACE}", _by_rows(graph, op, nbytes), "uint8", nbytes)
        if place < len(tensors):
            tensors[place] = replace(tensor, name=tensors[place].name)
        elif nbytes:
            ops[operator] = replace(op, outputs=(*op.outputs, place))
            tensors.append(tensor)
    places, more = graph.source.tensor_index, len(tensors) - len(graph.tensors)
    source = replace(graph.source, tensor_index=(*places, *[-1] * more) if places else ())
    return replace(graph, tensors=tuple(tensors), ops=tuple(ops), source=source).check()


def _by_rows(graph: Graph, op: Op, nbytes: int) -> tuple[int, ...]:
    """The shape of a workspace: along rows that of the result, where that has rows."""
    dimension = spatial_axis(graph, op.outputs[0], 0) if op.outputs and op.outputs[0] != ABSENT else None
    shape = () if dimension is None else graph.tensors[op.outputs[0]].shape
    if dimension is None or len(shape) < 2 or not shape[dimension]:
        return (nbytes,)
    sizes = [1] * len(shape)
    sizes[dimension], sizes[0 if dimension else -1] = shape[dimension], -(-nbytes // shape[dimension])
    return tuple(sizes)
