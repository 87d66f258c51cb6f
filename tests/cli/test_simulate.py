"""downset simulate as a user meets it: queues, disturbances, plans made again, amounts out of range."""

import json
import math
from pathlib import Path

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

from downset.distributed.simulator import Disturbance, simulate
from downset.errors import DownsetError, UsageError
from downset.formats.plan_json import read_plan
from downset.formats.reading import load
from downset.pipelines.check import verify_pipeline
from tests.cluster_toml import cluster_toml
from tests.command import output_of
from tests.models import branchy_model

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "simulate.json").read_text())
CLUSTER = cluster_toml({"a": 1e9, "b": 2e9, "c": 2e9}, rate_mbps=5000)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan of several devices in the file plan.json of a folder to work in."""
    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    (tmp_path / "home.toml").write_text(CLUSTER)
    output_of("split", "net.onnx", "--cluster", "home.toml", "--method", "pico", "-q", "-o", "plan.json")
    found = read_plan("plan.json")
    assert len(found.stages) > 1
    return found


def other_model(path):
    """One convolution, which no plan of the other network is of."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 3, 3], [0.1] * 108)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 8, 8]), ("y", [1, 4, 6, 6]))
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="only", kernel_shape=[3, 3])
    onnx.save(helper.make_model(helper.make_graph([node], "other", values[:1], values[1:], [weights])), path)


def found_by(*arguments):
    found = json.loads(output_of("simulate", "plan.json", "--frames", 200, "--json", *arguments))
    jsonschema.validate(found, SCHEMA)
    return found


def seconds(value):
    return f"{value * 1e3:.9f}ms"


def test_a_saturated_run_and_one_below_its_rate(plan):
    found = found_by()
    assert found["period_s"] == found["sustained_period_s"] == pytest.approx(plan.period_s, rel=0.01)
    assert found["arrival_s"] == pytest.approx(plan.period_s / 0.95, rel=0.01)
    assert found["queue"]["grows"] is False
    assert sum(found["sending"].values()) > 0
    assert sum(found["receiving"].values()) > 0
    said = output_of("simulate", "plan.json", "--frames", 200)
    assert "0.95 of the rate that is sustained" in said
    assert "sending" in said


def test_frames_that_come_too_fast_are_said_to_queue(plan):
    found = found_by("--arrival", seconds(plan.period_s / 2))
    assert found["queue"]["grows"] is True
    assert 80 <= found["queue"]["last"] <= found["queue"]["most"] <= 101
    assert "queues grow" in output_of("simulate", "plan.json", "--arrival", seconds(plan.period_s / 2))
    assert "queues grow" not in output_of("simulate", "plan.json", "--arrival", seconds(plan.period_s * 2))


def test_what_is_left_is_planned_anew(plan):
    dead = plan.cluster.devices[plan.stages[1].leader].name
    said = found_by("--fail", f"{dead}@{seconds(50 * plan.period_s)}", "--replan", "net.onnx", "-o", "anew.json")
    assert 40 <= said["completed"] <= 52
    anew = read_plan("anew.json")
    verify_pipeline(load("net.onnx"), anew)
    assert {device.name for device in anew.cluster.devices} == {"a", "b", "c"} - {dead}
    assert anew.evidence.method == "pico"
    assert set(said["replan"]["utilisation"]) == {"a", "b", "c"} - {dead}
    assert said["replan"]["completed"] == 200
    assert said["replan"]["period_s"] == pytest.approx(anew.period_s, rel=0.01)
    assert said["replan"]["analytic_period_s"] == anew.period_s
    step = "Plan without the dead devices"
    assert not any(one["text"].startswith(step) for one in said["next_steps"])
    assert step in output_of("simulate", "plan.json", "--fail", f"{dead}@0s")
    text = output_of("simulate", "plan.json", "--fail", f"{dead}@0s", "--replan", "net.onnx")
    assert "none of 1000 frames" in text
    assert "planned again by pico without the dead devices:" in text and step not in text


