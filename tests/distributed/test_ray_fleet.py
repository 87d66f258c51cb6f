"""What the fleet makes of errors of Ray: no cluster is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from downset.distributed.serving import ray_fleet
from downset.distributed.serving.fleet import DeviceLost
from downset.errors import UnsupportedError


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "\x1b[36mray::RayDevice.begin()\x1b[39m\n  File 'a.py', line 1\nOSError: \x1b[31mno room\x1b[0m\n \n",
            "OSError: no room",
        ),
        ("one\x07", "one?"),
        ("", "ValueError"),
    ],
)
def test_of_an_error_of_another_device_the_last_line_is_logged(said, line):
    assert ray_fleet._last_line(ValueError(said)) == line


def test_devices_that_end_with_the_heads_node_are_not_lost_one_by_one():
    class RayActorError(Exception):
        pass

    kinds = dict.fromkeys(("RayTaskError", "ActorUnavailableError", "ObjectLostError"), LookupError)
    fleet = object.__new__(ray_fleet.RayFleet)
    fleet._ray, fleet._actors = SimpleNamespace(exceptions=SimpleNamespace(RayActorError=RayActorError, **kinds)), {}
    gone = fleet._explained("d0", RayActorError("The actor is dead because its owner has died. Owner Id: 01"))
    assert isinstance(gone, UnsupportedError) and str(gone).startswith("Ray's head node ended: a process of it is gone")
    lost = fleet._explained("d0", RayActorError("The actor died unexpectedly before finishing this task."))
    assert isinstance(lost, DeviceLost) and lost.device == "d0"
