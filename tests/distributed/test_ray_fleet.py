"""What the fleet asks of Ray, held to a stand-in for Ray's object store: no cluster is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from downset.distributed.serving import ray_fleet
from downset.distributed.serving.fleet import DeviceLost
from downset.errors import UnsupportedError


class Store:
    """An object that takes `needs_s` to come. As in Ray, where the time of a `get` runs out, what has come is dropped;
    a `wait` leaves it there. Its clock moves while somebody waits."""

    exceptions = SimpleNamespace(GetTimeoutError=TimeoutError)

    def __init__(self, needs_s):
        self.needs_s, self.now, self.came_s, self.sent_s = needs_s, 0.0, 0.0, 0.0

    def _comes(self, timeout):
        spent = min(timeout, self.needs_s - self.came_s)
        self.now, self.came_s, self.sent_s = self.now + spent, self.came_s + spent, self.sent_s + spent
        return self.came_s >= self.needs_s

    def wait(self, references, *, timeout):
        return (references, []) if self._comes(timeout) else ([], references)

    def get(self, reference, *, timeout=float("inf")):
        if not self._comes(timeout):
            self.came_s = 0.0
            raise self.exceptions.GetTimeoutError
        return f"the object of {reference}"


@pytest.fixture
def store(monkeypatch):
    def made(needs_s):
        found = Store(needs_s)
        monkeypatch.setattr(ray_fleet, "optional_library", lambda *_, **__: found)
        return found

    return made


@pytest.mark.parametrize("needs_s", [0.0, 0.3, 0.5, 7.25])
def test_rows_are_sent_once_however_long_they_take(needs_s, store):
    object_store = store(needs_s)
    assert ray_fleet.fetched("it", lambda: object_store.now < 100.0) == "the object of it"
    assert object_store.sent_s == needs_s


def test_rows_that_nobody_wants_any_more_are_waited_for_no_longer(store):
    object_store = store(60.0)
    assert ray_fleet.fetched("it", lambda: object_store.now < 3.0) is None
    assert object_store.now <= 3.0 + ray_fleet._LOOKS_S


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
