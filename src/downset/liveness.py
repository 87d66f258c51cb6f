"""THE definition of live bytes and peak: a graph and a memory model give storages, storages give everything else.

A *storage* is a block of memory with one lifetime; tensors that share bytes (views, zero-copy concatenations,
accumulated partial sums) share storages. For a downset D (the operators executed so far)

    live(D) = Σ nbytes over storages allocated in D and not yet freed in D,

allocated when the first of its producers ran (or from the start), freed when all of its consumers ran (or never, when
kept). Executing v at D needs

    transient(v, D) = live(D) + bytes v allocates − bytes it takes over in place,

and the peak of an order is its largest transient. live is a function of the downset alone, and submodular
(docs: the proof); every search here rests on that. In-place is therefore allowed only at equal aligned size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from downset.errors import UsageError
from downset.graph import ABSENT, Graph, Op
from downset.lattice import bits
from downset.records import Record, align_up

__all__ = [
    "MEMORY_MODELS",
    "Lifetimes",
    "MemoryModel",
    "OrderProblem",
    "Storage",
    "lifetimes",
    "live_bytes",
    "memory_model",
    "order_problem",
    "peak_bytes",
    "profile",
    "transient_bytes",
]


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """What a runtime keeps where. Kinds are operator kinds of the graph vocabulary."""

    name: str
    counts: str
    """One sentence for people: what is counted, and why."""
    alignment: int = 1
    inputs: str = "until last use"
    """Graph inputs: "until last use", "to the end", or "not counted"."""
    outputs_counted: bool = True
    outputs_apart: bool = False
    """Graph outputs always have bytes of their own: never views, never made in place."""
    views: frozenset[str] = frozenset()
    """Kinds whose first output is the same bytes as their first input."""
    concat_is_view: bool = False
    """A Concat of activations has no bytes of its own: its parts stay until its consumers ran."""
    accumulates: bool = False
    """A Sum of partial results (attribute partial_sum=1) happens in the result's own bytes, from the first part on."""
    in_place: frozenset[str] = frozenset()
    """Kinds whose first output may overwrite an input of equal aligned size that nobody reads later."""
    in_place_input: Mapping[str, int] = field(default_factory=dict)
    """The same, where only the input at this position may be overwritten."""


_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_ORT_IN_PLACE = frozenset(
    {
        "Relu", "LeakyRelu", "ThresholdedRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "Elu", "Selu", "Celu",
        "Softplus", "Softsign", "Shrink", "Softmax", "LogSoftmax", "Cast", "Trilu", "ScatterElements",
    }
)  # fmt: skip
"""Found by asking ONNX Runtime's profile which kernels allocate nothing; arithmetic (Add, Mul, Exp, ...) does."""

_MODELS = (
    MemoryModel(
        "live",
        "every activation; inputs from the start to their last use, outputs from production to the end; no aliasing",
    ),
    MemoryModel(
        "paper",
        "intermediates only, without graph inputs and outputs: what the memory-management paper counts",
        inputs="not counted",
        outputs_counted=False,
    ),
    MemoryModel(
        "serenity",
        "live, with concat as a zero-copy view and partial sums accumulated in place: what SERENITY's figures without "
        "the allocator count; not what TFLite executes",
        concat_is_view=True,
        accumulates=True,
    ),
    MemoryModel(
        "tflm",
        "TFLite Micro's arena head: live, each tensor rounded up to 16 bytes",
        alignment=16,
    ),
    MemoryModel(
        "litert",
        "LiteRT's CPU arena: live, graph inputs to the end, each tensor rounded up to 64 bytes",
        alignment=64,
        inputs="to the end",
    ),
    MemoryModel(
        "ort",
        "ONNX Runtime's CPU arena: inputs belong to the caller, reshapes share, activation functions run in place, "
        "FusedConv adds to its fourth input in place, graph outputs are always allocated, each tensor rounded up to "
        "256 bytes",
        alignment=256,
        inputs="not counted",
        outputs_apart=True,
        views=_RESHAPES,
        in_place=_ORT_IN_PLACE,
        # The fourth input is added to the result: partial sums that accumulate in place.
        in_place_input={"com.microsoft::FusedConv": 3},
    ),
    MemoryModel(
        "torch",
        "PyTorch eager: inputs belong to the caller, reshapes and transposes are views",
        alignment=64,
        inputs="not counted",
        views=_RESHAPES | {"Transpose"},
    ),
)
MEMORY_MODELS: Mapping[str, MemoryModel] = {model.name: model for model in _MODELS}


