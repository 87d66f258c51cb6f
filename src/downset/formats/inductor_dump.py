"""Graphs that PyTorch's Inductor dumps before it orders them: nodes, buffers, their bytes and their dependencies.

Inductor writes a dump into its structured trace (TORCH_TRACE) if `torch._inductor.config.reorder_for_peak_memory_debug`
is set. It is the artifact whose name ends in `_fused`; save its JSON as a .json file. A dump leaves out dependencies
that keep no bytes alive. An order of it therefore shows which peak could be possible, but Inductor may not be able to
run that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from downset.errors import LoadError
from downset.graph.core import Graph, Op, Source, Tensor

__all__ = ["is_dump", "read_dump"]


class _DumpedBuffer(msgspec.Struct):
    name: str
    size_alloc: int
    size_free: int
    is_input: bool
    is_output: bool
    deps: list[str]


class _DumpedNode(msgspec.Struct):
    name: str
    buffer_names: list[str]


class _Dump(msgspec.Struct):
    nodes: list[_DumpedNode]
    buffers: list[_DumpedBuffer]


def is_dump(content: bytes) -> bool:
    """Whether a JSON document is a dump of Inductor's and not a plain graph."""
    try:
        keys = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return "nodes" in keys and "buffers" in keys and "tensors" not in keys


def read_dump(path: Path, content: bytes) -> Graph:
    """The graph of a dump. Its peak under the memory model "live" is Inductor's estimate, to the byte. Each buffer is a
    tensor. If a buffer has several outputs as its parts, the operator that makes it makes the parts too. The node of a
    part makes a tensor of 0 bytes, for which the readers of the part wait. Raises LoadError that says what is wrong."""
    try:
        dump = msgspec.json.decode(content, type=_Dump)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"{path} is not a dump of Inductor's: {error}") from None
    buffers = {buffer.name: buffer for buffer in dump.buffers}
    if len(buffers) < len(dump.buffers):
        raise LoadError(f"{path}: two buffers have one name")
    made_with = _made_with(path, buffers)
    tensors: list[Tensor] = []
    number: dict[str, int] = {}
    left = {name: buffer.size_alloc for name, buffer in buffers.items() if buffer.size_alloc and not buffer.size_free}
    for name, whole in made_with.items():
        left[whole] -= buffers[name].size_free
    for buffer in dump.buffers:
        number[buffer.name] = len(tensors)
        nbytes = left.get(buffer.name, buffer.size_free)
        if nbytes < 0 or (buffer.size_alloc and buffer.size_free and buffer.size_alloc != buffer.size_free):
            raise LoadError(f"{path}: buffer {buffer.name} frees {buffer.size_free} of {buffer.size_alloc} bytes")
        tensors.append(_tensor(buffer.name, nbytes))
    for name in made_with:  # the part is made with the whole buffer; its node makes this tensor
        number[f"{name} taken out"] = len(tensors)
        tensors.append(_tensor(f"{name} taken out", 0))
    ops = tuple(_op(path, node, buffers, number, made_with) for node in dump.nodes)
    inputs = tuple(number[buffer.name] for buffer in dump.buffers if buffer.is_input)
    never_freed = {name for name, nbytes in left.items() if nbytes}
    outputs = tuple(number[b.name] for b in dump.buffers if b.is_output or b.name in never_freed)
    source = Source("json", str(path), tuple(range(len(ops))), tuple(range(len(tensors))))
    return Graph(path.stem, tuple(tensors), ops, inputs, outputs, {}, source).check()


def _tensor(name: str, nbytes: int) -> Tensor:
    return Tensor(name, (), "opaque", nbytes)


def _made_with(path: Path, buffers: Mapping[str, _DumpedBuffer]) -> dict[str, str]:
    """The buffer of several outputs with which each part was allocated, by the part's name."""
    whole_of: dict[str, str] = {}
    for name, buffer in buffers.items():
        if buffer.is_input or buffer.size_alloc or not buffer.size_free:
            continue
        whole, seen = name, {name}
        while not (buffers[whole].size_alloc and not buffers[whole].size_free):
            before = [d for d in buffers[whole].deps if d in buffers and d not in seen and not buffers[d].is_input]
            ahead = [d for d in before if not buffers[d].size_free]
            if not ahead:
                raise LoadError(f"{path}: buffer {name} is freed but never allocated")
            whole = next((d for d in ahead if buffers[d].size_alloc), ahead[0])
            seen.add(whole)
        whole_of[name] = whole
    return whole_of


def _op(
    path: Path,
    node: _DumpedNode,
    buffers: Mapping[str, _DumpedBuffer],
    number: Mapping[str, int],
    made_with: Mapping[str, str],
) -> Op:
    own_buffers = [name for name in node.buffer_names if name in buffers]
    parts = [name for name in own_buffers if name in made_with]
    reads = dict.fromkeys(dep for name in own_buffers for dep in buffers[name].deps if dep not in own_buffers)
    unknown = next((dep for dep in reads if dep not in buffers), None)
    if unknown is not None:
        raise LoadError(f"{path}: node {node.name} waits for {unknown}, which is not a buffer")
    reads.update(dict.fromkeys(part for part in parts if made_with[part] not in own_buffers))
    inputs = [number[name] for name in reads]
    inputs += [number[f"{name} taken out"] for name in reads if name in made_with and name not in parts]
    outputs = [number[name] for name in own_buffers if name not in made_with]
    outputs += [number[f"{name} taken out"] for name in parts]
    outputs += [number[part] for part in _parts_of(own_buffers, made_with)]
    return Op(node.name, "Inductor", tuple(inputs), tuple(outputs))


def _parts_of(own_buffers: Iterable[str], made_with: Mapping[str, str]) -> list[str]:
    wholes = set(own_buffers)
    return [part for part, whole in made_with.items() if whole in wholes]
