"""Random graphs from a seeded generator, for tests that loop over thousands of them."""

from __future__ import annotations

from downset.graph.core import Graph, Op, Tensor


def random_graph(random, operators, inputs=2, window=8):
    """Operators of an opaque kind with one or two outputs, each reading one to three earlier tensors."""
    tensors = [Tensor(f"t{index}", (), "uint8", random.randint(1, 50)) for index in range(inputs)]
    ops = []
    for index in range(operators):
        recent = range(max(0, len(tensors) - window), len(tensors))
        reads = random.sample(recent, random.randint(1, min(3, len(recent))))
        made = range(len(tensors), len(tensors) + random.randint(1, 2))
        tensors += [Tensor(f"t{tensor}", (), "uint8", random.randint(1, 50)) for tensor in made]
        ops.append(Op(f"op{index}", "test::Any", tuple(reads), tuple(made)))
    outputs = random.sample(range(inputs, len(tensors)), random.randint(1, 3))
    read = {tensor for op in ops for tensor in op.inputs}
    inputs_read = tuple(tensor for tensor in range(inputs) if tensor in read)
    return Graph("random", tuple(tensors), tuple(ops), inputs_read, tuple(sorted(outputs))).check()


def rich_graph(random, operators):
    """What memory models treat differently, and often: chains that can run in place, views of views, concatenations of
    concatenations, partial sums, inputs that are outputs, tensors that nobody reads, side effects."""
    tensors = [Tensor(f"t{index}", (), "uint8", random.choice(SIZES)) for index in range(random.randint(1, 2))]
    inputs = len(tensors)
    ops = []
    for index in range(operators):
        available = range(max(0, len(tensors) - 6), len(tensors))
        first, second = random.choice(available), random.choice(available)
        kind = random.choice(
            ("Conv",) * 3 + ("Relu", "Clip") * 2 + ("Add", "Concat", "Reshape", "Transpose", "Split") + ("Sum",) * 2
        )
        reads, sizes, attrs = [first], [tensors[first].nbytes], {}
        if kind == "Conv":
            reads, sizes = [first, second], [random.choice(SIZES)]
        elif kind == "Add":
            reads, sizes = [first, second], [max(tensors[first].nbytes, tensors[second].nbytes)]
        elif kind == "Concat":
            reads, sizes = [first, second], [tensors[first].nbytes + tensors[second].nbytes]
        elif kind == "Split":
            sizes = [random.choice(SIZES), random.choice(SIZES)]
        elif kind == "Sum":
            read = {tensor for op in ops for tensor in op.inputs}
            parts = [
                t for t in range(inputs, len(tensors)) if t not in read and tensors[t].nbytes == tensors[-1].nbytes
            ]
            if parts:
                reads, sizes, attrs = parts[-3:], [tensors[-1].nbytes], {"partial_sum": 1}
        made = range(len(tensors), len(tensors) + len(sizes))
        tensors += [Tensor(f"t{t}", (), "uint8", size) for t, size in zip(made, sizes, strict=True)]
        after = (random.randrange(index),) if index and random.random() < 0.1 else ()
        ops.append(Op(f"op{index}", kind, tuple(reads), tuple(made), attrs, after))
    outputs = random.sample(range(len(tensors)), random.randint(1, 2))
    return Graph("random", tuple(tensors), tuple(ops), tuple(range(inputs)), tuple(sorted(outputs))).check()


SIZES = (0, 1, 16, 16, 40, 64, 64, 64, 64, 100, 256, 300)
