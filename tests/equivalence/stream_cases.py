"""Random windows and their streams, as files: .tflite networks of `strip_networks`, .onnx networks of
`runtime_networks`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError, UsageError
from downset.formats.reading import load
from downset.formats.stream_files import write_stream
from downset.formats.stream_records import record_of
from downset.formats.tflite.states_in_place import write_in_place
from downset.formats.tflite.write import export_tflite
from downset.partial.stream_rows import moving_input, stream_rows
from downset.partial.streams import check_streamable, stream_of
from downset.rewrites.tflite_form import tflite_form
from tests.runtime_networks import Network, _session


@dataclass(frozen=True)
class Case:
    """`refused`: why no stream was written; otherwise "", and the file `stream` exists."""

    window: Path
    stream: Path
    hop: int
    refused: str = ""

    @property
    def record(self):
        return record_of(self.stream)


def streamed(window: Path, axis: int, hop: int, folder: Path) -> Case:
    """The window with its stream, of which the first input moves along `axis`."""
    stream = folder / f"stream{window.suffix}"
    graph = load(window)
    try:
        check_streamable(graph)
        made = stream_of(
            stream_rows(moving_input(graph, graph.inputs[0], axis), hop),
            "variables" if window.suffix == ".tflite" else "states",
        )
        write_stream(stream, tflite_form(made.graph) if window.suffix == ".tflite" else made.graph, made.record)
    except (UnsupportedError, UsageError) as reason:
        return Case(window, stream, hop, str(reason.message))
    return Case(window, stream, hop)


def tflite_case(net, outputs, hop: int, folder: Path) -> Case:
    window = net.save(folder / "window.tflite", outputs)
    rows = int(net.main.tensors[net.main.inputs[0]].shape[1])
    return streamed(window, 1, 1 + hop % (rows - 1), folder)


def onnx_case(seed: int, folder: Path) -> Case:
    net = _grown(np.random.default_rng([seed, 40]))
    window = folder / "window.onnx"
    onnx.save(net.finished()[0], window)
    axis = 2 + int(np.argmax(net.values["x"].shape[2:]))
    return streamed(window, axis, net.whole(1, net.values["x"].shape[axis] - 1), folder)


def _grown(random) -> Network:
    """A network as people train them for sound and sensors, along one long axis: each result is read by the next
    operator, or joined with an earlier one."""
    net = Network(random)
    net.spatial = net.choose(1, 2)
    long = net.whole(8, 40)
    others = [net.whole(1, 4) for _ in range(net.spatial - 1)]
    shape = (1, net.choose(2, 4), *others, long)
    shape = shape if net.whole(0, 1) or net.spatial == 1 else (*shape[:2], long, *others)
    net.values = {"x": random.standard_normal(shape).astype(np.float32)}
    current, most = "x", net.whole(2, 8)
    for _ in range(30):
        if len(net.nodes) >= most:
            break
        made = net.choose(*_OPERATORS)(net, current)
        current = made[0] if made else current
    if not net.nodes:
        net.add("Relu", [current])
    return net


def _convolution(net, x):
    shape = net.values[x].shape
    kernel = [net.choose(1, 2, 3, 3, 5) for _ in shape[2:]]
    groups = net.choose(1, 1, shape[1])
    out = groups * net.whole(1, 3) if groups == 1 else shape[1]
    pads = [net.choose(0, 0, size // 2) for size in kernel]
    return net.add(
        "Conv",
        [x, net.weights(out, shape[1] // groups, *kernel), net.weights(out)],
        group=groups,
        pads=[*pads, *(pad if net.whole(0, 1) else 0 for pad in pads)],
        strides=[net.choose(1, 1, 1, 2, 3) for _ in kernel],
        dilations=[net.choose(1, 1, 2) for _ in kernel],
    )


def _pool(net, x):
    kernel = [net.choose(1, 2, 3) for _ in net.values[x].shape[2:]]
    pads = [net.choose(0, 0, size // 2) for size in kernel]
    if any(size > extent for size, extent in zip(kernel, net.values[x].shape[2:], strict=True)):
        return None  # ONNX Runtime rounds a count below one up
    strides = [net.choose(1, 2) for _ in kernel]
    return net.add(net.choose("MaxPool", "AveragePool"), [x], kernel_shape=kernel, strides=strides, pads=pads + pads)


def _resize(net, x):
    if net.values[x].shape[2] > 40:
        return None
    factors = [net.choose(1, 2, 3) for _ in net.values[x].shape[2:]]
    scales = net.constant(np.array([1, 1, *factors], np.float32))
    settings = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return net.add("Resize", [x, "", scales], **settings)


def _pointwise(net, x):
    channels = (net.values[x].shape[1], *(1 for _ in net.values[x].shape[2:]))
    kind = net.choose("Relu", "Sigmoid", "Elu", "Mul", "Add", "PRelu")
    return net.add(kind, [x, net.weights(*channels)] if kind in ("Mul", "Add", "PRelu") else [x])


def _joined(net, x):
    shape = net.values[x].shape
    names = [name for name, value in net.values.items() if value.shape[2:] == shape[2:] and name != x]
    if not names:
        return None
    other = net.choose(*names)
    if net.values[other].shape == shape and net.whole(0, 1):
        return net.add("Add", [x, other])
    return net.add("Concat", [x, other], axis=1)


def _softmax(net, x):
    return net.add("Softmax", [x], axis=1)


def _normalised(net, x):
    parts = [net.weights(net.values[x].shape[1]) for _ in range(3)]
    return net.add("BatchNormalization", [x, *parts, net.constant(np.full(net.values[x].shape[1], 0.7, np.float32))])


def _padded(net, x):
    rank = net.values[x].ndim
    return net.add("Pad", [x, net.numbers(*([0, 0] + [net.whole(0, 2) for _ in range(rank - 2)]) * 2)])


def _quantised(net, x):
    scale, zero = net.constant(np.float32(0.05)), net.constant(np.int8(3))
    made = net.add("QuantizeLinear", [x, scale, zero])
    return made and net.add("DequantizeLinear", [made[0], scale, zero])


def _pooled_whole(net, x):
    return net.add("GlobalAveragePool", [x]) if len(net.nodes) > 3 else None


_OPERATORS = (
    *[_convolution] * 8,
    *[_pool] * 3,
    *[_pointwise] * 3,
    *[_joined] * 3,
    *[_quantised] * 2,
    _resize,
    _softmax,
    _normalised,
    _padded,
    _pooled_whole,
)


def sequence(case: Case, hops: int, seed: int = 0):
    """(rows for so many hops behind the warm-up, axis, the first hop whose outputs are compared)."""
    graph, record = load(case.window), case.record
    meta = graph.tensors[graph.inputs[0]]
    shape = list(meta.shape)
    shape[record.axis] = (record.first_exact + hops) * record.hop
    random = np.random.default_rng([seed, 1])
    if meta.dtype == "int8":
        return random.integers(-128, 128, shape).astype(np.int8), record.axis, record.first_exact
    return random.standard_normal(shape).astype(np.float32), record.axis, record.first_exact


def cut(rows, axis, start, stop):
    return np.ascontiguousarray(rows.take(range(start, stop), axis))


def onnx_hops(case: Case, hops: int = 6):
    """(outputs of the windows, those of the stream from states of NaN or noise), all in ONNX Runtime, in this
    process."""
    ours, theirs = [], []
    record = case.record
    rows, axis, first = sequence(case, hops)
    window, stream = _session(onnx.load(case.window)), _session(onnx.load(case.stream))
    count = len(window.get_outputs())
    names = [one.name for one in stream.get_outputs()]
    kinds = {"tensor(float)": (np.float32, np.nan), "tensor(int8)": (np.int8, 77)}
    inputs = {one.name: one for one in stream.get_inputs()}
    states = {}
    for state in record.states:
        dtype, noise = kinds[inputs[state.name].type]
        states[state.name] = np.full(inputs[state.name].shape, noise, dtype)
    for hop in range(first + hops):
        made = stream.run(None, {record.input: cut(rows, axis, hop * case.hop, (hop + 1) * case.hop), **states})
        states = {state.name: made[names.index(state.next)] for state in record.states}
        end = (hop + 1) * case.hop
        if hop >= first:
            theirs.append(made[:count])
            ours.append(window.run(None, {record.input: cut(rows, axis, end - record.window, end)}))
    return ours, theirs


def tflm_hops(case: Case, hops: int = 6):
    """The same in TFLite Micro, for a stream with variables."""
    from tflite_micro import runtime

    def opened(path):
        interpreter = runtime.Interpreter.from_file(str(path), arena_size=1 << 22)

        def run(value):
            interpreter.set_input(value, 0)
            interpreter.invoke()
            return [np.array(interpreter.get_output(index)) for index in range(count)]

        return run

    count = len(load(case.window).outputs)
    return _variable_hops(case, hops, opened)


def litert_hops(case: Case, hops: int = 6):
    """The same in LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    def opened(path):
        interpreter = Interpreter(str(path))
        interpreter.allocate_tensors()
        place = interpreter.get_input_details()[0]["index"]
        results = [entry["index"] for entry in interpreter.get_output_details()]

        def run(value):
            interpreter.set_tensor(place, value)
            interpreter.invoke()
            return [interpreter.get_tensor(index) for index in results]

        return run

    return _variable_hops(case, hops, opened)


