"""Devices as objects of this process, with threads of their own and faults on request: a `Fleet` without Ray."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime

from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.device import ServingDevice
from downset.distributed.serving.fleet import DeviceLost
from downset.distributed.serving.serve import ServingSettings, run_on

GROUP = {
    "compute": "compute",
    "send": "send",
    "result": "send",
    "enter": "receive",
    "receive": "receive",
    "keep": "setup",
    "place": "setup",
    "begin": "setup",
}
SIZES = {"compute": 1, "send": 1, "receive": 4, "setup": 1, "control": 1}


def _fetched(held, wanted):
    while wanted():
        try:
            return held.result(0.05)
        except TimeoutError:
            continue
    return None


class _Process:
    """A device and its threads. `mute`: it answers nothing more; `dead`: calls fail. `delay_s`: a computation takes so
    long, times the `factor`, and says so: where there is a delay, a busy machine slows no device down."""

    def __init__(self, name, folder, delay_s):
        self.device = ServingDevice(name, threads=1, fetch=_fetched, folder=str(folder))
        self.pools = {group: ThreadPoolExecutor(size) for group, size in SIZES.items()}
        self.mute = self.dead = False
        self.factor, self.delay_s = 1.0, delay_s
        self.waiting = set()


class ThreadFleet:
    def __init__(self, names, folder, *, delay_s=0.0):
        self.names, self.folder, self.delay_s = set(names), Path(folder), delay_s
        self.processes, self.kept, self.calls = {}, [], []
        self.computed = {}
        self.lock = threading.Lock()
        self.broken = None

    def check(self):
        if self.broken is not None:
            raise self.broken

    def present(self):
        return set(self.names)

    def start(self, device):
        self.processes[device] = _Process(device, self.folder / device, self.delay_s)

    def stop(self, device):
        process = self.processes.pop(device, None)
        if process is not None:
            self._end(device, process)

    def _end(self, device, process):
        process.dead = True
        for pool in process.pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for then in list(process.waiting):
            process.waiting.discard(then)
            then(None, DeviceLost(device, "its process has ended"))

    def kill(self, device):
        """Its process ends: calls on their way fail, later ones too."""
        self._end(device, self.processes[device])

    def stall(self, device):
        """It is stopped: nothing is answered any more, and nothing fails."""
        self.processes[device].mute = True

    def slow(self, device, factor):
        self.processes[device].factor = factor

    def _method(self, device, method, arguments):
        process = self.processes[device]
        if method == "compute":
            threading.Event().wait(process.delay_s * process.factor * len(arguments[2]))
            self.computed.setdefault(device, {}).setdefault(arguments[:2], set()).add(process.factor)
        found = getattr(process.device, method)(*arguments)
        if method == "compute" and process.delay_s:
            found = {"seconds": [process.delay_s * process.factor for _ in found["seconds"]]}
        if method == "keep" or (method == "place" and arguments[3]):
            self.kept.append((device, arguments[0]))
        return found

    def call(self, device, method, *arguments, then):
        process = self.processes.get(device)
        if process is None or process.dead:
            then(None, DeviceLost(device, "its process has ended"))
            return
        process.waiting.add(then)

        def work():
            try:
                found, error = self._method(device, method, arguments), None
            except KeyError:
                return
            except Exception as caught:
                found, error = None, caught
            if process.mute or process.dead or then not in process.waiting:
                return
            process.waiting.discard(then)
            then(found, error)

        with self.lock:
            self.calls.append((device, method, arguments[:3]))
        process.pools[GROUP.get(method, "control")].submit(work)

    def send(self, device, *arguments):
        process = self.processes.get(device)
        if process is None or process.dead:
            raise DeviceLost(device, "it has been stopped")
        found = Future()

        def work():
            if not process.mute:
                found.set_result(process.device.send(*arguments))

        process.pools["send"].submit(work)
        return found

    def put(self, value):
        found = Future()
        found.set_result(value)
        return found

    def close(self):
        for name in list(self.processes):
            self.stop(name)


@contextmanager
def running(graph, plan, folder, *, fleet=None, ahead=False, gather_s=60.0, spare_frames=3):
    """A pipeline on devices of this process."""
    names = [device.name for device in plan.cluster.devices]
    fleet = fleet or ThreadFleet(names, folder / "devices")
    shards = Shards(graph, folder / "made")
    try:
        settings = ServingSettings(gather_s=gather_s, ahead=ahead, spare_frames=spare_frames)
        with run_on(fleet, graph, plan, shards, settings) as pipeline:
            yield pipeline
    finally:
        fleet.close()


def frames_of(graph, count, seed=0):
    random = np.random.default_rng(seed)
    return [
        {
            graph.tensors[t].name: random.standard_normal(graph.tensors[t].shape).astype(graph.tensors[t].dtype)
            for t in graph.inputs
        }
        for _ in range(count)
    ]


def unsplit(path, frames):
    """What the whole model makes of each frame, by output name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, frame), strict=True)) for frame in frames]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            np.testing.assert_allclose(one[name], value, rtol=1e-3, atol=1e-4)


def first_event(report):
    """The first event of a report that is not slowness, which a busy machine shows of any device."""
    return next(event for event in report.events if event.kind != "slow")
