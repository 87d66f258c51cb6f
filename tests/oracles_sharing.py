"""What bytes hold while a network runs, by symbols: an oracle for tensors that share bytes. Written from the meaning of
the operators alone; of the library it takes only which storages a tensor lies in, and that is what it judges."""

from collections import Counter

from downset.graph.core import ABSENT


class Mixed(Exception):
    """A tensor was read and its bytes held something else."""


def contents(graph):
    """By tensor: what it consists of, a tuple of symbols. A reshape is what it reshapes, a concatenation its parts, a
    sum of sums one sum."""
    found = {tensor: (f"input {tensor}",) for tensor in graph.inputs}
    for index, op in enumerate(graph.ops):
        read = [found.get(tensor, (f"constant {tensor}",)) for tensor in op.inputs if tensor != ABSENT]
        activation = op.attrs.get("activation")
        if op.kind == "Reshape":
            made = [read[0]]
        elif op.kind == "Concat":
            made = [sum(read, ())]
        elif op.kind == "Sum" and op.attrs.get("partial_sum"):
            made = [(("sum", frozenset(terms(read).items())),)]
        else:
            made = [((index, position, tuple(read)),) for position in range(len(op.outputs))]
        if activation and op.kind != "Reshape":
            made = [(("activated", activation, parts),) for parts in made]
        found.update(zip(op.outputs, made, strict=True))
    return found


def terms(values):
    """What is added up in a sum of these, a sum itself taken apart."""
    counted = Counter()
    for value in values:
        if len(value) == 1 and value[0][0] == "sum":
            counted.update(dict(value[0][1]))
        else:
            counted[value] += 1
    return counted


def run(graph, steps, storages_of, nbytes):
    """The bytes live at each step, counted from what is written and read; raises Mixed where a plan loses anything."""
    expected, held = contents(graph), {}
    touched = {}  # storage -> [first step, last step]

    def touch(tensor, step):
        for storage in storages_of[tensor]:
            touched.setdefault(storage, [step, step])[1] = step

    def check(tensor):
        lies = sum((held.get(storage, ("nothing",)) for storage in storages_of[tensor]), ())
        if storages_of[tensor] and lies != expected[tensor]:
            raise Mixed(f"{graph.tensors[tensor].name}: {lies} instead of {expected[tensor]}")

    def add(tensor):
        (storage,) = storages_of[tensor]
        before = [held[storage]] if storage in held else []
        held[storage] = (("sum", frozenset(terms([*before, expected[tensor]]).items())),)

    sum_of = {
        tensor: op
        for op in graph.ops
        if op.kind == "Sum" and op.attrs.get("partial_sum")
        for tensor in op.inputs
        if tensor != ABSENT and storages_of[tensor] and storages_of[tensor] == storages_of[op.outputs[0]]
    }
    for tensor in graph.inputs:
        if storages_of[tensor]:
            held[storages_of[tensor][0]] = expected[tensor]
            touched.setdefault(storages_of[tensor][0], [0, -1])
    for step, operator in enumerate(steps):
        op = graph.ops[operator]
        for tensor in op.inputs:
            if tensor == ABSENT or tensor not in expected:
                continue
            touch(tensor, step)
            if sum_of.get(tensor) is op:
                (storage,) = storages_of[tensor]
                if terms([expected[tensor]]) - terms([held[storage]]):
                    raise Mixed(f"{graph.tensors[tensor].name} is not in the sum")
            else:
                check(tensor)
        reads = [storages_of[tensor] for tensor in op.inputs if tensor != ABSENT and tensor in expected]
        for tensor in op.outputs:
            touch(tensor, step)
            if tensor in sum_of and storages_of[tensor] not in reads:
                add(tensor)
            elif storages_of[tensor] and storages_of[tensor] not in reads and not _is_joined(op, storages_of):
                held[storages_of[tensor][0]] = expected[tensor]
            elif op.attrs.get("activation"):
                held[storages_of[tensor][0]] = (("activated", op.attrs["activation"], held[storages_of[tensor][0]]),)
            if tensor not in sum_of:
                check(tensor)
    for tensor in graph.outputs:
        check(tensor)
        touch(tensor, len(steps))
    return [
        sum(nbytes[storage] for storage, (first, last) in touched.items() if first <= step <= last)
        for step in range(len(steps))
    ]


def _is_joined(op, storages_of):
    """Whether an output is no more than the storages of the inputs."""
    inputs = [storage for tensor in op.inputs if tensor != ABSENT for storage in storages_of[tensor]]
    return bool(inputs) and inputs == list(storages_of[op.outputs[0]])
