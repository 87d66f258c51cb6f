"""What the fleet makes of errors of Ray: no cluster is started."""

from __future__ import annotations

import time
from collections import Counter
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


def test_a_local_node_that_ends_at_its_start_is_started_again_and_at_last_told():
    """One that had joined is left alone: what its end means is for the driver to say."""

    class Node:
        def __init__(self, device, ends):
            self.options, self.left, self.starts = SimpleNamespace(device=device), ends, 1

        @property
        def running(self):
            return self.starts > self.left

        def again(self):
            self.starts += 1

        def last_error(self):
            return "its agent was not up in time"

    fleet = object.__new__(ray_fleet.RayFleet)
    fleet._node, fleet._own_node, fleet._seen, fleet._starts = None, "head", {"joined"}, Counter()
    fleet.nodes = lambda: [{"NodeID": "head", "Resources": {}}]
    nodes = {device: Node(device, ends) for device, ends in (("joined", 99), ("late", 2), ("well", 0))}
    fleet.local_nodes = tuple(nodes.values())
    for _ in range(6):
        assert fleet.present() == set()
    assert [node.starts for node in nodes.values()] == [1, 3, 1]
    fleet.local_nodes = (Node("never", 99),)
    with pytest.raises(UnsupportedError, match="device 'never' ended at its start: its agent was not up in time"):
        for _ in range(6):
            fleet.present()


def test_a_head_that_took_longer_than_ray_waits_starts_again():
    """Unless devices of this machine had their keys in its folder, which is gone, or it ended for another reason."""

    class Head:
        def __init__(self, too_slow):
            self.too_slow, self.running, self.starts = too_slow, False, 1

        def again(self):
            self.starts, self.running = self.starts + 1, True

        def last_error(self):
            return "RPC error: Deadline Exceeded"

    fleet = object.__new__(ray_fleet.RayFleet)
    fleet.local_nodes, later = (), time.monotonic() + 60.0
    slow = Head(too_slow=True)
    fleet._check_head(slow, later, "nobody listens there")
    fleet._check_head(slow, later, "nobody listens there")
    assert slow.starts == 2
    for head, local_nodes, until in (
        (Head(too_slow=False), (), later),
        (Head(too_slow=True), (slow,), later),
        (Head(too_slow=True), (), 0.0),
    ):
        fleet.local_nodes = local_nodes
        with pytest.raises(UnsupportedError, match="head node ended: RPC error"):
            fleet._check_head(head, until, "nobody listens there")
        assert head.starts == 1