def _variable_hops(case: Case, hops: int, opened):
    rows, axis, first = sequence(case, hops)
    window, stream = opened(case.window), opened(case.stream)
    ours, theirs = [], []
    for hop in range(first + hops):
        end = (hop + 1) * case.hop
        made = stream(cut(rows, axis, end - case.hop, end))
        if hop >= first:
            theirs.append(made)
            ours.append(window(cut(rows, axis, end - case.record.window, end)))
    return ours, theirs


def apart(ours, theirs) -> float:
    """The largest difference as a share of the largest value; infinite where a value is not finite in one alone, and
    for any difference of integers."""
    worst = 0.0
    for one, other in zip((v for run in ours for v in run), (v for run in theirs for v in run), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        if one.tobytes() == other.tobytes() or np.array_equal(one, other, equal_nan=True):
            continue
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64))
        if one.dtype.kind != "f" or not np.isfinite(difference).all():
            return float("inf")
        worst = max(worst, float(difference.max()) / max(float(np.abs(one).max()), 1e-6))
    return worst


def in_place(case: Case, folder: Path) -> Case:
    """The stream with its states in place, at offsets of a planned arena."""
    moved, placed = folder / "moved.tflite", folder / "in_place.tflite"
    write_in_place(case.stream, moved)
    graph = load(moved)
    steps = range(len(graph.ops))
    arena = plan_arena(graph, steps, method="greedy_by_size", memory="tflm")
    export_tflite(placed, graph, tuple(steps), offsets=arena.tensor_offsets)
    return replace(case, stream=placed)


