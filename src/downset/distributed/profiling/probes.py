"""Probes with which devices are timed: short runs of operators as ONNX models, with their MACs by kind, the bytes that
they move and those of their weights.

Weights are constants of one value, which the device makes, so a model takes a few kilobytes whatever its size.
`ProbedDevice` is the program of a device while it is measured.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from downset.distributed.profiling.messenger import Messenger
from downset.distributed.serving.nodes import keys_and_address
from downset.distributed.wire.endpoint import Peer
from downset.errors import UnsupportedError
from downset.extras import onnxruntime_library, optional_library
from downset.formats.reading import load
from downset.formats.shards.cut import Cutter, FrameTile
from downset.formats.shards.model import opsets_of, shard_model
from downset.graph.core import ABSENT, Graph
from downset.graph.cost import longest_axis, op_macs, row_form

__all__ = ["Probe", "ProbedDevice", "model_probes", "standard_probes"]

_SMALL = 256
"""The most elements of constants that stay in the model, such as shapes, pads and scales."""


@dataclass(frozen=True, slots=True)
class Probe:
    """`model`: an ONNX model, serialised. `macs_of`: MACs by kind of operator. `moved_bytes`: bytes that operators
    without MACs read and write. `weight_bytes`: bytes of weights that operators with MACs read."""

    model: bytes
    macs_of: Mapping[str, int]
    moved_bytes: int
    weight_bytes: int


def model_probes(graph: Graph, *, segments: int = 8, parts: Sequence[int] = (1, 4)) -> tuple[Probe, ...]:
    """Probes of the network's operators: about `segments` runs of consecutive operators with similar MACs, each
    computed whole and as one strip of each number of `parts`.

    Raises UnsupportedError if none of them can be a shard."""
    axis = longest_axis(graph)
    form, cutter = row_form(graph, axis=axis, halos_required=False), Cutter(graph, axis)
    costs = [op_macs(graph, op) for op in graph.ops]
    goal = max(1, sum(costs) // segments)
    runs: list[list[int]] = [[]]
    for index, op in enumerate(graph.ops):
        if all(tensor == ABSENT or tensor in graph.constants for tensor in op.outputs):
            continue
        if sum(costs[other] for other in runs[-1]) >= goal:
            runs.append([])
        runs[-1].append(index)
    opsets, probes = opsets_of(graph), []
    for run in runs:
        rows = max((form.ops[index].rows for index in run), default=1)
        for part in parts:
            if part > 1 and rows < 2 * part:
                continue
            low = (part // 2) * rows // part
            cut = cutter.part(run, FrameTile(low, low + rows // part, rows))
            if cut is not None:
                probes.append(_probe(cut.graph, shard_model(cut.graph, opsets)))
    if not any(probe.macs_of for probe in probes):
        raise UnsupportedError(f"{graph.name}: no operator of it can be timed on its own; profile without it")
    return tuple(probes)


def standard_probes() -> tuple[Probe, ...]:
    """Convolutions, matrix products and operators without MACs, with the shapes of small networks."""
    return tuple(_standard())


def _standard() -> Iterator[Probe]:
    onnx = optional_library("onnx", what="making probes", extra="cluster")
    helper = onnx.helper
    for channels, out, size, kernel in (
        (3, 32, 112, 3),
        (32, 64, 56, 3),
        (64, 64, 56, 3),
        (128, 128, 28, 3),
        (256, 256, 14, 3),
        (64, 128, 56, 1),
        (128, 256, 28, 1),
        (256, 512, 14, 1),
    ):
        node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[kernel // 2] * 4)
        yield _built([node], (1, channels, size, size), {"w": (out, channels, kernel, kernel), "b": (out,)})
    for channels, size in ((64, 56), (256, 28)):
        node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4, group=channels)
        yield _built([node], (1, channels, size, size), {"w": (channels, 1, 3, 3)})
    for many, columns, rows in ((1, 1024, 1024), (1, 4096, 1000), (64, 512, 512)):  # the last: few weights for its MACs
        yield _built([helper.make_node("Gemm", ["x", "w"], ["y"])], (many, columns), {"w": (columns, rows)})
    yield _built([helper.make_node("MatMul", ["x", "w"], ["y"])], (1, 196, 256), {"w": (256, 256)})
    for shape in ((1, 64, 56, 56), (1, 128, 28, 28)):
        yield _built([helper.make_node("Relu", ["x"], ["y"])], shape, {})
        yield _built([helper.make_node("Add", ["x", "x"], ["y"])], shape, {})
        pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
        yield _built([pool], shape, {})


def _built(nodes: Sequence[Any], shape: tuple[int, ...], weights: Mapping[str, tuple[int, ...]]) -> Probe:
    import numpy as np
    import onnx

    described = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    constants = [onnx.numpy_helper.from_array(np.zeros(of, np.float32), name) for name, of in weights.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "probe", [described], [result], constants),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    model = onnx.shape_inference.infer_shapes(model)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "probe.onnx"
        onnx.save(model, str(path))
        return _probe(load(path), model.SerializeToString())


def _probe(part: Graph, model: bytes) -> Probe:
    macs_of: dict[str, int] = {}
    moved, weights = 0, set[int]()
    for op in part.ops:
        cost = op_macs(part, op)
        if cost:
            macs_of[op.kind] = macs_of.get(op.kind, 0) + cost
            weights |= {t for t in op.inputs if t != ABSENT and part.tensors[t].role == "constant"}
        elif op.kind != "Constant":
            ends = (*dict.fromkeys(op.inputs), *op.outputs)
            moved += sum(part.tensors[t].nbytes for t in ends if t != ABSENT and part.tensors[t].role == "activation")
    return Probe(_without_weights(model), macs_of, moved, sum(part.tensors[t].nbytes for t in weights))


def _without_weights(model: bytes) -> bytes:
    """The model in which ConstantOfShape makes large constants; ONNX Runtime folds it when it opens a session."""
    import numpy as np
    import onnx

    light = onnx.ModelProto.FromString(model)
    kept, nodes = [], []
    for tensor in light.graph.initializer:
        elements = int(np.prod(tensor.dims)) if tensor.dims else 1
        if elements <= _SMALL or tensor.data_type != onnx.TensorProto.FLOAT:
            kept.append(tensor)
            continue
        shape = f"{tensor.name}/shape"
        kept.append(onnx.numpy_helper.from_array(np.array(tensor.dims, np.int64), shape))
        value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [0.01])
        nodes.append(onnx.helper.make_node("ConstantOfShape", [shape], [tensor.name], value=value))
    nodes += light.graph.node
    del light.graph.initializer[:]
    del light.graph.node[:]
    light.graph.initializer.extend(kept)
    light.graph.node.extend(nodes)
    data: bytes = light.SerializeToString(deterministic=True)
    return data


class ProbedDevice:
    """`threads`: of each session of ONNX Runtime. `name`: the device's among those measured; the environment of its
    node says where its keys are, and at which address it is reached."""

    def __init__(self, name: str = "", *, threads: int = 0) -> None:
        self._threads = threads or int(os.environ.get("DOWNSET_THREADS", "0")) or os.cpu_count() or 1
        self._run: Callable[[], Any] = int
        self._rests = threading.Event()
        self._progress = (0, time.monotonic())
        self._messenger: Messenger | None = None
        if name:
            self._messenger = Messenger(name, *keys_and_address())

    def here(self) -> Peer:
        """Where it takes messages."""
        return self._messages().here

    def meet(self, peers: dict[str, Peer]) -> None:
        """Know where the others are, and the driver by an empty name."""
        self._messages().meet(peers)

    def send(self, peer: str, nbytes: int, count: int = 1) -> list[float]:
        """Send so many messages one after another; the seconds until each had arrived."""
        return self._messages().send(peer, nbytes, count)

    def _messages(self) -> Messenger:
        assert self._messenger is not None
        return self._messenger

    def runtime_bytes(self) -> int:
        """The memory of all processes of this node's session, with shared memory counted once, before any model is
        loaded. A process that cannot be inspected counts with its resident memory."""
        return sum(_held_bytes(process) for process in _session_processes())

    def seconds(self, model: bytes, *, least_s: float, batches: int) -> list[float]:
        """Seconds of a run, one value for each batch of runs of at least `least_s` seconds. One run before them does
        not count."""
        run = self._opened(model)
        seconds = []
        for _ in range(batches):
            runs, begun = 0, time.monotonic()
            while (taken := time.monotonic() - begun) < least_s or not runs:
                run()
                runs += 1
            seconds.append(taken / runs)
        return seconds

    def open(self, model: bytes) -> None:
        """Open the model for `keep_computing`."""
        self._run = self._opened(model)

    def wake(self) -> None:
        """Undo `rest`, so that `keep_computing` can be called again."""
        self._rests.clear()

    def keep_computing(self) -> None:
        """Run the opened probe again and again until `rest` is called, and count the runs."""
        while not self._rests.is_set():
            self._run()
            self._progress = (self._progress[0] + 1, time.monotonic())

    def progress(self) -> tuple[int, float]:
        """The number of runs that `keep_computing` has ended, and when the last of them ended."""
        return self._progress

    def rest(self) -> None:
        """End `keep_computing`."""
        self._rests.set()

    def _opened(self, model: bytes) -> Callable[[], Any]:
        """A function that runs the model once; it has been run once before."""
        library = onnxruntime_library("running probes", extra="cluster")
        options = library.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feeds = {described.name: _values(described) for described in session.get_inputs()}
        session.run(None, feeds)
        return lambda: session.run(None, feeds)

    def ready(self) -> dict[str, Any]:
        """A sign of life, with figures of the device."""
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return {"threads": self._threads, "pid": os.getpid(), "memory_bytes": pages * page}


def _values(described: Any) -> Any:
    kinds = {
        "tensor(float)": np.float32,
        "tensor(int64)": np.int64,
        "tensor(uint8)": np.uint8,
        "tensor(bool)": np.bool_,
    }
    return np.full(described.shape, 0.5, kinds.get(described.type, np.float32))


def _session_processes() -> list[int]:
    session, pids = os.getsid(os.getppid()), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                pids.append(int(entry.name))
    return sorted({*pids, os.getpid()})


def _held_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    except (OSError, ValueError, IndexError):
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
        return 0
