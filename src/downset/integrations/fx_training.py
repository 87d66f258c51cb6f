"""Turns PyTorch's graph of a training step (torch.fx, after AOTAutograd) into a `TrainingGraph`.

A view is not an operator: its readers read what made its bytes. A result that the graph copies into an input at its end
(a parameter, a state of the optimiser) lies in that input and takes no memory. Inputs are not counted, because they are
in memory whatever is recomputed. Seconds are an analytic estimate from multiplications and bytes, the same in every
process.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from downset.integrations.chunk_pass import CHUNK
from downset.integrations.inlined_operators import Expression, Inlining
from downset.integrations.random_operators import draws
from downset.integrations.training_graph import TrainingGraph
from downset.integrations.update_sinks import without_update
from downset.rewrites.recompute_search import needed

__all__ = ["Traced", "behind_forward", "sets_of", "traced"]

_RATES = {"cpu": (5e10, 1e10), "cuda": (1e14, 2e12)}
"""Operations and bytes in a second of a device. Only their ratio decides which operators are expensive to run again."""

_INDEXING = frozenset(
    [
        "_unsafe_index",
        "clone",
        "constant_pad_nd",
        "embedding",
        "gather",
        "index",
        "index_select",
        "select_scatter",
        "slice_scatter",
        "where",
    ]
)
"""Operators whose every element is one element of another tensor. The compiler computes them inside their readers."""
_SCATTERING = frozenset(
    ["_unsafe_masked_index_put_accumulate", "cat", "embedding_dense_backward", "index_put", "scatter_add"]
)
"""Operators that are loops but always store their result."""
_ELEMENTWISE = frozenset(["downset.adam.default", "prims.fma.default"])
"""Operators that the compiler fuses, in addition to those that PyTorch marks."""
_DEAR = frozenset(["exp", "log", "log10", "log1p", "log2", "sigmoid", "silu", "softplus", "tanh"])
"""Operators that the compiler computes once on a processor if several operators read the result."""


@dataclass(frozen=True, slots=True)
class Traced:
    graph: TrainingGraph
    nodes: tuple[Any, ...]
    """The fx node of every operator."""
    sources: dict[Any, tuple[int, ...]]
    """By fx node: the operators that make what it holds, empty for an input."""


def traced(fx_graph: Any, late: Collection[Any], *, apart: bool, workspaces: Mapping[Any, int] | None = None) -> Traced:
    """The training graph of an fx graph. `late`: the nodes of its backward pass. `apart`: whether forward and backward
    are two graphs. The update of a whole step is not part of it, where it takes no memory of its own. `workspaces`:
    bytes that a library allocates inside nodes, in addition to their results."""
    reader = _NodeReader()
    for node in fx_graph.nodes:
        reader.take(node)
    return reader.result(late, workspaces or {}, apart=apart)


class _NodeReader:
    """Reads nodes one after another, and keeps what is known of those read."""

    def __init__(self) -> None:
        from torch._functorch.partitioners import get_default_op_list

        self.types = get_default_op_list()
        self.nodes: list[Any] = []
        self.sources: dict[Any, tuple[int, ...]] = {}
        self.inputs: dict[Any, frozenset[Any]] = {}
        """By node: the inputs of the graph whose bytes it reads or shows."""
        self.reads: list[set[int]] = []
        self.read_inputs: list[frozenset[Any]] = []
        self.written: list[tuple[Any, Any, int]] = []
        """(input, value that is copied into it, operator of the copy)"""
        self.kept: set[int] = set()
        self.changed: frozenset[Any] = frozenset()
        """Inputs whose new values the graph returns, to be written outside of it."""

    def take(self, node: Any) -> None:
        if node.op in ("placeholder", "get_attr"):
            self.sources[node], self.inputs[node] = (), frozenset([node])
        elif node.op == "output":
            self.kept |= {source for of in node.all_input_nodes for source in self.sources[of]}
            after = [getattr(described, "mutated_input", None) for described in node.meta.get("desc", ())]
            self.changed = frozenset(
                of for of in self.sources if of.op == "placeholder" and of.meta.get("desc", after) in after
            )
        elif node.target is operator.getitem or (self._is_view(node) and not _writes_first(node)):
            self.sources[node] = tuple(dict.fromkeys(s for of in node.all_input_nodes for s in self.sources[of]))
            self.inputs[node] = frozenset().union(*(self.inputs[of] for of in node.all_input_nodes))
        elif not list(_tensors(node)) and not node.is_impure():
            self.sources[node], self.inputs[node] = (), frozenset()  # a size
        else:
            self._operator(node)

    def _operator(self, node: Any) -> None:
        number = len(self.nodes)
        self.nodes.append(node)
        self.reads.append({source for of in node.all_input_nodes for source in self.sources[of]})
        self.read_inputs.append(frozenset().union(*(self.inputs[of] for of in node.all_input_nodes)))
        shown = node.all_input_nodes[:1] if _writes_first(node) else node.all_input_nodes if self._is_view(node) else ()
        below = tuple(source for of in shown for source in self.sources[of])
        self.sources[node] = tuple(dict.fromkeys((*below, number)))
        self.inputs[node] = frozenset()
        if _is_copy(node) and not self.sources[node.args[0]]:
            self.written += [(into, node.args[1], number) for into in self.inputs[node.args[0]]]

    def _is_view(self, node: Any) -> bool:
        results = getattr(getattr(node.target, "_schema", None), "returns", ())
        if results and all(result.alias_info and not result.alias_info.is_write for result in results):
            return True
        storages = {tensor.untyped_storage()._cdata for of in node.all_input_nodes for tensor in _tensors(of)}
        return any(tensor.untyped_storage()._cdata in storages for tensor in _tensors(node))

    def result(self, late: Collection[Any], workspaces: Mapping[Any, int], *, apart: bool) -> Traced:
        from torch._functorch.config import donated_buffer

        behind = {number for number, node in enumerate(self.nodes) if node in late}
        waits: list[set[int]] = [set() for _ in self.nodes]
        nbytes = [self._nbytes(number) for number in range(len(self.nodes))]
        early_written = self.changed | {into for into, _, number in self.written if number not in behind}
        read_by: dict[Any, set[int]] = {}
        for v, read in enumerate(self.read_inputs):
            for of in read:
                read_by.setdefault(of, set()).add(v)
        for into, value, number in self.written:
            readers = read_by.get(into, set()) - {number}
            writer = self._writes_in_place(value, readers)
            waits[number if writer is None else writer] |= readers - {writer}
            nbytes[number] = 0
            if writer is not None:
                nbytes[writer] = 0
        self._in_chunks(waits)
        may = [
            number not in behind
            and not waits[number]
            and self._repeatable(node)
            and not self.read_inputs[number] & early_written
            for number, node in enumerate(self.nodes)
        ]
        graph = TrainingGraph(
            reads=tuple(tuple(sorted(read)) for read in self.reads),
            waits=tuple(tuple(sorted(earlier)) for earlier in waits),
            nbytes=tuple(nbytes),
            loops=tuple(self._loops(node) for node in self.nodes),
            costs=tuple(self._seconds(node) for node in self.nodes),
            may=tuple(may),
            kept=frozenset(v for v in self.kept if nbytes[v]),
            late=frozenset(behind),
            apart=apart,
            expressions=tuple(None if waits[number] else self._expression(number) for number in range(len(self.nodes))),
            inlining=self._inlining(),
            donated=apart and bool(donated_buffer),
            workspaces=tuple(workspaces.get(node, 0) for node in self.nodes) if workspaces else (),
        )
        if apart:
            return Traced(graph, tuple(self.nodes), self.sources)
        graph, kept = without_update(graph, self._update(behind))
        return Traced(graph, tuple(self.nodes[number] for number in kept), self.sources)

    def _in_chunks(self, waits: list[set[int]]) -> None:
        """Let every chunk of rows wait for the one before it, and what reads their results for the last, as their
        kernels do."""
        chunks: dict[tuple[str, int], set[int]] = {}
        for number, node in enumerate(self.nodes):
            if CHUNK in node.meta:
                chunks.setdefault(node.meta[CHUNK], set()).add(number)
        regions: dict[str, set[int]] = {}
        last: dict[tuple[str, int], set[int]] = {}
        for (region, chunk), numbers in chunks.items():
            regions.setdefault(region, set()).update(numbers)
            last[region, chunk] = numbers.difference(*(self.reads[number] for number in numbers))
            for number in numbers:
                if not self.reads[number] & numbers:
                    waits[number] |= last.get((region, chunk - 1), set())
        for region, inside in regions.items():
            final = last[max(of for of in last if of[0] == region)]
            for number, read in enumerate(self.reads):
                if number not in inside and read & inside:
                    waits[number] |= final - {number}

    def _update(self, late: Collection[int]) -> set[int]:
        """The operators of the update: late, not of the backward pass, and read by nothing of it."""
        update: set[int] = set()
        readers: list[set[int]] = [set() for _ in self.nodes]
        for number, sources in enumerate(self.reads):
            for source in sources:
                readers[source].add(number)
        for number in sorted(late, reverse=True):
            if not self.nodes[number].meta.get("autograd_backward") and readers[number] <= update:
                update.add(number)
        return update

    def _writes_in_place(self, value: Any, readers: Collection[int]) -> int | None:
        """The operator that may write its result directly into an input. It must run after all readers of the old
        value."""
        if len(self.sources.get(value, ())) != 1 or self.inputs[value]:
            return None
        (writer,) = self.sources[value]
        others = [reader for reader in readers if reader != writer]
        fusible = self._is_fusible(self.nodes[writer])
        return writer if fusible and all(r < writer for r in others) and writer not in self.kept else None

    def _nbytes(self, number: int) -> int:
        node = self.nodes[number]
        if self._is_constant(number):
            return 0
        storages = {tensor.untyped_storage()._cdata for of in node.all_input_nodes for tensor in _tensors(of)}
        own = {tensor.untyped_storage()._cdata: tensor for tensor in _tensors(node)}
        return sum(_bytes_of(tensor) for key, tensor in own.items() if key not in storages)

    def _is_constant(self, number: int) -> bool:
        """Whether every reader computes it again, because it depends on nothing."""
        node = self.nodes[number]
        return not self.reads[number] and not self.read_inputs[number] and self._is_fusible(node)

    def _is_fusible(self, node: Any) -> bool:
        import torch

        named = torch.Tag.pointwise in getattr(node.target, "tags", ()) or str(node.target) in _ELEMENTWISE
        return bool(named or self.types.is_fusible(node))

    def _expression(self, number: int) -> Expression | None:
        """The operator as an expression that the compiler may compute inside every reader, element by element."""
        import torch

        node = self.nodes[number]
        named = _name(node) in _INDEXING or torch.Tag.pointwise in getattr(node.target, "tags", ())
        if not (named or self._is_constant(number)) or _mutates(node) or draws(node):
            return None
        if any(str(user.target) == "downset.stored.default" for user in node.users):
            return None
        scalars = sum(isinstance(argument, (int, float)) for argument in node.args)
        on_processor = all(tensor.device.type == "cpu" for tensor in _tensors(node))
        inputs = frozenset(str(of.name) for of in self.read_inputs[number])
        return Expression(inputs, 1 + scalars, on_processor and _name(node) in _DEAR)

    def _device(self) -> str:
        return next((tensor.device.type for node in self.nodes for tensor in _tensors(node)), "cpu")

    def _inlining(self) -> Inlining:
        from torch._inductor import config

        kind = "cpu_" if self._device() == "cpu" else ""

        def limit(name: str, otherwise: int) -> int:
            names = (f"realize_{name}", f"realize_{kind}{name}", f"_realize_{name}_default")
            values = [getattr(config, of, None) for of in names]
            return int(next((value for value in values if value is not None), otherwise))

        usual = Inlining()
        return Inlining(
            limit("reads_threshold", usual.reads),
            limit("acc_reads_threshold", usual.reads_at_all),
            limit("opcount_threshold", usual.operations),
        )

    def _loops(self, node: Any) -> int:
        if not (self._is_fusible(node) or _name(node) in _INDEXING | _SCATTERING) or _mutates(node):
            return 0
        return max((_elements(tensor) for tensor in _tensors(node)), default=0)

    def _repeatable(self, node: Any) -> bool:
        import torch

        if not isinstance(node.target, torch._ops.OpOverload) or _mutates(node) or node.is_impure(impure_random=False):
            return False
        if draws(node) or self.types.is_random(node) or "inductor_seed" in str(node.target):
            return False
        marked = node.meta.get("recompute")
        return "c10d" not in node.target.namespace and (marked is None or "MUST_SAVE" not in str(marked))

    def _seconds(self, node: Any) -> float:
        import torch
        from torch.utils.flop_counter import flop_registry

        device = next((tensor.device.type for tensor in _tensors(node)), "cpu")
        operations_s, bytes_s = _RATES.get(device, _RATES["cuda"])
        written_bytes = sum(_bytes_of(tensor) for tensor in _tensors(node))
        if self._is_fusible(node):
            return written_bytes / bytes_s  # part of the kernel that reads it, written at most once
        read = sum(_bytes_of(tensor) for of in node.all_input_nodes for tensor in _tensors(of))
        product = _adds_product(node)
        count = flop_registry.get(torch.ops.aten.mm if product else getattr(node.target, "overloadpacket", None))
        if count is None:
            return (written_bytes + read) / bytes_s
        arguments = torch.fx.map_arg((node.args[1:] if product else node.args, node.kwargs), lambda of: of.meta["val"])
        try:
            operations = _hint(count(*arguments[0], **arguments[1], out_val=node.meta["val"]))
        except (TypeError, AssertionError, ValueError):  # the operator's counting function takes other arguments
            operations = written_bytes
        return max(operations / operations_s, (written_bytes + read) / bytes_s)


def behind_forward(graph: Any) -> dict[Any, None]:
    """The nodes of the backward pass, and those that it does not read, such as the update and its preparation."""
    forward: set[Any] = set()
    backward: set[Any] = set()
    gradients: set[Any] = set()
    given: set[Any] = set()  # gradients that the graph is given, and what is computed from them
    for node in graph.nodes:
        reads = node.all_input_nodes if node.op == "call_function" else ()
        if _is_given(node) or any(of in given for of in reads):
            given.add(node)
        if node in given or _is_backward(node):
            gradients.add(node)
        if node in gradients or any(of in backward for of in node.all_input_nodes):
            backward.add(node)
    for node in reversed(graph.nodes):
        if node not in backward and any(of in forward or of in gradients for of in node.users):
            forward.add(node)
    calls = (node for node in graph.nodes if node.op == "call_function" and forward)
    return {node: None for node in calls if node not in forward}


def _is_given(node: Any) -> bool:
    return node.op == "placeholder" and str(node.name).startswith("tangents")


def _is_backward(node: Any) -> bool:
    """Whether a node is marked as one of the backward pass."""
    return bool(node.meta.get("autograd_backward")) or node.meta.get("partitioner_tag") == "is_backward"


def sets_of(trace: Traced, saved: Iterable[Any]) -> set[int]:
    """The operators that run again if exactly these fx nodes are saved for the backward pass."""
    sources = {source for node in saved for source in trace.sources.get(node, ())[-1:]}
    step = trace.graph.step()
    again = {number for number, may in enumerate(step.may) if may} - sources
    return set(needed(step, again, trace.graph.late))


def _tensors(node: Any) -> Iterable[Any]:
    import torch

    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if isinstance(value, torch.Tensor):
            yield value


def _name(node: Any) -> str:
    return str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]


def _is_copy(node: Any) -> bool:
    import torch

    return node.target is torch.ops.aten.copy_.default


def _adds_product(node: Any) -> bool:
    """Whether it adds a product to its first operand, in place (chunk_pass.py)."""
    return str(node.target) == "downset.add_product.default"


def _writes_first(node: Any) -> bool:
    """Whether it writes its first operand in place."""
    return _mutates(node) or _adds_product(node)


def _mutates(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _elements(tensor: Any) -> int:
    return _hint(tensor.numel())


def _bytes_of(tensor: Any) -> int:
    return _hint(tensor.numel()) * int(tensor.dtype.itemsize)


def _hint(value: Any) -> int:
    """The number, or the compiler's assumed value of a symbol."""
    if isinstance(value, int):
        return value
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    return int(optimization_hint(value, fallback=4096))
