"""Who is to blame for an error of Ray's: the device whose process has ended."""

from __future__ import annotations

import pytest

from downset.distributed.serving.ray_fleet import RayFleet
from downset.errors import UnsupportedError

ray = pytest.importorskip("ray")
errors = pytest.importorskip("ray.exceptions")


@pytest.fixture
def explained():
    """Without a cluster: what `d0`'s call ended with, explained."""
    fleet = RayFleet.__new__(RayFleet)
    fleet._ray, fleet._actors = ray, {}
    return lambda error: fleet._explained("d0", error)


def raised_there(cause):
    """As Ray hands over what a method raised: of both types, its own and the cause's."""
    return errors.RayTaskError("receive", "traceback", cause).as_instanceof_cause()


def test_a_process_that_has_ended(explained):
    assert explained(errors.ActorDiedError()).device == "d0"
    lost = explained(errors.ActorUnavailableError("no answer", b"0" * 16))
    assert lost.device == "d0" and lost.reason == "its connection broke"


def test_errors_of_the_method_itself(explained):
    assert explained(raised_there(MemoryError())).device == "d0"
    assert "its memory is odd" in str(explained(raised_there(ValueError("its memory is odd"))))
    ours = UnsupportedError("the disk is full")
    assert explained(raised_there(ours)) is ours
