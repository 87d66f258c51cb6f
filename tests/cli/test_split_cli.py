"""downset split and downset simulate as a user meets them."""

import json
import re
from pathlib import Path

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

from downset.clusters.toml_file import load_cluster
from downset.errors import DownsetError
from downset.formats.plan_json import read_plan
from downset.formats.reading import load
from downset.joint.check import verify
from downset.pipelines.plan import plan_pipeline
from tests.cluster_toml import cluster_toml
from tests.command import output_of as run
from zoo import ZOO

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
POWER = {"power_busy_w": 5, "power_idle_w": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("split") / "net.onnx"
    onnx.save(ZOO["squeezenet1_0"](image=96), path)
    return path


def cluster_file(folder, *, kind="links", memory="2GB", **changed):
    path = folder / "home.toml"
    fast, slow = {"mac_per_s": 2e9, "memory": memory, **POWER}, {"mac_per_s": 1e9, **POWER}
    text = cluster_toml({"fast": fast, "slow": slow}, kind=kind)
    for old, new in changed.items():
        text = text.replace(f"{old} = ", f"{new} = ")
    path.write_text(text)
    return path


def test_split_then_simulate(model, tmp_path):
    home = cluster_file(tmp_path)
    result = json.loads(
        run("split", model, "--cluster", home, "--json", "--compare", "-q", "-o", tmp_path / "plan.json")
    )
    jsonschema.validate(result, json.loads((SCHEMAS / "split.json").read_text()))
    assert result["bound_period_s"] <= result["load_bound_s"] <= result["period_s"] == result["compare"]["exact"]
    assert [device["device"] for device in result["devices"]] == ["fast", "slow"]
    assert max(sum(device[f"{does}_s"] for does in ("compute", "send", "receive")) for device in result["devices"]) == (
        pytest.approx(result["load_bound_s"])
    )
    assert min(period for period in result["compare"].values()) == result["period_s"]
    assert sum(len(stage["ops"]) for stage in result["stages"]) == len(onnx.load(model).graph.node)
    text = run("split", model, "--cluster", home, "--comm", "paper", "-o", tmp_path / "plan.json")
    assert "by the paper's equations" in text
    assert "of a period" in text
    result = json.loads((tmp_path / "plan.json").read_text())
    simulated = json.loads(run("simulate", tmp_path / "plan.json", "--frames", 60, "--json"))
    jsonschema.validate(simulated, json.loads((SCHEMAS / "simulate.json").read_text()))
    assert simulated["period_s"] == pytest.approx(result["period_s"], rel=0.01)
    assert simulated["energy_j"] > 0
    killed = json.loads(run("simulate", tmp_path / "plan.json", "--frames", 60, "--json", "--fail", "slow@1s"))
    assert killed["completed"] < 60
    assert killed["stalled_at_s"] >= 1
    slowed = json.loads(run("simulate", tmp_path / "plan.json", "--frames", 60, "--json", "--slow", "fast@0.001s*4"))
    assert slowed["period_s"] > 2 * simulated["period_s"]
    told = run("simulate", tmp_path / "plan.json", "--frames", 60, "--fail", "slow@1s")
    assert "stalled" in told and "(downset simulate --replan MODEL)" in told


def test_latency_and_communication_are_options(model, tmp_path):
    home = cluster_file(tmp_path)
    free = json.loads(run("split", model, "--cluster", home, "--json", "-q"))
    paper = json.loads(run("split", model, "--cluster", home, "--json", "-q", "--comm", "paper"))
    assert paper["period_s"] <= free["period_s"]
    for options, says, code in (
        (("--max-latency", "1ms"), r"all devices together compute .*; the least found is [\d.]+", 3),
        (("--max-latency", "60ms"), r"was found; the least found is [\d.]+", 6),
        (("--max-latency", "1ms", "--comm", "paper"), r"the least found is [\d.]+", 3),
    ):
        with pytest.raises(DownsetError, match=says) as error:
            run("split", model, "--cluster", home, *options)
        assert error.value.exit_code == code


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        ({"mac_per_s": "speed"}, 5, "line 6"),
        ({"rate_mbps": "rate"}, 5, "rate"),
        ({"memory": "ram"}, 5, "line 7"),
    ],
)
def test_cluster_mistakes_name_the_line(model, tmp_path, changed, status, says):
    with pytest.raises(DownsetError, match=says) as error:
        run("split", model, "--cluster", cluster_file(tmp_path, **changed))
    assert error.value.exit_code == status


