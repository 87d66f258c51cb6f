"""Devices as objects of this process, with threads and connections of their own and faults on request: a `Fleet`
without Ray. Rows travel over TLS on loopback, as between processes."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime

from downset.distributed.keys import issue_keys, make_authority, open_keys
from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.device import ServingDevice
from downset.distributed.serving.fleet import DeviceLost
from downset.distributed.serving.serve import ServingSettings, run_on

LOCAL = "127.0.0.1"


TEMPORARY = tempfile.gettempdir()
"""Asked for here, as within `serve` it is a folder that ends with the pipeline."""


@cache
def authority():
    """The folder of an authority for all tests of this process."""
    folder = tempfile.mkdtemp(prefix="downset-test-keys-", dir=TEMPORARY)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_authority(Path(folder) / "authority")


@cache
def keys_of(name):
    return open_keys(issue_keys(authority(), name, hosts=[LOCAL]))


class _Device(ServingDevice):
    """`mute`: it does nothing more; `dead`: its process has ended. `delay_s`: a computation takes so long, times the
    `factor`, and says so: where there is a delay, a busy machine slows no device down."""

    def __init__(self, name, folder, delay_s):
        self.mute = self.dead = False
        self.factor, self.delay_s, self.gone = 1.0, delay_s, threading.Event()
        self.computed, self.name = {}, name
        super().__init__(name, threads=1, keys=keys_of(name), address=LOCAL, folder=str(folder))

    def _compute(self, work, feeds, names):
        factor = self.factor
        if self.delay_s:
            time.sleep(self.delay_s * factor)
        found, seconds = super()._compute(work, feeds, names)
        if self.mute:
            self.gone.wait(120.0)
        run = self.run
        steps = [] if run is None else [step for step in run.steps() if step[0] == "compute"]
        if steps:
            self.computed.setdefault((run.number, steps[0][1]), set()).add(factor)
        return found, self.delay_s * factor if self.delay_s else seconds


class _Process:
    """A device and the threads that answer its driver."""

    def __init__(self, name, folder, delay_s):
        self.device = _Device(name, folder, delay_s)
        self.pools = {"setup": ThreadPoolExecutor(1), "control": ThreadPoolExecutor(1)}
        self.waiting = set()


class ThreadFleet:
    def __init__(self, names, folder, *, delay_s=0.0):
        self.names, self.folder, self.delay_s = set(names), Path(folder), delay_s
        self.processes, self.kept, self.calls = {}, [], []
        self.computed = {}
        self.lock = threading.Lock()
        self.broken = None
        self.keys, self.address = keys_of("driver"), LOCAL

    def check(self):
        if self.broken is not None:
            raise self.broken

    def present(self):
        return set(self.names)

    def start(self, device):
        process = self.processes[device] = _Process(device, self.folder / device, self.delay_s)
        process.device.computed = self.computed.setdefault(device, {})

    def stop(self, device):
        process = self.processes.pop(device, None)
        if process is not None:
            self._end(device, process)

    def _end(self, device, process):
        process.device.dead = True
        process.device.gone.set()
        process.device.close()
        for pool in process.pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for then in list(process.waiting):
            process.waiting.discard(then)
            then(None, DeviceLost(device, "its process has ended"))

    def kill(self, device):
        """Its process ends: calls on their way fail, later ones too, and its connections are closed."""
        self._end(device, self.processes[device])

    def stall(self, device):
        """It is stopped: nothing is answered or computed any more, and nothing fails."""
        self.processes[device].device.mute = True

    def slow(self, device, factor):
        self.processes[device].device.factor = factor

    def _method(self, device, method, arguments):
        found = getattr(self.processes[device].device, method)(*arguments)
        if method == "keep" or (method == "place" and arguments[3]):
            self.kept.append((device, arguments[0]))
        return found

    def call(self, device, method, *arguments, then):
        process = self.processes.get(device)
        if process is None or process.device.dead:
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
            if process.device.mute or process.device.dead or then not in process.waiting:
                return
            process.waiting.discard(then)
            then(found, error)

        with self.lock:
            self.calls.append((device, method, arguments[:3]))
        process.pools["setup" if method in ("keep", "place", "begin") else "control"].submit(work)

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
