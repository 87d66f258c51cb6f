"""A machine of two memories that runs a .tflite file with moves, from the bytes of the file alone.

It shares no code with the planner, the writer or the proof: it reads the schema's tables, the table of offsets and the
record of the memories, follows which tensor's bytes lie where, and counts what crosses from one memory to the other.
"""

import json
import math
from dataclasses import dataclass, field

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

WIDTHS = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 9: 1}
NAMES = {number: name for name, number in vars(schema.BuiltinOperator).items() if name[0] != "_"}


@dataclass
class Ran:
    """What a run did. `moved`, `direct`: bytes by copies and by operators. `tops`: the highest byte used of fast and of
    slow memory, from their first."""

    moved: int = 0
    direct: int = 0
    moves: int = 0
    tops: dict = field(default_factory=lambda: {True: 0, False: 0})


class Machine:
    def __init__(self, path):
        self.model = flatbuffer_utils.read_model(str(path))
        self.main = self.model.subgraphs[0]
        stored = {bytes(one.name): bytes(self.model.buffers[one.buffer].data) for one in self.model.metadata}
        self.said = json.loads(stored[b"downset.memories"])
        table = np.frombuffer(stored[b"OfflineMemoryAllocation"], "<i4")
        assert table[:3].tolist() == [1, 0, len(self.main.tensors)]
        self.at = table[3:].tolist()
        distance = self.said["distance"]
        self.start = {True: max(0, -distance), False: max(0, distance)}
        self.size = {True: self.said["fast_bytes"], False: self.said["slow_bytes"]}
        self.size[self.said.get("persistent_in", "fast") == "fast"] -= self.said["persistent_bytes"]
        self.held = []  # (first byte, last, tensor), the newest last

    def nbytes(self, tensor):
        entry = self.main.tensors[tensor]
        return math.prod(int(size) for size in entry.shape) * WIDTHS[entry.type]

    def constant(self, tensor):
        data = self.model.buffers[self.main.tensors[tensor].buffer].data
        return data is not None and len(data) > 0

    def fast(self, tensor):
        """Whether the tensor lies in fast memory; every byte of it lies in one memory, above the room for scratch."""
        first, last = self.at[tensor], self.at[tensor] + self.nbytes(tensor)
        assert first >= 0, f"tensor {tensor} has no offset"
        assert first % 16 == 0
        (home,) = (
            one for one in (True, False) if self.start[one] <= first and last <= self.start[one] + self.size[one]
        )
        assert self.start[home] or first >= self.said["scratch_bytes"], "over the scratch of kernels"
        return home

    def write(self, tensor, ran):
        first, last = self.at[tensor], self.at[tensor] + self.nbytes(tensor)
        self.held = [one for one in self.held if one[1] <= first or one[0] >= last] + [(first, last, tensor)]
        home = self.fast(tensor)
        ran.tops[home] = max(ran.tops[home], last - self.start[home])

    def read(self, tensor):
        first, last = self.at[tensor], self.at[tensor] + self.nbytes(tensor)
        assert (first, last, tensor) in self.held, f"tensor {tensor} was overwritten, or never made"

    def run(self):
        ran = Ran()
        for tensor in self.main.inputs:
            self.write(int(tensor), ran)
        for operator in self.main.operators:
            code = self.model.operatorCodes[operator.opcodeIndex]
            kind = NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)]
            read = [int(one) for one in operator.inputs if one >= 0 and not self.constant(one)]
            made = [int(one) for one in operator.outputs if one >= 0]
            for tensor in read:
                self.read(tensor)
            over = [
                other
                for tensor in made
                for first, last, other in self.held
                if other in read and first < self.at[tensor] + self.nbytes(tensor) and self.at[tensor] < last
            ]
            assert not over, "a result lies over what its operator reads"
            for tensor in made:
                self.write(tensor, ran)
            if self.is_move(kind, read, made):
                ran.moves += 1
                ran.moved += self.nbytes(made[0])
                continue
            for place, tensor in enumerate(read):
                if not self.fast(tensor):
                    ran.direct += self.read_bytes(kind, operator, tensor, made[0], place)
            ran.direct += sum(self.nbytes(tensor) for tensor in made if not self.fast(tensor))
        for tensor in self.main.outputs:
            self.read(int(tensor))
        return ran

    def is_move(self, kind, read, made):
        if kind != "RESHAPE" or len(read) != 1:
            return False
        shapes = [list(self.main.tensors[tensor].shape) for tensor in (*read, *made)]
        return shapes[0] == shapes[1] and self.fast(read[0]) != self.fast(made[0])

    def read_bytes(self, kind, operator, tensor, result, place):
        """What the reference kernel reads of a tensor: loops over results, and over the window of each."""
        elements = math.prod(int(size) for size in self.main.tensors[result].shape)
        width = WIDTHS[self.main.tensors[tensor].type]
        options = operator.builtinOptions
        if kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED") and place == 0:
            weights = [int(size) for size in self.main.tensors[int(operator.inputs[1])].shape]
            taps = {"CONV_2D": weights[1:], "DEPTHWISE_CONV_2D": weights[1:3], "FULLY_CONNECTED": weights[1:]}[kind]
            return elements * math.prod(taps) * width
        if kind in ("MAX_POOL_2D", "AVERAGE_POOL_2D"):
            return elements * options.filterHeight * options.filterWidth * width
        if kind in ("SLICE", "STRIDED_SLICE", "ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM"):
            return elements * width
        return self.nbytes(tensor)


def ran(path):
    """What a run of the file does; raises AssertionError where it reads bytes that are not there."""
    return Machine(path).run()
