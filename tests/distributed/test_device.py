"""A device on its own: what it keeps, what it refuses, and when it ends."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import threading

import msgspec
import numpy as np
import pytest

from downset.distributed.serving.device import ServingDevice
from downset.distributed.serving.device_program import Computation, DeviceProgram, DeviceStep, TensorForm
from downset.distributed.serving.device_run import RunSetup
from downset.distributed.wire.endpoint import Endpoint
from downset.distributed.wire.messages import ENTER, RESULT, VERSION, Hello, RowsOf
from downset.errors import UnsupportedError
from downset.results.pipelines import Rows
from tests.distributed.test_serving_faults import wait_for
from tests.distributed.thread_fleet import keys_of

pytest.importorskip("onnxruntime")

SHARD = hashlib.sha256(b"a shard").hexdigest()


def test_a_device_whose_driver_is_silent_ends_itself():
    program = (
        "import time; from downset.distributed.serving import device; device.DRIVER_SILENCE_S = 0.5; "
        "device.ServingDevice('d0', watched=True); time.sleep(600)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3 and "the driver was silent" in done.stderr


def test_shards_are_kept_by_their_hash_and_damaged_ones_refused(tmp_path):
    device, data = ServingDevice("d0", folder=str(tmp_path)), b"a shard"
    name = hashlib.sha256(data).hexdigest()
    device.keep(name, data)
    device.keep(name, data)
    assert ServingDevice("d0", folder=str(tmp_path)).describe()["shards"] == [name]  # a process that comes after it
    for other, content in ((name, b"another"), ("../outside", data), (hashlib.sha256(b"").hexdigest(), data)):
        with pytest.raises(UnsupportedError, match="arrived damaged"):
            device.keep(other, content)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{name}.onnx"]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a" * 63, "A" * 64])
def test_a_program_names_shards_and_no_paths(name, tmp_path):
    program = DeviceProgram("d0", {}, {0: Computation(name, (), ())})
    with pytest.raises(UnsupportedError, match="not the name of a shard"):
        ServingDevice("d0", folder=str(tmp_path)).begin(1, msgspec.json.encode(program), b"{}")


@pytest.fixture
def device(tmp_path):
    found = ServingDevice("d0", folder=str(tmp_path), keys=keys_of("d0"))
    yield found
    found.close()


class Driver:
    """An endpoint that begins runs of one device, sends it frames, and keeps the results that come."""

    def __init__(self, device):
        self.device, self.results, self.connections = device, [], {}
        self.endpoint = Endpoint(keys_of("driver"), "127.0.0.1", self._accepted)
        self.peers = {"": self.endpoint.here, "d0": device._endpoint.here}

    def _accepted(self, connection, hello):
        while True:
            header, nbytes = connection.receive_header()
            array = np.empty(nbytes // 4, np.float32)
            connection.receive_into([array])
            if isinstance(header, RowsOf):
                self.results.append((hello.run, header, array.tolist()))

    def begin(self, run, program):
        setup = msgspec.json.encode(RunSetup("session", 0, 4, self.peers))
        assert self.device.begin(run, program, setup) == []

    def send(self, run, frame, array):
        if run not in self.connections:
            self.connections[run] = self.endpoint.dial(self.peers["d0"], Hello(VERSION, "session", run, ""))
        self.connections[run].send(RowsOf(run, frame, ENTER), [array])


def test_a_task_that_ends_after_a_change_of_plan_counts_for_its_own_run(device):
    """The strip of frame 0 in run 1 ends when run 2 has begun and has a frame 0 too. What run 1 is sent from then on is
    refused, and gives nothing."""
    rows, made = Rows(0, 0, 1), np.full(2, 3.0, np.float32)
    program = msgspec.json.encode(
        DeviceProgram(
            "d0",
            {0: TensorForm("in", (2,), "float32", None, None), 1: TensorForm("out", (2,), "float32", None, None)},
            {0: Computation(SHARD, (rows,), (Rows(1, 0, 1),))},
            enters=(rows,),
            results=(Rows(1, 0, 1),),
            steps={0: DeviceStep()},
            starts=True,
        )
    )
    driver, changed = Driver(device), threading.Event()

    class Session:
        def run(self, names, given):
            if not changed.is_set():
                driver.begin(2, program)
                driver.send(2, 0, made + 1)
                changed.set()
            return [given["in"]]

    device._sessions[SHARD] = Session()
    driver.begin(1, program)
    driver.send(1, 0, made)
    assert changed.wait(60)
    with contextlib.suppress(OSError):
        driver.send(1, 1, made)
    driver.send(2, 1, made + 2)
    wait_for(lambda: len(driver.results) == 2 and device.run.inside == 0)
    driver.endpoint.close()
    assert driver.results == [(2, RowsOf(2, frame, RESULT), [4.0 + frame] * 2) for frame in (0, 1)]
    assert device.run.number == 2 and not device.run.held_bytes
