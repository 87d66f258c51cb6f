"""What `downset split` says: methods that stopped at their limit, plans of before, memory that is enough."""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.clusters.model import Cluster, Device, Network
from downset.clusters.toml_file import load_cluster
from downset.errors import DownsetError, InfeasibleError, LimitReached
from downset.formats.reading import load
from downset.graph.cost import op_macs
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.replan import plan_alone
from downset.reports.pipeline_documents import split_document
from downset.results.plans import Evidence
from tests.cluster_toml import cluster_toml
from tests.command import output_of as run

PROVEN = Evidence("exact", 1.0, 1.0, True)

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Seven convolutions, the last ones with more weights than activations."""
    weights, nodes, before = [], [], 3
    for layer, channels in enumerate((8, 8, 16, 16, 32, 64, 64)):
        kernel = np.full((channels, before, 3, 3), 0.1, np.float32)
        weights.append(onnx.numpy_helper.from_array(kernel, f"w{layer}"))
        stride = 2 if layer in (2, 4) else 1
        nodes.append(
            helper.make_node(
                "Conv",
                [f"t{layer}", f"w{layer}"],
                [f"t{layer + 1}"],
                pads=[1] * 4,
                strides=[stride] * 2,
                name=f"c{layer}",
            )
        )
        before = channels
    given = helper.make_tensor_value_info("t0", TensorProto.FLOAT, [1, 3, 32, 32])
    made = helper.make_tensor_value_info("t7", TensorProto.FLOAT, [1, 64, 8, 8])
    path = tmp_path_factory.mktemp("small") / "net.onnx"
    graph = helper.make_graph(nodes, "small", [given], [made], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_methods_that_stop_at_their_limit_are_marked(small):
    """Eight devices are far too many for trying everything."""
    arguments = (
        "split",
        small,
        "--cluster",
        "pico_1mac_cell",
        "--compare",
        "--time-limit",
        "1h",
        "--work-limit",
        "3000",
        "-q",
    )
    found = json.loads(run(*arguments, "--method", "pico", "--json"))
    jsonschema.validate(found, json.loads((SCHEMAS / "split.json").read_text()))
    assert "exhaustive" in found["compare_stopped"]
    assert not {"single", "blocks", "layerwise", "pico"} & set(found["compare_stopped"])
    assert found["compare"]["exhaustive"] > 0
    assert not found["stopped"]
    text = run(*arguments, "--method", "pico")
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "stopped at its limit" in lines["exhaustive"]
    assert "stopped" not in lines["single"]
    alone = json.loads(
        run("split", small, "--cluster", "pico_1mac", "--method", "exhaustive", "--time-limit", "0.2s", "--json", "-q")
    )
    assert alone["stopped"]
    assert "stopped at the limit of 0.2 s" in alone["note"]


def test_a_plan_of_before_is_refused_in_one_line(small, tmp_path):
    plan = tmp_path / "plan.json"
    run("split", small, "--cluster", "pico_1mac", "--method", "single", "-o", plan, "-q")
    whole = json.loads(plan.read_text())
    assert whole["schema"] == 3
    del whole["tasks"]
    for older in (1, 2):
        whole["schema"] = older
        plan.write_text(json.dumps(whole))
        with pytest.raises(DownsetError, match=rf"schema {older}.*reads 3; make the plan again") as caught:
            run("simulate", plan)
        assert "\n" not in str(caught.value)
        assert str(plan) in str(caught.value)


def cluster_with(folder, memories):
    devices = {f"d{n}": {"mac_per_s": (n + 1) * 1e9, "memory": nbytes} for n, nbytes in enumerate(memories)}
    (folder / "home.toml").write_text(cluster_toml(devices))
    return folder / "home.toml"


def numbers(text):
    said = re.search(
        r"; ([\d,]+) bytes on each of \d+ devices are enough, or ([\d,]+) on one .* holds ([\d,]+) bytes of", text
    )
    return [int(number.replace(",", "")) for number in said.groups()]


def test_the_memory_that_would_do_does(small, tmp_path):
    with pytest.raises(DownsetError, match="are enough") as caught:
        run("split", small, "--cluster", cluster_with(tmp_path, [1000] * 3))
    assert caught.value.exit_code == 3
    enough, alone, floor = numbers(str(caught.value))
    assert floor <= enough < alone
    for memories in ([enough] * 3, [1000, 1000, alone]):
        plan = json.loads(run("split", small, "--cluster", cluster_with(tmp_path, memories), "--json", "-q"))
        held = {device["device"]: device["memory_bytes"] or 0 for device in plan["devices"]}
        assert all(nbytes <= memories[int(device[1:])] for device, nbytes in held.items())
    with pytest.raises(DownsetError, match="are enough"):
        run("split", small, "--cluster", cluster_with(tmp_path, [floor - 1] * 3))


def test_a_plan_that_fits_but_takes_too_long(small, tmp_path):
    with pytest.raises(DownsetError, match="are enough") as caught:
        run("split", small, "--cluster", cluster_with(tmp_path, [1000] * 3))
    enough = numbers(str(caught.value))[0]
    home = cluster_with(tmp_path, [enough] * 3)
    lean = json.loads(run("split", small, "--cluster", home, "--json", "-q"))["latency_s"]
    roomy = cluster_with(tmp_path, [None] * 3)
    with pytest.raises(DownsetError) as caught:
        run("split", small, "--cluster", roomy, "--max-latency", "1ms")
    least = float(str(caught.value).split("the least found is ")[1].split()[0])
    assert least < lean
    home = cluster_with(tmp_path, [enough] * 3)
    with pytest.raises(DownsetError, match=r"fits the devices' memory within .* has a latency of"):
        run("split", small, "--cluster", home, "--max-latency", f"{least * 1.0001:.9f}s")
    with pytest.raises(DownsetError, match=f"the least found is {least:.6g}"):
        run("split", small, "--cluster", home, "--max-latency", f"{least * 0.9:.9f}s")


def test_a_pipeline_that_completes_nothing_has_no_period(small, tmp_path):
    plan = tmp_path / "plan.json"
    home = cluster_with(tmp_path, [None] * 2)
    home.write_text(home.read_text().replace('"d1"', '"[red]d1"'))
    assert "[red]d1*: 0-8" in run("split", small, "--cluster", home, "--method", "single", "-o", plan, "-q")
    arguments = ("simulate", plan, "--fail", "[red]d1@0.000001s", "--frames", 5)
    found = json.loads(run(*arguments, "--json"))
    jsonschema.validate(found, json.loads((SCHEMAS / "simulate.json").read_text()))
    assert found["completed"] == 0
    assert found["period_s"] is found["latency_s"]["p50"] is None
    assert "none of 5 frames" in run(*arguments)
    with pytest.raises(DownsetError, match="must be above 0"):
        run("simulate", plan, "--slow", "[red]d1@1s*0")


def test_no_method_fits_the_memory_better_than_exact(small):
    """Under memory limits, too: whatever another method's plan that fits takes, exact's takes no more."""
    network, refused, compared = load(small), 0, 0
    for seed in range(7):
        random = Random(seed)
        devices = tuple(
            Device(f"d{k}", random.choice([3e8, 1e9, 2e9]), memory_bytes=random.choice([100_000, 300_000, 900_000]))
            for k in range(3)
        )
        shape = random.choice([Network("links", 2e7), Network("shared", 2e7, overlap=True)])
        cluster, comm = Cluster(devices, shape), random.choice(["paper", "resources"])
        periods = {}
        for method in ("exact", "single", "layerwise", "optimal_fused", "pico", "coedge", "early_fused"):
            try:
                periods[method] = plan_pipeline(network, cluster, comm=comm, method=method).period_s
            except (InfeasibleError, LimitReached):
                refused += 1
        assert min(periods.values(), default=0.0) == pytest.approx(periods.get("exact", 0.0), rel=1e-9), seed
        compared += len(periods) > 1
    assert refused > 5
    assert compared > 2


@pytest.mark.parametrize(
    ("rate", "first"),
    [
        (0.001, "one device computes everything"),
        (1e4, "2.00x the frames of one device, with 2 devices; a frame every "),
    ],
)
def test_what_is_gained_over_one_device_is_told_first(small, tmp_path, rate, first):
    (tmp_path / "home.toml").write_text(cluster_toml({"a": 1e8, "b": 1e8}, rate_mbps=rate))
    arguments = ("split", small, "--cluster", tmp_path / "home.toml", "--time-limit", "2s", "-q")
    assert run(*arguments).startswith(first)


def test_the_period_of_one_device_and_idle_devices_are_told(small, tmp_path):
    """Two devices that are alike, and one that is too slow for any rows: by hand, who works and what is gained."""
    (tmp_path / "home.toml").write_text(cluster_toml({"a": 1e8, "b": 1e8, "c": 1e3}, rate_mbps=1e4))
    arguments = ("split", small, "--cluster", tmp_path / "home.toml", "--time-limit", "2s")
    found = json.loads(run(*arguments, "--json"))
    macs = sum(op_macs(load(small), op) for op in load(small).ops)
    assert found["one_device_period_s"] == pytest.approx(macs / 1e8, rel=0.05) and found["idle_devices"] == ["c"]
    gain = found["one_device_period_s"] / found["period_s"]
    shown = run(*arguments, "-q")
    assert shown.startswith(f"{gain:.2f}x the frames of one device, with 2 of 3 devices; ")
    assert "1 device idle: c; no " in shown
    alone = json.loads(run(*arguments, "--json", "--method", "single"))
    assert alone["period_s"] == alone["one_device_period_s"] and alone["idle_devices"] == ["b", "c"]


def test_only_a_gain_is_good(small, tmp_path):
    for rate, state in ((1e4, "good"), (0.001, "plain")):
        (tmp_path / "home.toml").write_text(cluster_toml({"a": 1e8, "b": 1e8}, rate_mbps=rate))
        network, cluster = load(small), load_cluster(tmp_path / "home.toml")
        plan = replace(plan_pipeline(network, cluster), evidence=PROVEN)
        assert split_document(plan, alone=plan_alone(network, cluster)).verdict.state == state


@pytest.mark.parametrize("method", ["pico", "single"])
def test_the_table_of_stages_says_what_its_ranges_and_its_star_are(small, method):
    out = " ".join(run("split", small, "--cluster", "pico_1mac", "--method", method, "-q").split())
    assert "a line is a block of operators; 0-16: rows 0 to 15 of its result" in out
    assert ("*: gives the others their rows and gathers theirs" in out) == ("(* leads)" in out)
