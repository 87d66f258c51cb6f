"""Seconds of the device without the host's launches, on a machine of two clocks that is written down here."""

import random
from types import SimpleNamespace

import pytest

from downset.executor import device_clock
from downset.executor.device_clock import DeviceClock

HERTZ = 1.98e9


class TwoClocks:
    """The host's time `now`, and the time `free` at which the device has done what was issued. A launch takes the host
    `launch` seconds; the device does what was issued in its order."""

    def __init__(self, launch):
        self.now = self.free = 0.0
        self.launch = launch

    def issue(self, seconds):
        self.now += self.launch
        self.free = max(self.free, self.now) + seconds

    def Event(self, *, enable_timing):  # noqa: N802 - torch.cuda's name
        event = SimpleNamespace()

        def record():
            self.issue(0.0)
            event.at = self.free

        event.record, event.query = record, lambda: event.at <= self.now
        event.elapsed_time = lambda end: 1e3 * (end.at - event.at)
        return event

    def _sleep(self, cycles):
        self.issue(cycles / HERTZ)

    def synchronize(self):
        self.now = max(self.now, self.free)


def clock_of(machine, monkeypatch):
    monkeypatch.setattr(device_clock, "need_cuda", lambda: SimpleNamespace(cuda=machine))
    return DeviceClock()


@pytest.mark.parametrize("seed", range(20))
def test_no_launch_is_inside_the_seconds_of_a_call(monkeypatch, seed):
    draw = random.Random(seed)
    machine = TwoClocks(draw.uniform(1e-6, 3e-5))
    clock = clock_of(machine, monkeypatch)
    for _ in range(5):
        kernels = [draw.uniform(1e-7, 2e-5) for _ in range(draw.randrange(1, 400))]
        taken = clock.seconds(lambda kernels=kernels: [machine.issue(kernel) for kernel in kernels])
        assert taken == pytest.approx(sum(kernels), rel=1e-6)
    assert clock.exposed == 0


def test_launches_that_cannot_be_hidden_are_counted(monkeypatch):
    machine = TwoClocks(1e-3)
    clock = clock_of(machine, monkeypatch)
    taken = clock.seconds(lambda: [machine.issue(1e-6) for _ in range(500)])
    assert clock.exposed == 1 and taken > 0.4