def in_place_hops(case: Case, hops: int = 6):
    """As `tflm_hops`, for states in place: they are noise before the first call, and nobody sets them again."""
    from tflite_micro import runtime

    graph, record = load(case.stream), case.record
    count = len(load(case.window).outputs)
    rows, axis, first = sequence(case, hops)
    window, stream = (
        runtime.Interpreter.from_file(str(path), arena_size=1 << 22) for path in (case.window, case.stream)
    )
    for place, tensor in enumerate(graph.inputs[1:], 1):
        meta = graph.tensors[tensor]
        stream.set_input(np.full(meta.shape, np.nan if meta.dtype == "float32" else 77, meta.dtype), place)
    ours, theirs = [], []
    for hop in range(first + hops):
        end = (hop + 1) * case.hop
        for interpreter, start, made in ((stream, end - case.hop, theirs), (window, end - record.window, ours)):
            if start < 0:
                continue
            interpreter.set_input(cut(rows, axis, start, end), 0)
            interpreter.invoke()
            if hop >= first:
                made.append([np.array(interpreter.get_output(index)) for index in range(count)])
    return ours, theirs


def tensors_of(model, rows):
    """By name what ONNX Runtime makes of every tensor of an .onnx model for this input `x`."""
    opened = onnx.ModelProto.FromString(model.SerializeToString())
    del opened.graph.output[:]
    names = [name for node in opened.graph.node for name in node.output if name]
    for name in names:
        opened.graph.output.add().name = name
    return {"x": rows, **dict(zip(names, _session(opened).run(None, {"x": rows}), strict=True))}
