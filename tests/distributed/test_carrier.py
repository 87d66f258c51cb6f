"""Shards on their way ahead of need: in pieces, with pauses, whole at the end; a plan is taken when they are there."""

import hashlib
import queue
from types import SimpleNamespace

import pytest

from downset.distributed.serving import carrier as module
from downset.distributed.serving.carrier import Carrier
from downset.distributed.serving.device import ServingDevice
from downset.errors import UnsupportedError


class Made:
    def __init__(self, *contents):
        self.by_name = {hashlib.sha256(one).hexdigest(): one for one in contents}

    def data(self, shard):
        return self.by_name[shard]


class Calls:
    """Calls of one device that are answered when `step` is called."""

    def __init__(self, device):
        self.device, self.sent, self.waiting = device, [], queue.SimpleQueue()

    def call(self, name, method, *arguments, then, refused=None, wanted=lambda: True):
        self.sent.append((method, *arguments))
        self.waiting.put((method, arguments, then, refused))

    def step(self):
        method, arguments, then, refused = self.waiting.get_nowait()
        try:
            found = getattr(self.device, method)(*arguments)
        except UnsupportedError as error:
            refused(error)
        else:
            then(found)


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Time stands still: no piece takes long, however busy the machine."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    return Calls(ServingDevice("d0", threads=1, folder=str(tmp_path)))


def run(calls, carrier):
    while not calls.waiting.empty():
        calls.step()
        carrier.go_on()


@pytest.mark.parametrize("nbytes", [1, 9, 10, 11, 35])
def test_pieces_make_the_shard(nbytes, calls, monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 10)
    made = Made(bytes(range(nbytes)), b"another")
    first, second = made.by_name
    carrier = Carrier(calls, made)
    carrier.has("d0", [])
    assert carrier.idle
    carrier.place("d0", [first, second])
    assert carrier.awaits("d0", [first]) and carrier.awaits("d0", [second])
    while not calls.waiting.empty():
        assert not carrier.idle
        calls.step()
        carrier.go_on()
    assert carrier.idle
    assert not carrier.awaits("d0", [first, second])
    assert calls.device.describe()["shards"] == sorted(made.by_name)
    assert [len(piece) for _, shard, _, piece, _ in calls.sent if shard == first] == [
        min(10, nbytes - at) for at in range(0, nbytes, 10)
    ]
    carrier.place("d0", [first])  # it is there
    assert calls.waiting.empty()


def test_after_a_piece_that_took_long_the_next_one_waits_as_long(calls, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module, "_PIECE_BYTES", 10)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    made = Made(bytes(25))
    (shard,) = made.by_name
    carrier = Carrier(calls, made)
    carrier.has("d0", [])
    carrier.place("d0", [shard])
    clock[0] = 3.0
    calls.step()
    for clock[0], sent in ((3.1, 1), (5.9, 1), (6.0, 2), (6.1, 2)):
        carrier.go_on()
        assert len(calls.sent) == sent


def test_what_cannot_be_kept_is_awaited_no_more(calls):
    made = Made(b"one", b"two")
    damaged = "0" * 64
    made.by_name[damaged] = b"three"
    carrier = Carrier(calls, made)
    carrier.has("d0", [])
    carrier.place("d0", [damaged, *Made(b"one").by_name])
    run(calls, carrier)
    assert not carrier.awaits("d0", made.by_name)


def test_pieces_out_of_turn_are_refused(calls):
    one, two = Made(b"one").by_name, Made(b"two").by_name
    (name,), (other,) = one, two
    calls.device.place(name, 0, b"on", False)
    with pytest.raises(UnsupportedError, match="in the wrong order"):
        calls.device.place(name, 1, b"e", True)
    with pytest.raises(UnsupportedError, match="in the wrong order"):
        calls.device.place(other, 2, b"e", True)
    calls.device.place(name, 2, b"e", True)
    assert calls.device.describe()["shards"] == [name]
