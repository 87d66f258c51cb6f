"""What messages cost processors, told from how far devices compute meanwhile: what the simulated devices were given
comes out.

The oracle is a simulation on a clock of its own: a processor serves messages first and computes in the time that is
left, so that a run ends when it has got its seconds.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.distributed.profiling.costs import CostWindow, LoadedDevices, lost_seconds, message_costs

WINDOW = CostWindow(2.4, 10, 9.6)
SIZES = (16 << 10, 1 << 20)


class Machine:
    """Devices with their seconds a run, and costs of messages by what is sent: seconds each, and seconds a byte.
    `others_s`: what each device pays for what the others send."""

    def __init__(self, run_s, costs, *, others_s=(), link_s=0.004, slower=lambda now: 0.0):
        self.run_s, self.costs, self.link_s = run_s, costs, link_s
        self.others_s = others_s or [0.0] * len(run_s)
        self.now = 0.0
        self.computed = [0.0] * len(run_s)  # seconds of the processor that runs have got
        self.ended = [(0, 0.0)] * len(run_s)
        self.slower = slower
        """By what share of itself a run takes longer, by time."""

    def passes(self, seconds, busy):
        """Time passes; `busy`: by device, what messages take of it first."""
        speed = 1 / (1 + self.slower(self.now))
        for device, run_s in enumerate(self.run_s):
            before, serves = self.computed[device], busy.get(device, 0.0)
            after = before + (seconds - serves) * speed
            count = math.floor(after / run_s)
            if count > self.ended[device][0]:
                self.ended[device] = (count, self.now + serves + (count * run_s - before) / speed)
            self.computed[device] = after
        self.now += seconds

    def pause(self, seconds):
        steps = math.ceil(10 * seconds)
        for _ in range(steps):
            self.passes(seconds / steps, {})

    def sent(self, busy):
        busy = dict(enumerate(self.others_s)) | busy
        self.passes(max(self.link_s, *busy.values()), busy)
        return 1

    def cost(self, device, what, nbytes):
        each, byte = self.costs[device][what]
        return each + byte * nbytes

    def loaded(self):
        return LoadedDevices(
            len(self.run_s),
            progress=lambda devices: [self.ended[device] for device in devices],
            message=lambda a, b, n: self.sent({a: self.cost(a, "send", n), b: self.cost(b, "receive", n)}),
            frame=lambda device, n: self.sent({device: self.cost(device, "frame", n)}),
            result=lambda device, n: self.sent({device: self.cost(device, "result", n)}),
            pause=self.pause,
            clock=lambda: self.now,
        )


cost = st.tuples(st.floats(0.005, 0.1), st.floats(1e-9, 4e-7))
costs = st.fixed_dictionaries(dict.fromkeys(("send", "receive", "frame", "result"), cost))


@given(devices=st.lists(st.tuples(st.floats(0.001, 0.1), costs, st.floats(0, 0.01)), min_size=1, max_size=5))
def test_the_costs_that_the_devices_have_are_found(devices):
    runs, costs, others = zip(*devices, strict=True)
    machine = Machine(runs, costs, others_s=others)
    found = message_costs(machine.loaded(), SIZES, WINDOW)
    for (_, own, others_s), measured in zip(devices, found, strict=True):
        assert measured.others_s == pytest.approx(others_s if len(devices) > 1 else 0.0, rel=1e-6, abs=1e-9)
        for what, (each, byte) in own.items():
            one = getattr(measured, what)
            if what in ("send", "receive") and len(devices) == 1:
                assert one.of(1) == 0
                continue
            for nbytes in SIZES:
                assert one.of(nbytes) == pytest.approx(each + byte * nbytes, rel=1e-6)


@pytest.mark.parametrize(
    "slower",
    [lambda now: 0.004 * now, lambda now: 0.1 * math.sin(now / 8), lambda now: 0.2 * (now > 14.0)],
    ids=["drifts", "goes up and down in 50 s", "slower from the third stream on"],
)
def test_a_machine_that_changes_its_speed_is_no_cost(slower):
    """Messages of 0.3 s take nothing; a window's error is a share of the change within the seconds around it."""
    nothing = dict.fromkeys(("send", "receive", "frame", "result"), (0.0, 0.0))
    machine = Machine([0.007, 0.011], [nothing, nothing], link_s=0.3, slower=slower)
    loaded = machine.loaded()
    lost = lost_seconds(loaded, [0, 1], [lambda: loaded.message(0, 1, 1)] * 6, WINDOW)
    for device in (0, 1):
        assert sorted(abs(own[device]) for own in lost)[-2] < 0.01
        assert sum(own[device] for own in lost) / 6 == pytest.approx(0, abs=0.006)


def test_a_device_that_ends_no_run_lost_all_of_its_time():
    slow = dict.fromkeys(("send", "receive", "frame", "result"), (0.5, 0.0))
    machine = Machine([0.2, 0.2], [slow, slow], link_s=0.5)
    loaded = machine.loaded()
    (lost,) = lost_seconds(loaded, [0, 1], [lambda: loaded.message(0, 1, 1)], WINDOW)
    assert lost[1] == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("takes_s", "wanted"), [(0.05, 48), (0.5, 10), (2.0, 5), (60.0, 1)])
def test_a_window_has_enough_messages_and_an_end(takes_s, wanted):
    none = dict.fromkeys(("send", "receive", "frame", "result"), (0.0, 0.0))
    machine = Machine([0.01], [none], link_s=takes_s)
    loaded, sent = machine.loaded(), []

    def stream():
        sent.append(machine.now)
        return loaded.frame(0, 1)

    lost_seconds(loaded, [0], [stream], WINDOW)
    assert len(sent) - 1 == pytest.approx(wanted, abs=1)  # one goes before the window
