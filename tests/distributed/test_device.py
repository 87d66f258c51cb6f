"""A device on its own: what it keeps, what it refuses, and when it ends."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from downset.distributed.serving.device import ServingDevice
from downset.distributed.serving.device_program import Computation, DeviceProgram, TensorForm
from downset.errors import UnsupportedError
from downset.results.pipelines import Rows

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
        ServingDevice("d0", folder=str(tmp_path)).begin(1, msgspec.json.encode(program))


def test_what_arrives_for_a_run_that_is_over_is_ignored(tmp_path):
    device = ServingDevice("d0", folder=str(tmp_path))
    device.begin(2, msgspec.json.encode(DeviceProgram("d0", {}, {0: Computation("", (), ())})))
    assert device.compute(1, 0, [0]) == {"seconds": [pytest.approx(0.0, abs=1.0)]}
    assert device.send(1, 0, 0) == [] and device.result(1, 0) == []
    assert not device._frames
    device.compute(2, 0, [0])
    assert not device._frames, "a frame whose tasks are all done is forgotten"


def test_a_task_that_ends_after_a_change_of_plan_counts_for_its_own_frame(tmp_path):
    """A strip of run 1 ends when run 2 has begun: frame 0 has all of its tasks left there."""
    rows, made = Rows(0, 0, 1), np.full(2, 3.0, np.float32)
    program = msgspec.json.encode(
        DeviceProgram(
            "d0",
            {0: TensorForm("in", (2,), "float32", None, None), 1: TensorForm("out", (2,), "float32", None, None)},
            {0: Computation(SHARD, (rows,), (Rows(1, 0, 1),))},
            sends={1: (Rows(1, 0, 1),)},
            enters=(rows,),
        )
    )
    device = ServingDevice("d0", folder=str(tmp_path))

    class Session:
        def run(self, names, given):
            if device._run == 1:
                device.begin(2, program)
                device.enter(2, 0, [[made]])
            return [given["in"]]

    device._sessions[SHARD] = Session()
    device.begin(1, program)
    device.enter(1, 0, [[made]])
    device.compute(1, 0, [0])
    device.compute(2, 0, [0])
    assert [array.tolist() for array in device.send(2, 0, 1)] == [made.tolist()]
    assert not device._frames
