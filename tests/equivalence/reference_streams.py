"""A writer of windows and streams by hand, as .onnx files of chains along one axis, which shares no code with the
product: the records and certificates are literals in the form that the files have.

A tensor of n rows that moves by d rows every m hops is kept as rows [a, n - d), in a queue of m states. Each call makes
its last d rows, joins them to what was kept, and keeps the rows [a + d, n).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, AXIS = 2, 2


@dataclass(frozen=True)
class Layer:
    """`of`: the number of the tensor that it reads, the input being 0; `other`: the second one, of a Sub. `begin`:
    zeros before the first row."""

    kind: str
    of: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    other: int | None = None
    begin: int = 0

    @property
    def reach(self):
        return (self.kernel - 1) * self.dilation + 1

    @property
    def settings(self):
        along = {"strides": [self.stride], "dilations": [self.dilation], "pads": [self.begin, 0]}
        return {
            "Conv": along,
            "MaxPool": {**along, "kernel_shape": [self.kernel]},
            "LeakyRelu": {"alpha": 0.25},
            "Sub": {},
        }[self.kind]


@dataclass
class Model:
    nodes: list = field(default_factory=list)
    constants: list = field(default_factory=list)
    inputs: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    batch: int = 1

    def node(self, kind, inputs, output, **settings):
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **settings))
        return output

    def cut(self, of, output, start, stop=1 << 30):
        names = []
        for what, number in (("start", start), ("stop", stop), ("axis", AXIS)):
            names.append(f"{output}.{what}")
            self.constants.append(numpy_helper.from_array(np.array([number]), names[-1]))
        return self.node("Slice", [of, *names], output)

    def layer(self, layer, inputs, output, weights):
        self.node(layer.kind, [*inputs, *(one.name for one in weights)], output, **layer.settings)
        self.constants += [TensorProto.FromString(one.SerializeToString()) for one in weights]

    def made(self, metadata=()):
        ends = [
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [self.batch, CHANNELS, rows])
                for name, rows in listed
            ]
            for listed in (self.inputs, self.outputs)
        ]
        graph = helper.make_graph(self.nodes, "chain", *ends, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model


class Written:
    """The files of a chain, called on `rows` and on `hop` new rows; its last layer makes the output. Where the window
    pads before its first row, the stream keeps rows next to the edge as if they moved: a wrong file, for the tests."""

    def __init__(self, layers, rows, hop, seed=0, batch=1):
        random = np.random.default_rng(seed)
        self.layers, self.names = layers, ["x", *(f"t{index + 1}" for index in range(len(layers)))]
        self.rows, self.rates, self.batch = [rows], [Fraction(hop)], batch
        self.weights = []
        for index, layer in enumerate(layers):
            self.rows.append((self.rows[layer.of] + layer.begin - layer.reach) // layer.stride + 1)
            self.rates.append(self.rates[layer.of] / layer.stride)
            values = [random.standard_normal((CHANNELS, CHANNELS, layer.kernel)), random.standard_normal(CHANNELS)]
            names = [f"w{index + 1}", f"b{index + 1}"] if layer.kind == "Conv" else []
            self.weights.append(
                [
                    numpy_helper.from_array(value.astype(np.float32), name)
                    for name, value in zip(names, values, strict=False)
                ]
            )
        self.parts, self.states = {}, []
        self.fits = all(rate.numerator < rows and rows > 0 for rate, rows in zip(self.rates, self.rows, strict=True))
        if self.fits:
            self.window, self.stream = self._window(), self._stream()
            self.record = {
                "format": 1,
                "window": rows,
                "hop": hop,
                "input": "x",
                "axis": AXIS,
                "form": "states",
                "first_exact": -(-(rows - hop) // hop),
                "states": self.states,
            }

    def _window(self):
        model = Model(inputs=[("x", self.rows[0])], outputs=[(self.names[-1], self.rows[-1])], batch=self.batch)
        for index, layer in enumerate(self.layers):
            read = [layer.of] if layer.other is None else [layer.of, layer.other]
            model.layer(layer, [self.names[one] for one in read], self.names[index + 1], self.weights[index])
        return model

    def _stated(self, name, tensor, start):
        self.parts[name] = {"of": self.names[tensor], "box": [[AXIS, start, self.rows[tensor]]], "terms": None}
        return name

    def _first_row(self, layer, made):
        """The first row that a layer reads to make the new rows of its result."""
        return (self.rows[made] - self.rates[made].numerator) * layer.stride - layer.begin

    def _stream(self):
        model = Model(
            inputs=[("x", self.rates[0].numerator)], outputs=[(self.names[-1], self.rows[-1])], batch=self.batch
        )
        last = len(self.layers)
        new, joined = {0: "x"}, {}
        for tensor in range(last + 1):
            if tensor:
                layer = self.layers[tensor - 1]
                start = self.rows[tensor] - self.rates[tensor].numerator
                name = self._stated(f"{self.names[tensor]}.new", tensor, start)
                if layer.kind in ("LeakyRelu", "Sub"):
                    read = [new[layer.of]] + ([] if layer.other is None else [new[layer.other]])
                else:
                    read, first = [joined[layer.of][0]], self._first_row(layer, tensor)
                    if first > joined[layer.of][1]:
                        cut = self._stated(f"{name}.read", layer.of, first)
                        read = [model.cut(read[0], cut, first - joined[layer.of][1])]
                model.layer(replace(layer, begin=0), read, name, self.weights[tensor - 1])
                new[tensor] = name
            readers = [
                self._first_row(layer, index + 1)
                for index, layer in enumerate(self.layers)
                if layer.of == tensor and layer.kind in ("Conv", "MaxPool")
            ]
            readers += [0] if tensor == last else []
            if readers:
                joined[tensor] = self._joined(model, tensor, new[tensor], min(readers))
        return model

    def _joined(self, model, tensor, new, start):
        """(what holds the rows from `start` on, start)."""
        shift, hops = self.rates[tensor].numerator, self.rates[tensor].denominator
        stop, name = self.rows[tensor] - shift, self.names[tensor]
        assert start <= stop
        if start == stop:
            return new, start
        states = [f"{name}/{age}" if age else name for age in range(hops)]
        whole = name if start == 0 and tensor else self._stated(f"{name}.joined", tensor, start)
        model.node("Concat", [f"state/{name}", new], whole, axis=AXIS)
        for age, state in enumerate(states):
            model.inputs.append((f"state/{state}", stop - start))
            model.outputs.append((f"next/{state}", stop - start))
            if age < hops - 1:
                model.node("Identity", [f"state/{states[age + 1]}"], f"next/{state}")
            else:
                model.cut(whole, self._stated(f"next/{state}", tensor, start + shift), shift)
            self.states.append(
                {
                    "name": f"state/{state}",
                    "next": f"next/{state}",
                    "tensor": name,
                    "axis": AXIS,
                    "rows": [start, stop],
                    "shift": shift,
                    "age": age,
                }
            )
        return whole, start

    def save(self, folder):
        """The paths of the two files, as they are now."""
        paths = folder / "window.onnx", folder / "stream.onnx"
        onnx.save(self.window.made(), paths[0])
        statements = {"version": 1, "parts": self.parts}
        metadata = {"downset.stream": json.dumps(self.record), "downset.certificate": json.dumps(statements)}
        onnx.save(self.stream.made(metadata), paths[1])
        return paths


def drawn(seed):
    """A random chain, of which all parts fit."""
    random = np.random.default_rng([seed, 41])
    while True:
        layers = []
        for index in range(random.integers(1, 7)):
            kind = str(random.choice(["Conv", "Conv", "MaxPool", "LeakyRelu", "Sub"]))
            if kind == "Sub" and not (layers and layers[-1].kind == "LeakyRelu"):
                kind = "LeakyRelu"
            if kind in ("LeakyRelu", "Sub"):
                layers.append(Layer(kind, index, other=layers[-1].of if kind == "Sub" else None))
                continue
            kernel = int(random.integers(2, 4))
            stride = int(random.choice([1, 1, 2]))
            layers.append(Layer(kind, index, kernel, stride, int(random.choice([1, 1, 2])) if stride == 1 else 1))
        written = Written(layers, int(random.integers(12, 40)), int(random.integers(1, 7)), seed)
        if written.fits:
            return written