def memory_model(memory: str | MemoryModel) -> MemoryModel:
    """The model of that name; raises UsageError that lists the names."""
    if isinstance(memory, MemoryModel):
        return memory
    try:
        return MEMORY_MODELS[memory]
    except KeyError:
        raise UsageError(f"unknown memory model {memory!r}; choose one of {', '.join(MEMORY_MODELS)}") from None


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of `nbytes` (already aligned): allocated when the first of the `producers` (a mask; 0: before the start)
    runs, freed when all `consumers` (a mask) ran, unless `kept` to the end. `consumers` is never 0 unless `kept`: who
    is read by nobody is consumed by its producers."""

    nbytes: int
    producers: int
    consumers: int
    kept: bool = False


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """All that an order planner sees. `predecessors[v]` is a mask; `in_place[v]` lists the storages whose bytes v's
    output may take over, each of the same size as what v allocates, if by then only v has still to read them.

    `floor_bytes`: what any order needs even before its first operator (all graph inputs at once)."""

    predecessors: tuple[int, ...]
    storages: tuple[Storage, ...]
    in_place: tuple[tuple[int, ...], ...] = ()
    floor_bytes: int = 0

    def candidates(self, operator: int) -> tuple[int, ...]:
        return self.in_place[operator] if self.in_place else ()


def live_bytes(problem: OrderProblem, downset: int) -> int:
    """Bytes live once exactly the operators of `downset` ran. O(storages)."""
    total = 0
    for storage in problem.storages:
        allocated = storage.producers == 0 or storage.producers & downset
        freed = not storage.kept and storage.consumers & ~downset == 0
        if allocated and not freed:
            total += storage.nbytes
    return total


def transient_bytes(problem: OrderProblem, downset: int, operator: int) -> int:
    """Bytes live while `operator` runs right after exactly those of `downset`. O(storages)."""
    bit = 1 << operator
    total = live_bytes(problem, downset)
    for storage in problem.storages:
        if storage.producers & bit and not storage.producers & downset:
            total += storage.nbytes
    for candidate in problem.candidates(operator):
        storage = problem.storages[candidate]
        if storage.consumers & ~downset == bit:
            return total - storage.nbytes
    return total


def profile(problem: OrderProblem, steps: Sequence[int]) -> list[int]:
    """By step: `transient_bytes` while that operator runs. Incremental: O(steps + storages touched)."""
    produced: list[list[Storage]] = [[] for _ in problem.predecessors]
    consumed: list[list[Storage]] = [[] for _ in problem.predecessors]
    for storage in problem.storages:
        for operator in bits(storage.producers):
            produced[operator].append(storage)
        for operator in bits(0 if storage.kept else storage.consumers):
            consumed[operator].append(storage)
    live = sum(storage.nbytes for storage in problem.storages if storage.producers == 0)
    downset, transients = 0, []
    for operator in steps:
        bit = 1 << operator
        live += sum(storage.nbytes for storage in produced[operator] if not storage.producers & downset)
        taken = (problem.storages[candidate] for candidate in problem.candidates(operator))
        reused = next((storage.nbytes for storage in taken if storage.consumers & ~downset == bit), 0)
        transients.append(live - reused)
        downset |= bit
        live -= sum(storage.nbytes for storage in consumed[operator] if not storage.consumers & ~downset)
    return transients


def peak_bytes(problem: OrderProblem, steps: Sequence[int]) -> int:
    """The largest transient of an order, and never less than the floor."""
    return max([problem.floor_bytes, *profile(problem, steps)])


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Which storages each tensor lies in: none (not counted), one, or several (a zero-copy concatenation)."""

    storages_of: tuple[tuple[int, ...], ...]
    nbytes: list[int] = field(default_factory=list)
    producers: list[int] = field(default_factory=list)
    consumers: list[int] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    exclusive: list[bool] = field(default_factory=list)
    """Whether an operator may overwrite it: neither a graph input, nor an output, nor part of a concatenation view."""