def test_other_mistakes_are_one_line(model, tmp_path):
    home = cluster_file(tmp_path)
    plan = tmp_path / "plan.json"
    run("split", model, "--cluster", home, "-o", plan, "-q")
    for arguments, status, says in (
        (("split", model, "--cluster", "nowhere.toml"), 5, "pico_1mac"),
        (("split", model, "--cluster", home, "--method", "best"), 2, "exact"),
        (("split", tmp_path / "no.onnx", "--cluster", home), 5, "no.onnx"),
        (("simulate", tmp_path / "no.json"), 5, "no.json"),
        (("simulate", plan, "--fail", "slow"), 2, "DEVICE@10s"),
        (("simulate", plan, "--fail", "third@1s"), 2, "third"),
        (("split", model, "--cluster", cluster_file(tmp_path / ".." / tmp_path.name, memory="1KB")), 0, ""),
    ):
        if status == 0:
            run(*arguments, "-q")  # one device is too small for anything: the other takes all
            continue
        with pytest.raises(DownsetError, match=says) as error:
            run(*arguments)
        assert error.value.exit_code == status


def save(path, nodes, inputs, outputs, initializers=()):
    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(nodes, "g", [value(*i) for i in inputs], [value(*o) for o in outputs], list(initializers))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_networks_without_rows_or_with_few_or_unknown_operators_stay_whole(tmp_path):
    home = cluster_file(tmp_path)
    weights = helper.make_tensor("w", TensorProto.FLOAT, [8, 8], [0.5] * 64)
    dense = save(
        tmp_path / "dense.onnx",
        [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Gemm", ["h", "w"], ["y"])],
        [("x", [1, 8])],
        [("y", [1, 8])],
        [weights],
    )
    result = json.loads(run("split", dense, "--cluster", home, "--json", "-q"))
    assert "no rows" in result["note"]
    assert all(len(block["rows"]) == 1 for stage in result["stages"] for block in stage["blocks"])
    kernel = helper.make_tensor("k", TensorProto.FLOAT, [8, 8, 3, 3], [0.1] * 576)
    odd = save(
        tmp_path / "odd.onnx",
        [
            helper.make_node("Conv", ["x", "k"], ["h"], pads=[1, 1, 1, 1]),
            helper.make_node("CumSum", ["h", "axis"], ["m"]),
            helper.make_node("Conv", ["m", "k"], ["y"], pads=[1, 1, 1, 1]),
        ],
        [("x", [1, 8, 16, 16])],
        [("y", [1, 8, 16, 16])],
        [kernel, helper.make_tensor("axis", TensorProto.INT64, [], [2])],
    )
    result = json.loads(run("split", odd, "--cluster", home, "--json", "-q"))
    assert "CumSum" in result["note"]
    few = save(
        tmp_path / "few.onnx",
        [helper.make_node("Conv", ["x", "k"], ["y"], pads=[1, 1, 1, 1])],
        [("x", [1, 8, 1, 16])],
        [("y", [1, 8, 1, 16])],
        [kernel],
    )
    result = json.loads(run("split", few, "--cluster", home, "--json", "-q"))
    assert [len(block["rows"]) for stage in result["stages"] for block in stage["blocks"]] == [1]


@pytest.mark.parametrize(("name", "comm"), [("squeezenet1_0", "resources"), ("inception_v3", "paper")])
def test_exported_shards_make_the_whole_models_outputs(name, comm, tmp_path):
    """Relayed tensors, blocks, uneven strips: run in their order, stitched, compared with the model itself."""
    import numpy as np
    import onnxruntime

    path = tmp_path / "net.onnx"
    onnx.save(ZOO[name](image=139 if name == "inception_v3" else 96), path)
    run("split", path, "--cluster", "pico_1mac", "--comm", comm, "--export", tmp_path / "shards", "-q")
    listed = json.loads((tmp_path / "shards" / "shards.json").read_text())
    whole = onnxruntime.InferenceSession(path)
    given = whole.get_inputs()[0]
    values = {given.name: np.random.default_rng(0).standard_normal(given.shape, dtype=np.float32)}
    parts = {}
    shards = listed["shards"] if isinstance(listed, dict) else listed
    assert len({shard["device"] for shard in shards}) > 1
    for shard in shards:
        for tensor in shard["inputs"]:
            if tensor not in values:
                values[tensor] = np.concatenate([part for _, part in sorted(parts[tensor], key=lambda p: p[0])], axis=2)
        session = onnxruntime.InferenceSession(tmp_path / "shards" / shard["file"])
        feed = {
            name: values[name][:, :, rows[0] : rows[1]] if values[name].ndim == 4 else values[name]
            for name, rows in shard["inputs"].items()
        }
        names = list(shard["outputs"])
        for tensor, made in zip(names, session.run(names, feed), strict=True):
            if made.ndim == 4:
                parts.setdefault(tensor, []).append((shard["outputs"][tensor][0], made))
            else:
                values[tensor] = made
    result = whole.get_outputs()[0].name
    if result not in values:
        values[result] = np.concatenate([part for _, part in sorted(parts[result], key=lambda p: p[0])], axis=2)
    np.testing.assert_allclose(
        values[result], whole.run([result], {given.name: values[given.name]})[0], rtol=1e-4, atol=1e-5
    )


def test_the_latency_that_would_do_does(model, tmp_path):
    home = cluster_file(tmp_path)
    with pytest.raises(DownsetError) as caught:
        run("split", model, "--cluster", home, "--max-latency", "1ms", "-q")
    least = float(str(caught.value).split("the least found is ")[1].split()[0])
    enough = json.loads(
        run("split", model, "--cluster", home, "--max-latency", f"{least * 1.001:.9f}s", "--json", "-q")
    )
    assert enough["latency_s"] <= least * 1.001
    for method in ("pico", "coedge", "layerwise"):
        plan = json.loads(run("split", model, "--cluster", home, "--method", method, "--json", "-q"))
        assert plan["latency_s"] >= least * (1 - 1e-6)


def test_what_the_runtime_of_a_device_takes_is_named(model, tmp_path):
    """Not the weights: the runtime has more than all of the memory."""
    path = tmp_path / "home.toml"
    path.write_text(cluster_toml({"pi": {"mac_per_s": 1e9, "memory": "512MB", "runtime_memory": "1GB"}}))
    with pytest.raises(DownsetError) as error:
        plan_pipeline(load(model), load_cluster(path))
    err = str(error.value)
    assert error.value.exit_code == 3 and "the runtime of pi takes 1,073,741,824 bytes (runtime_memory)" in err
    assert "all of its memory of 536,870,912" in err and "bytes of weights, more than" not in err
    floor = re.search(r"holds ([\d,]+) bytes of weights or more, in addition to its runtime's 1,073,741,824", err)
    assert int(floor[1].replace(",", "")) < 1 << 23


def test_a_network_without_arithmetic_is_compared(tmp_path):
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "relu", [given], [made])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "r.onnx")
    arguments = ("split", tmp_path / "r.onnx", "--cluster", cluster_file(tmp_path), "--compare", "-q")
    assert "a frame every 0 s" in run(*arguments, "--comm", "paper")
    assert "a frame every 0.032 µs" in run(*arguments)  # 32 bytes read, 32 written, each in the time of a MAC


