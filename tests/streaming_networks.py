"""Random streaming networks as .tflite files with variables: rings of rows, and states of other kinds."""

from dataclasses import dataclass, field

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.tflite_net import TfliteNet

MOVABLE = ("ring", "two readers", "decaying sum", "delay")
"""States that can stay in place: rows that a copy of the ring gives, also where several operators read the old state,
a sum that does not read it itself, and a row that is kept for one call."""
STAYING = {
    "sum": "ADD reads it while it makes its next value",
    "read late": "it is read after it was assigned",
    "assigned twice": "it is read 1 and assigned 2 times in a call",
    "not initialised": "no constant initialises it",
    "an output": "an input or output of the network is the same tensor",
    "swapped": "its next value has to be made before the old one was read for the last time",
}
"""By kind of state, why it stays a variable."""


@dataclass
class Streaming:
    """A network of float32 rows [1, rows, 1, channels]. `states`: by shared name its kind."""

    seed: int
    channels: int = 3
    states: dict = field(default_factory=dict)

    def __post_init__(self):
        self.net = TfliteNet(self.seed)
        self.random, self.initial = self.net.random, {}
        self.row = self.tensor(1)
        self.net.main.inputs.append(self.row)
        self.outputs = []

    def tensor(self, rows, value=None):
        return self.net.tensor((1, rows, 1, self.channels), value=value)

    def op(self, name, inputs, rows, options=None, **settings):
        """The result, or nothing for an operator without one (`rows`: None)."""
        result = self.net.op(name, inputs, self.channels, options, **settings)
        if rows is None:
            self.net.main.operators[-1].outputs = np.array([], np.int32)
            return None
        self.net.main.tensors[result].shape = np.array([1, rows, 1, self.channels], np.int32)
        return result

    def handle(self, name):
        made_handle = self.op("VAR_HANDLE", [], 1, "VarHandleOptions", container=b"", sharedName=name.encode())
        entry = self.net.main.tensors[made_handle]
        entry.type, entry.shape = schema.TensorType.RESOURCE, np.array([], np.int32)
        return made_handle

    def read(self, handle, rows):
        return self.op("READ_VARIABLE", [handle], rows, "ReadVariableOptions")

    def assign(self, handle, value):
        self.op("ASSIGN_VARIABLE", [handle, value], None, "AssignVariableOptions")

    def sum(self, one, other, rows, kind="ADD"):
        return self.op(kind, [one, other], rows, f"{kind.capitalize()}Options")

    def shift(self, x):
        """A row scaled and moved, so that errors do not cancel."""
        scale = self.tensor(1, self.random.uniform(0.5, 1.0, (1, 1, 1, self.channels)))
        return self.sum(x, scale, 1, "MUL")

    def mean(self, x, rows):
        return self.op(
            "AVERAGE_POOL_2D",
            [x],
            1,
            "Pool2DOptions",
            filterHeight=rows,
            filterWidth=1,
            strideH=1,
            strideW=1,
            padding=1,
        )

    def cut(self, x, begin, rows):
        limits = [self.net.tensor((4,), "int32", value) for value in ([0, begin, 0, 0], [1, rows, 1, self.channels])]
        return self.op("SLICE", [x, *limits], rows, "SliceOptions")

    def add(self, kind, x):
        """Add a state of this kind that follows the row `x`, and return the row that it makes."""
        name = f"{kind} {len(self.states)}"
        self.states[name] = kind
        rows = int(self.random.integers(2, 6)) if kind in ("ring", "two readers", "not initialised", "an output") else 1
        self.initial[name] = None if kind == "not initialised" else self.random.normal(size=(1, rows, 1, self.channels))
        handle = self.handle(name)
        old = self.read(handle, rows)
        if kind == "an output":
            self.outputs.append(old)
        if rows > 1:
            ring = self.op("CONCATENATION", [old, x], rows + 1, "ConcatenationOptions", axis=1)
            self.assign(handle, self.cut(ring, 1, rows))
            made_row = self.mean(ring, rows + 1)
            return self.sum(made_row, self.mean(old, rows), 1) if kind == "two readers" else made_row
        if kind == "delay":
            self.assign(handle, self.shift(x))
            return self.sum(old, x, 1)
        if kind == "decaying sum":
            new = self.sum(self.shift(old), x, 1)
        elif kind == "swapped":  # the output of the old value needs the next one
            new = self.shift(x)
        else:
            new = self.sum(old, x, 1)
        self.assign(handle, new)
        if kind == "assigned twice":
            self.assign(handle, self.shift(new))
        if kind == "read late":
            return self.read(handle, 1)
        return self.sum(self.shift(new), old, 1) if kind == "swapped" else self.shift(new)

    def save(self, path, outputs=()):
        """Write the file, with a subgraph that assigns the initial values."""
        net, init = self.net, schema.SubGraphT()
        main = net.main
        init.tensors, init.operators, init.inputs, init.outputs = [], [], [], []
        net.main = init
        for name, value in self.initial.items():
            if value is not None:
                handle = self.handle(name)
                self.assign(handle, self.tensor(value.shape[1], value))
        net.main = main
        net.model.subgraphs.append(init)
        self.op("CALL_ONCE", [], None, "CallOnceOptions", initSubgraphIndex=1)
        main.operators.insert(0, main.operators.pop())
        main.operators.sort(key=lambda one: isinstance(one.builtinOptions, schema.CallOnceOptionsT), reverse=True)
        net.save(path, [*outputs, *self.outputs])
        return path


def streaming_network(path, seed, *, kinds=None, channels=3):
    """A random chain of states, written to `path`. Returns its kinds by name."""
    network = Streaming(seed, channels)
    row = network.row
    for kind in kinds or network.random.choice(MOVABLE, int(network.random.integers(1, 5))):
        row = network.shift(network.add(str(kind), row))
    network.save(path, [row])
    return network.states


__all__ = ["MOVABLE", "STAYING", "streaming_network"]