def _share(graph: Graph, model: MemoryModel) -> _Sharing:
    storages_of: list[tuple[int, ...]] = [()] * len(graph.tensors)
    nbytes: list[int] = []
    producers: list[int] = []
    consumers: list[int] = []
    kept: list[bool] = []
    exclusive: list[bool] = []
    outputs = set(graph.outputs)

    def new_storage(tensor: int, producer: int) -> int:
        nbytes.append(align_up(graph.tensors[tensor].nbytes, model.alignment))
        producers.append(producer)
        consumers.append(0)
        kept.append(False)
        exclusive.append(producer != 0)
        return len(nbytes) - 1

    if model.inputs != "not counted":
        for tensor in dict.fromkeys(graph.inputs):
            if graph.tensors[tensor].role == "activation":
                storages_of[tensor] = (new_storage(tensor, 0),)

    read_by = graph.consumers()
    given = set(graph.inputs)
    for index, op in enumerate(graph.ops):
        bit = 1 << index
        parts = [tensor for tensor in op.inputs if tensor != ABSENT]
        activations = [tensor for tensor in parts if graph.tensors[tensor].role == "activation"]
        for tensor in parts:
            for storage in storages_of[tensor]:
                consumers[storage] |= bit
        for position, tensor in enumerate(op.outputs):
            if tensor == ABSENT or graph.tensors[tensor].role != "activation":
                continue
            if tensor in outputs and not model.outputs_counted:
                continue
            source = op.inputs[0] if op.inputs else ABSENT
            whole = position == 0 and source != ABSENT and source in activations
            same_size = whole and graph.tensors[source].nbytes == graph.tensors[tensor].nbytes
            # A runtime copies where an output of the graph would alias an input of it.
            copied = tensor in outputs and (model.outputs_apart or source in given)
            if op.kind in model.views and same_size and not copied:
                storages_of[tensor] = storages_of[source]
                continue
            held = [storage for part in parts for storage in storages_of[part]]
            if (
                op.kind == "Concat"
                and model.concat_is_view
                and len(set(held)) == len(held)
                and all(storages_of[part] for part in parts)
                and tensor not in outputs
            ):
                storages_of[tensor] = tuple(held)
                for storage in held:
                    exclusive[storage] = False
                continue
            if (
                op.kind == "Sum"
                and model.accumulates
                and op.attrs.get("partial_sum")
                and all(len(storages_of[part]) == 1 and read_by[part] == (index,) for part in parts)
            ):
                into = storages_of[parts[0]][0]
                for part in parts[1:]:
                    (other,) = storages_of[part]
                    producers[into] |= producers[other]
                    consumers[into] |= consumers[other]
                    nbytes[other] = producers[other] = consumers[other] = 0
                    storages_of[part] = (into,)
                storages_of[tensor] = (into,)
                continue
            storages_of[tensor] = (new_storage(tensor, bit),)
    for tensor in graph.outputs:
        for storage in storages_of[tensor]:
            kept[storage] = True
    if model.inputs == "to the end":
        for tensor in graph.inputs:
            for storage in storages_of[tensor]:
                kept[storage] = True
    return _Sharing(tuple(storages_of), nbytes, producers, consumers, kept, exclusive)


def order_problem(graph: Graph, memory: str | MemoryModel = "live") -> OrderProblem:
    """The ordering problem of a graph under a memory model. O(operators · inputs + storages) mask steps."""
    model = memory_model(memory)
    sharing = _share(graph, model)
    number: dict[int, int] = {}
    storages: list[Storage] = []
    floor = 0
    for index, nbytes in enumerate(sharing.nbytes):
        producers, consumers, kept = sharing.producers[index], sharing.consumers[index], sharing.kept[index]
        floor += nbytes if producers == 0 else 0
        if nbytes == 0 or (producers == 0 and consumers == 0 and not kept):
            continue  # an input that nobody reads weighs only before the start: that is the floor
        number[index] = len(storages)
        storages.append(Storage(nbytes, producers, consumers or producers, kept))
    candidates = tuple(
        tuple(number[index] for index in _takeover(graph, model, sharing, op) if index in number) for op in graph.ops
    )
    return OrderProblem(graph.predecessors(), tuple(storages), candidates if any(candidates) else (), floor)