def test_what_cannot_be_planned_anew_is_one_line(plan, tmp_path):
    other_model(tmp_path / "other.onnx")
    output_of("split", "net.onnx", "--cluster", "home.toml", "--source", "b", "-q", "-o", "from_b.json")
    all_dead = [part for name in "abc" for part in ("--fail", f"{name}@1s")]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments, status, says in (
        (("plan.json", "--replan", "net.onnx"), 2, "--fail"),
        (("plan.json", "--fail", "b@1s", "-o", "anew.json"), 2, "--replan"),
        (("plan.json", "--fail", "b@1s", "--replan", "no.onnx"), 5, "no.onnx"),
        (("plan.json", "--fail", "b@1s", "--replan", "other.onnx"), 2, "not a plan of other.onnx"),
        (("plan.json", *all_dead, "--replan", "net.onnx"), 2, "no device is left"),
        (("from_b.json", "--fail", "b@1s", "--replan", "net.onnx"), 2, "is the plan's source"),
        (("plan.json", "--fail", "b@1s", "--replan", "net.onnx", "-o", "net.onnx"), 2, "being read"),
        (("plan.json", "--fail", "b@1s", "--replan", "net.onnx", "-o", "plan.json"), 2, "being read"),
    ):
        with pytest.raises(DownsetError, match=says) as caught:
            output_of("simulate", *arguments)
        assert caught.value.exit_code == status, arguments
        assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("option", [("--fail", "{}@0s"), ("--fail", "{}@0"), ("--slow", "{}@0ms*2")])
def test_devices_may_fail_from_the_beginning(plan, option):
    worker = plan.cluster.devices[plan.stages[0].leader].name
    found = found_by(option[0], option[1].format(worker))
    if option[0] == "--fail":
        assert found["completed"] == 0
    else:
        assert found["period_s"] > plan.period_s * 1.05


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--fail", "b@-1s"), "--fail 'b@-1s': '-1s' is not a time"),
        (("--fail", "b@soon"), "--fail 'b@soon': 'soon' is not a time"),
        (("--slow", "b@soon*2"), "--slow 'b@soon.2': 'soon' is not a time"),
        (("--slow", "z@1s*2"), "--slow .*no device is called 'z'"),
        (("--jitter", "nan"), "jitter must be from 0 to 100; given nan"),
    ],
)
def test_what_a_run_cannot_meet_is_named_with_its_option(plan, option, says):
    with pytest.raises(UsageError, match=says):
        found_by(*option)


def test_amounts_beyond_what_is_simulated_are_refused_and_helped_with(plan, run):
    shown = run("simulate", "--help")[1]
    for option, value, largest in (("--frames", 100_000_000_000, "100000"), ("--jitter", 1e300, "100")):
        status, _, err = run("simulate", "plan.json", option, value)
        assert status == 2
        assert option in err
        assert f"<={largest}" in err
        assert f"<={largest}" in shown.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"frames": math.nan}, "frames must be at least 1; given nan"),
        ({"frames": 0}, "frames must be at least 1; given 0"),
        ({"jitter": -0.1}, r"jitter must be from 0 to 100; given -0\.1"),
        ({"arrival_s": math.nan}, "arrival_s must be above 0 s; given nan"),
        ({"disturbances": [Disturbance(0, math.nan)]}, "a disturbance of device 0 at nan s"),
        ({"disturbances": [Disturbance(0, 1.0, math.nan)]}, "by nan"),
    ],
)
def test_python_callers_are_told_the_same(plan, options, says):
    with pytest.raises(UsageError, match=says):
        simulate(plan, **options)


def test_simulating_tells_how_far_it_is(plan):
    told = []
    simulate(plan, frames=7, progress=lambda done, of: told.append((done, of)))
    assert told == [(done, 14) for done in range(1, 15)]
