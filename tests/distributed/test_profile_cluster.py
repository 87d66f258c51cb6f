"""A local cluster measured through the command line: what is written is what planners read; nothing is left running."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest

from downset import load_cluster
from downset.distributed.keys import issue_keys, make_authority
from downset.distributed.profiling.measure import Effort, measure_cluster
from downset.errors import UsageError

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def rays_variables():
    ours = ("RAY_AUTH_", "RAY_TLS_", "RAY_USE_", "DOWNSET_")
    return {name: value for name, value in os.environ.items() if name.startswith(ours)}


def started_under(mark):
    """Processes that began with this in their environment, as all have that this test starts; but for the process
    that watches over this one, and ends with it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if b"downset.process.worker" not in words and mark.encode() in (folder / "environ").read_bytes():
                found.append(words)
    return found


def test_a_local_cluster_is_measured(run, tmp_path, monkeypatch):
    monkeypatch.setenv("STARTED_BY", str(tmp_path))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()  # what was only forked has no environment yet
        assert len(started_under(f"STARTED_BY={tmp_path}")) == 1
    before = rays_variables()
    file = tmp_path / "measured.toml"
    status, out, err = run(
        "profile-cluster", "--devices", "d7,d8", "--local", "--probe-time", "5ms", "-o", file, "--json"
    )
    assert status == 0, err
    found, cluster = json.loads(out), load_cluster(file)
    jsonschema.validate(found, json.loads((SCHEMAS / "profile-cluster.json").read_text()))
    assert [device.name for device in cluster.devices] == ["d7", "d8"]
    assert cluster.network.overlap
    for stated, device in zip(found["devices"], cluster.devices, strict=True):
        assert device.mac_per_s == pytest.approx(stated["mac_per_s"], rel=1e-5)
        # Convolutions had most MACs. A busy machine may give times that one of the others does not explain.
        assert set(device.alpha_of) <= {"Gemm", "MatMul"}
        assert 1e7 < device.mac_per_s < 1e13
        assert stated["samples"] == 3 * 19
        assert 50e6 < device.runtime_bytes < 2e9
        assert device.messages is not None
        for what in ("send", "receive", "frame", "result"):
            cost = getattr(device.messages, what)
            assert cost.each_s == pytest.approx(stated["messages"][what]["each_s"], rel=1e-5)
            assert 0 <= cost.of(1 << 20) < 60.0  # how long a stall of the machine is, nobody knows
        assert device.memory_bytes > device.runtime_bytes
    bytes_per_s, latency_s = cluster.link(0, 1)
    assert 1e5 < bytes_per_s < 1e12
    assert 0 < latency_s < 60
    assert "# Measured 20" in file.read_text()
    assert rays_variables() == before
    assert started_under(f"STARTED_BY={tmp_path}") == []


def test_a_cluster_off_loopback_needs_keys(fails, tmp_path):
    fails(2, "profile-cluster", "--devices", "d0", "--head", "10.0.0.1:6379", says="--keys DIR")
    fails(2, "profile-cluster", "--devices", "d0", says="--keys DIR")
    keys = issue_keys(make_authority(tmp_path / "authority"), "driver", hosts=["10.0.0.1"])
    fails(2, "profile-cluster", "--devices", "d0", "--head", "10.0.0.1", "--keys", keys, says="is not HOST:PORT")
    fails(2, "profile-cluster", "--devices", "d0", "--local", "--keys", keys, says="leave --head and --keys out")
    (keys / "token").chmod(0o644)
    fails(5, "profile-cluster", "--devices", "d0", "--head", "10.0.0.1:6379", "--keys", keys, says="is open to other")
    (keys / "token").unlink()
    fails(5, "profile-cluster", "--devices", "d0", "--head", "10.0.0.1:6379", "--keys", keys, says="cannot read")


def test_devices_are_named_once():
    for names in ([], ["d0", "d0"]):
        with pytest.raises(UsageError, match="each once"):
            measure_cluster(names, [], effort=Effort())
