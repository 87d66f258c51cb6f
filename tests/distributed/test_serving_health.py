"""What is lost and what is slow, by what was heard when."""

from __future__ import annotations

import pytest

from downset.distributed.serving.health import (
    LOOK_S,
    PING_S,
    SILENCE_S,
    Health,
    Pace,
)


def test_silence_is_noticed_in_six_seconds_and_not_before_four_and_a_half():
    assert SILENCE_S + PING_S + LOOK_S <= 5.75
    health = Health()
    for device in ("a", "b"):
        health.watch(device)
        for second in range(4):
            health.note_question(device, float(second))
    health.heard("b")
    health.note_question("b", 4.0)
    assert health.lost(4.5) == []
    assert [device for device, _ in health.lost(4.6)] == ["a"]
    health.forget("a")
    assert health.lost(8.5) == []
    assert [device for device, _ in health.lost(8.6)] == ["b"]


def test_a_driver_that_asks_nothing_blames_nobody():
    health = Health()
    health.watch("a")
    health.note_question("a", 0.0)
    health.heard("a")
    assert health.lost(100.0) == []
    health.note_question("a", 100.0)
    assert health.lost(104.0) == []


def _run(pace, frames, seconds, start=0):
    for frame in range(start, start + frames):
        pace.took("a", "shard", frame, seconds)
        pace.left(frame)
        if pace.changed():
            return frame - start + 1
    return None


@pytest.mark.parametrize("factor", [2.0, 3.0, 10.0])
def test_twice_as_slow_is_noticed_within_five_frames(factor):
    pace = Pace()
    assert _run(pace, 50, 0.1) is None
    assert _run(pace, 20, 0.1 * factor, 50) <= 5
    assert pace.changed() == {"a": pytest.approx(factor)}


def test_one_slow_frame_is_no_slow_device():
    pace = Pace()
    _run(pace, 20, 0.1)
    for frame in range(20, 80):
        pace.took("a", "shard", frame, 1.0 if frame % 4 == 0 else 0.1)
        pace.left(frame)
        assert not pace.changed()


def test_milliseconds_are_no_slowness():
    pace = Pace()
    assert _run(pace, 20, 0.002) is None
    assert _run(pace, 20, 0.02, 20) is None
    assert _run(pace, 20, 0.03, 40) <= 5


def test_what_is_planned_with_is_not_noticed_again_until_it_changes_back():
    pace = Pace()
    _run(pace, 20, 0.1)
    _run(pace, 20, 0.2, 20)
    pace.accept(pace.changed())
    assert pace.factor == {"a": pytest.approx(2.0)}
    assert _run(pace, 30, 0.2, 100) is None
    assert _run(pace, 30, 0.17, 200) is None  # hysteresis
    assert _run(pace, 30, 0.1, 300) <= 5
    assert pace.changed() == {"a": 1.0}


def test_a_device_that_comes_back_is_measured_anew():
    pace = Pace()
    _run(pace, 20, 0.1)
    assert pace.expected_s("a", "shard") == 0.1
    pace.forget("a")
    assert pace.expected_s("a", "shard") == 0.0
    assert _run(pace, 30, 0.3, 100) is None
