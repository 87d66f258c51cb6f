"""downset simulate as a user meets it: queues, deaths, and plans made anew."""

import json
from pathlib import Path

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

from downset.errors import DownsetError
from downset.formats.plan_json import read_plan
from downset.formats.reading import load
from downset.pipelines.check import verify_pipeline
from tests.command import output_of
from tests.models import branchy_model

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "simulate.json").read_text())
CLUSTER = """[network]
kind = "links"
rate_mbps = 5000
[[device]]
name = "a"
mac_per_s = 1e9
[[device]]
name = "b"
mac_per_s = 2e9
[[device]]
name = "c"
mac_per_s = 2e9
"""


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
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in
              (("x", [1, 3, 8, 8]), ("y", [1, 4, 6, 6]))]  # fmt: skip
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
    assert "sending: " in said


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
    text = output_of("simulate", "plan.json", "--fail", f"{dead}@0s", "--replan", "net.onnx")
    assert "none of 1000 frames" in text
    assert "planned anew by pico without the dead devices:" in text


def test_what_cannot_be_planned_anew_is_one_line(plan, tmp_path):
    other_model(tmp_path / "other.onnx")
    output_of("split", "net.onnx", "--cluster", "home.toml", "--source", "b", "-q", "-o", "from_b.json")
    all_dead = [part for name in "abc" for part in ("--fail", f"{name}@1s")]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments, status, says in (
        (("plan.json", "--replan", "net.onnx"), 2, "--fail"),
        (("plan.json", "--fail", "b@1s", "-o", "anew.json"), 2, "--replan"),
        (("plan.json", "--fail", "b@1s", "--replan", "no.onnx"), 5, "no.onnx"),
        (("plan.json", "--fail", "b@1s", "--replan", "other.onnx"), 2, "no plan of other.onnx"),
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