def test_the_simulated_period_is_the_analytic_one_on_a_shared_network(model, tmp_path):
    home = cluster_file(tmp_path, kind="shared")
    run("split", model, "--cluster", home, "--comm", "paper", "-o", tmp_path / "plan.json", "-q")
    found = json.loads(run("simulate", tmp_path / "plan.json", "--frames", 100, "--json"))
    assert found["period_s"] == pytest.approx(found["analytic_period_s"], rel=0.01)
    assert "few frames" in run("simulate", tmp_path / "plan.json", "--frames", 5)


def test_a_tampered_pipeline_is_refused(model, tmp_path):
    run("split", model, "--cluster", cluster_file(tmp_path), "-o", tmp_path / "plan.json", "-q")
    whole = json.loads((tmp_path / "plan.json").read_text())
    for change in ({"period_s": 1e-12}, {"stages": [{**whole["stages"][0], "leader": 7}, *whole["stages"][1:]]}):
        (tmp_path / "broken.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(DownsetError, match=r"broken\.json"):
            run("simulate", tmp_path / "broken.json")


def test_source_sink_and_window_are_options(model, tmp_path):
    home = cluster_file(tmp_path)
    arguments = ("split", model, "--cluster", home, "--method", "layerwise", "--json", "-q")
    free = json.loads(run(*arguments))
    held = json.loads(run(*arguments, "--window", 1))
    assert held["window"] == 1
    with pytest.raises(DownsetError, match="at least 1"):
        plan_pipeline(load(model), load_cluster(home), window=0)
    assert held["period_s"] >= free["period_s"]
    ends = json.loads(run(*arguments, "--source", "slow", "--sink", "slow", "-o", tmp_path / "plan.json"))
    assert (ends["source"], ends["sink"], free["source"]) == ("slow", "slow", "outside")
    sends = [{device["device"]: device["send_s"] for device in plan["devices"]} for plan in (free, ends)]
    assert sends[1]["slow"] - sends[0]["slow"] == pytest.approx(3 * 96 * 96 * 4 / 6.25e6)  # the frame
    with pytest.raises(DownsetError, match="fast, slow"):
        run(*arguments, "--source", "third")
    with pytest.raises(DownsetError, match="comm paper has no source"):
        run(*arguments, "--comm", "paper", "--sink", "slow")


def test_direct_hand_over_is_planned_printed_exported_and_simulated(model, tmp_path):
    home = tmp_path / "four.toml"
    home.write_text(cluster_toml({f"d{k}": (4 - k) * 1e9 for k in range(4)}, rate_mbps=1000))
    arguments = ("split", model, "--cluster", home, "--topology", "direct", "--work-limit", 100_000)
    out = run(*arguments, "-o", tmp_path / "plan.json", "--export", tmp_path / "shards")
    assert "rows are handed over directly; frames appear at d" in out
    assert "(* leads)" not in out
    whole = json.loads((tmp_path / "plan.json").read_text())
    assert (whole["topology"], {stage["leader"] for stage in whole["stages"]}) == ("direct", {-1})
    assert {block["rule"] for stage in whole["stages"] for block in stage["blocks"]} == {"direct"}
    assert (tmp_path / "shards" / "shards.json").exists()
    verify(load(model), read_plan(tmp_path / "plan.json"))
    led = plan_pipeline(load(model), load_cluster(home), method="layerwise", topology="direct")
    assert "only exact searches plans with direct hand-over" in led.note
    simulated = json.loads(run("simulate", tmp_path / "plan.json", "--frames", 300, "--json"))
    assert simulated["sustained_period_s"] == pytest.approx(whole["period_s"], rel=0.01)
    found = json.loads(run(*arguments, "--compare", "--json", "-q"))
    jsonschema.validate(found, json.loads((SCHEMAS / "split.json").read_text()))
    assert {stage["leader"] for stage in found["stages"]} == {None}
    assert all(found["period_s"] <= other for other in found["compare"].values() if other is not None)
    with pytest.raises(DownsetError, match="comm paper has no direct hand-over"):
        run(*arguments, "--comm", "paper")
