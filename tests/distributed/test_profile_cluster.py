"""What `downset profile-cluster` refuses. That it measures is tested in test_cluster.py."""

import pytest

from downset.distributed.keys import issue_keys, make_authority
from downset.distributed.profiling.measure import Effort, measure_cluster
from downset.errors import UsageError


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
            measure_cluster(None, names, [], effort=Effort())
