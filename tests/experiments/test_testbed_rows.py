"""The testbed's committed rows: complete, true to the simulator, and shown by `figures`."""

import pytest

from experiments.cluster import soak
from experiments.frame import run
from experiments.rows import load_rows
from experiments.testbed import drive, figures, replans
from experiments.testbed.driven import Work
from experiments.testbed.measured import NAME
from experiments.testbed.settings import CLUSTERS, EQUAL, METHODS, MODELS, RATE_MBPS, Setting, device_names

ROWS = load_rows(NAME)


def test_rows_say_what_they_were_measured_on():
    assert ROWS
    for row in ROWS:
        assert row["network"] in MODELS
        assert row["method"] in METHODS
        assert row["devices"] in EQUAL
        assert row["medium"] in ("links", "shared")
        assert row["machine"] and row["at"].startswith("20") and row["load"] > 0
        assert len(row["by_device"]) == row["devices"]
        assert row["frames"] >= 4


def test_the_simulator_keeps_what_the_plans_promise():
    """Both are analytic: a measured period may be off, and says so; these two may not."""
    for row in ROWS:
        assert row["simulated_s"] == pytest.approx(row["planned_s"], rel=0.01)
        assert row["bound_s"] <= row["planned_s"] * 1.001


def test_no_cell_carried_more_than_it_can():
    """A period by the clock against the bytes that the cell's own counters saw: 50 Mbit/s and no more."""
    seen = 0
    for row in ROWS:
        if row["medium"] == "shared" and row.get("cell_bytes") and row["measured_s"]:
            assert row["measured_s"] >= 0.98 * row["cell_bytes"] / (RATE_MBPS * 1e6 / 8), (
                row["network"],
                row["method"],
            )
            seen += 1
    assert seen > 2


def test_a_period_is_of_a_pipeline_that_is_full():
    """Six frames inside: what one server lets out, and what comes in one burst at the end."""
    steady = [40.0 + 2.0 * number for number in range(30)]
    assert (drive._period_s(steady, 6), drive._mean_s(steady, 6)) == (2.0, 2.0)
    drained = [100.0 + 9.0 * number for number in range(12)] + [200.0 + 0.1 * number for number in range(6)]
    assert drive._period_s(drained, 6) == 9.0
    assert drive._period_s(drained, 8) is None  # two results lie between the first window and the last
    assert drive._mean_s(drained[-6:], 6) is None


def test_no_frame_was_lost_when_devices_were():
    for row in load_rows(replans.EXPERIMENT.name):
        assert row["came"] == row["submitted"]
        assert row["in_order"]


def test_no_healthy_device_was_declared_dead_in_a_full_cell():
    (row,) = (row for row in load_rows(soak.EXPERIMENT.name) if "cell" in row["where"])
    assert row["seconds"] >= 600 and row["cell_mbps"] > 0.95 * 50
    assert row["lost_without_fault"] == [] and row["faults"] >= row["lost"] > 10
    assert row["driver_mb_end"] <= 1.1 * row["driver_mb_warm"]


def test_nothing_is_left_of_ten_minutes_on_loopback():
    (row,) = (row for row in load_rows(soak.EXPERIMENT.name) if row["where"] == "loopback")
    assert row["seconds"] >= 600 and row["faults"] >= row["lost"] > 10
    assert row["lost_without_fault"] == [] and row["processes_left"] == 0
    assert row["driver_mb_end"] <= 1.1 * row["driver_mb_warm"]


def test_figures_show_every_row(capsys):
    run(figures.EXPERIMENT, [])
    out = capsys.readouterr().out
    assert sum(out.count(f"\n| {name} |") for name in MODELS) >= 2 * len(ROWS)
    for row in ROWS:
        if row["measured_s"]:
            assert f"| {row['simulated_s']} | {row['measured_s']} |" in out


def test_settings_have_the_papers_ratios():
    """Eight devices of section 6.1: two each of 2.2, 1.5, 1.2 and 0.8 GHz."""
    setting = Setting(CLUSTERS[8], "shared")
    fast, slow = max(setting.cpu_shares), min(setting.cpu_shares)
    assert fast / slow == pytest.approx(2.2 / 0.8)
    assert sum(setting.cpu_shares) < 2
    assert len(set(device_names(CLUSTERS[8]))) == 8
    assert Work().driver.startswith("experiments.testbed.")
