"""Grows the nodes and weights of an ONNX graph; values are names, and no shape is stated."""

import numpy as np
from onnx import helper, numpy_helper


class OnnxNodes:
    def __init__(self):
        self.nodes, self.weights = [], []

    def constant(self, value):
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def op(self, kind, *inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{name}", **attributes))
        return name