def _takeover(graph: Graph, model: MemoryModel, sharing: _Sharing, op: Op) -> list[int]:
    """The storages that the operator's output may overwrite, lowest first."""
    at = model.in_place_input.get(op.kind)
    if at is None and op.kind not in model.in_place:
        return []
    if len(op.outputs) != 1 or op.outputs[0] == ABSENT:
        return []
    made = sharing.storages_of[op.outputs[0]]
    if len(made) != 1 or sharing.producers[made[0]].bit_count() != 1:
        return []
    if model.outputs_apart and op.outputs[0] in graph.outputs:
        return []
    found: list[int] = []
    if at is not None and (at >= len(op.inputs) or op.inputs.count(op.inputs[at]) > 1):
        return []  # what is read elsewhere too cannot be overwritten while it is
    for tensor in op.inputs if at is None else op.inputs[at : at + 1]:
        if tensor == ABSENT or len(sharing.storages_of[tensor]) != 1:
            continue
        (storage,) = sharing.storages_of[tensor]
        if (
            storage != made[0]
            and storage not in found
            and sharing.exclusive[storage]
            and not sharing.kept[storage]
            and sharing.nbytes[storage] == sharing.nbytes[made[0]]
            and graph.tensors[tensor].nbytes == graph.tensors[op.outputs[0]].nbytes
        ):
            found.append(storage)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The arena problem that an order implies. `record_of[t]` is the index in `records` of the one that holds tensor t,
    or -1 (not counted, zero bytes, or spread over several records by a zero-copy concatenation)."""

    records: tuple[Record, ...]
    record_of: tuple[int, ...]


def lifetimes(graph: Graph, steps: Sequence[int], memory: str | MemoryModel = "live") -> Lifetimes:
    """Records of every storage under an order, in order of production; storages taken over in place are one record.

    The largest breadth of the records equals the peak of the order. Where some graph input is read by nobody, the
    inputs start at step -1, when they are filled in; it needs room then and never again.
    """
    model = memory_model(memory)
    sharing = _share(graph, model)
    at = {operator: step for step, operator in enumerate(steps)}
    steps_of = [
        (sorted(at[v] for v in bits(produced)), sorted(at[v] for v in bits(consumed)))
        for produced, consumed in zip(sharing.producers, sharing.consumers, strict=True)
    ]
    idle = any(
        sharing.producers[i] == 0 and not sharing.consumers[i] and not sharing.kept[i] and sharing.nbytes[i]
        for i in range(len(steps_of))
    )
    begin = -1 if idle else 0
    start, stop = [0] * len(steps_of), [0] * len(steps_of)
    for index, (produced, consumed) in enumerate(steps_of):
        start[index] = produced[0] if produced else begin
        last = consumed[-1] if consumed else (produced[-1] if produced else begin)
        stop[index] = max(len(steps), start[index] + 1) if sharing.kept[index] else last + 1
    owner = list(range(len(steps_of)))
    for operator in steps:
        op = graph.ops[operator]
        for candidate in _takeover(graph, model, sharing, op):
            if sharing.nbytes[candidate] and stop[candidate] == at[operator] + 1:
                (made,) = sharing.storages_of[op.outputs[0]]
                owner[made] = owner[candidate]
                stop[owner[made]] = stop[made]
                break
    names: dict[int, str] = {}
    # a tensor spread over several storages lends its name to none: the names of records are all different
    for tensor, held in enumerate(sharing.storages_of):
        for storage in held if len(held) == 1 else ():
            names.setdefault(owner[storage], graph.tensors[tensor].name)
    chosen = sorted(
        (start[index], index) for index in set(owner) if owner[index] == index and sharing.nbytes[index] > 0
    )
    place = {index: position for position, (_, index) in enumerate(chosen)}
    records = tuple(
        Record(names.get(index, f"storage {index}"), start[index], stop[index], sharing.nbytes[index], model.alignment)
        for _, index in chosen
    )
    record_of = tuple(place.get(owner[held[0]], -1) if len(held) == 1 else -1 for held in sharing.storages_of)
    return Lifetimes(records, record_of)
