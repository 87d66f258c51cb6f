"""`downset stage`, `run` and `profiles` as a user meets them."""

import json

import jsonschema
import numpy as np
import pytest
import torch

from downset.errors import InvalidPlan
from downset.export.plan_json import decode_plan
from downset.load import load
from downset.run.device import open_device
from downset.staged import check_plan, prepare
from tests.integration.test_cli import SCHEMAS, downset, fails
from tests.networks import branchy, random_network


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """A model, a plan for it, and the cache that its making filled."""
    folder = tmp_path_factory.mktemp("staged")
    model = branchy(folder / "m.onnx")
    env = {"DOWNSET_CACHE": str(folder / "cache")}
    options = ("--threads", "2", "--budget-timings", "20", "--runs", "15")
    done = downset("stage", model, *options, "-o", folder / "plan.json", "--json", env=env)
    assert done.returncode == 0, done.stderr
    return model, folder / "plan.json", env, json.loads(done.stdout)


def test_stage_prints_its_schema_and_keeps_its_timings(staged):
    model, plan, env, printed = staged
    jsonschema.validate(printed, json.loads((SCHEMAS / "stage.json").read_text()))
    assert json.loads(plan.read_text())["kind"] == "stages"
    assert printed["timings_used"] > 0
    listed = json.loads(downset("profiles", "list", "--json", env=env).stdout)
    assert sum(row["timings"] for row in listed["profiles"]) == printed["timings_used"]
    options = ("--threads", "2", "--budget-timings", "20", "--runs", "15", "--json")
    again = json.loads(downset("stage", model, *options, env=env).stdout)
    assert again["timings_used"] <= 20  # units are not timed again, whatever else is looked at
    listed = json.loads(downset("profiles", "list", "--json", env=env).stdout)
    assert sum(row["timings"] for row in listed["profiles"]) == printed["timings_used"] + again["timings_used"]


def test_stage_prints_a_table(staged):
    model, _, env, printed = staged
    done = downset("stage", model, "--threads", "2", "--budget-timings", "1", "--runs", "15", env=env)
    for word in ("sequential", "p50", "speed-up", "chosen:", "bound:"):
        assert word in done.stdout
    assert printed["chosen"] in [candidate["name"] for candidate in printed["candidates"]]


def test_run_by_the_plan_and_check(staged, tmp_path):
    model, plan, *_ = staged
    value = np.random.default_rng(0).standard_normal((1, 6, 9, 9), dtype=np.float32)
    np.save(tmp_path / "x.npy", value)
    done = downset(
        "run", model, "--plan", plan, "--input", tmp_path / "x.npy", "--check", "--json", "--runs", "2",
        "--output", tmp_path / "y.npz",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, json.loads((SCHEMAS / "run.json").read_text()))
    assert printed["max_relative_error"] < 1e-4
    (name,) = np.load(tmp_path / "y.npz").files
    assert np.load(tmp_path / "y.npz")[name].shape == (1, 10, 1, 1)


def test_a_batch_of_its_own(staged, tmp_path):
    model, _, env, _ = staged
    options = ("--threads", "2", "--budget-timings", "5", "--runs", "15")
    done = downset("stage", model, "--batch", "3", *options, "-o", tmp_path / "p3.json", env=env)
    assert done.returncode == 0, done.stderr
    assert downset("run", model, "--plan", tmp_path / "p3.json", "--check").returncode == 0


def test_mistakes_are_one_line(staged, tmp_path):
    model, plan, *_ = staged
    other = random_network(tmp_path / "other.onnx", seed=1)
    fails(4, "run", other, "--plan", plan, says="model")
    fails(5, "run", model, "--plan", tmp_path / "none.json", says="none.json")
    (tmp_path / "order.json").write_text('{"kind": "order", "schema": 1, "steps": [], "memory": "live"}')
    fails(5, "run", model, "--plan", tmp_path / "order.json")
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY nonsense")
    fails(5, "run", model, "--plan", plan, "--input", tmp_path / "bad.npy", says="bad.npy")
    np.save(tmp_path / "wrong.npy", np.zeros((2, 2)))
    fails(2, "run", model, "--plan", plan, "--input", tmp_path / "wrong.npy", says="[1, 6, 9, 9]")
    fails(2, "stage", model, "--max-ops", "0", says="max_ops")
    fails(2, "stage", model, "--batch", "0", says="batch")
    fails(2, "stage", model, "--runs", "14", says="--runs")
    fails(5, "stage", tmp_path / "none.onnx", says="none.onnx")
    # What is wrong with the output is said before anything is loaded, let alone measured.
    fails(2, "stage", tmp_path / "none.onnx", "-o", tmp_path / "no" / "p.json", says="output directory")
    fails(2, "stage", model, "-o", model, says="being read")
    fails(2, "run", tmp_path / "none.onnx", "--plan", plan, "--output", tmp_path / "no" / "o.npz", says="directory")
    if not torch.cuda.is_available():
        fails(5, "stage", model, "--device", "cuda", says="no CUDA device")
    assert not list(tmp_path.glob("*.part"))


def test_a_tampered_plan_is_refused(staged, tmp_path):
    model, plan, *_ = staged
    whole = json.loads(plan.read_text())
    cases = {
        "a unit runs twice": lambda p: p["stages"].append(p["stages"][-1]),
        "a stage is missing": lambda p: p["stages"].pop(),
        "backwards": lambda p: p["stages"].reverse(),
        "an operator in two units": lambda p: p["units"][0].append(p["units"][1][0]),
        "no operator": lambda p: p["units"].append([999]),
        "an empty group": lambda p: p["stages"][0]["groups"].append([]),
        "operators backwards": lambda p: next(unit for unit in p["units"] if len(unit) > 1).reverse(),
        "merged what cannot be": lambda p: p["stages"].__setitem__(0, {**p["stages"][0], "merged": True}),
        "another variant": lambda p: p.update(variant="sideways"),
        "no threads": lambda p: p.update(threads=0),
    }
    graph = prepare(load(model))
    device = open_device("cpu", threads=2)
    check_plan(graph, decode_plan(plan.read_bytes()), device)
    for name, break_it in cases.items():
        broken = json.loads(json.dumps(whole))
        break_it(broken)
        with pytest.raises(InvalidPlan):
            check_plan(graph, decode_plan(json.dumps(broken).encode()), device)
            pytest.fail(name)
    broken = {**whole, "stages": whole["stages"][:-1]}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    fails(4, "run", model, "--plan", tmp_path / "broken.json", says="in no stage")


def test_what_may_differ_from_onnx_runtime(monkeypatch):
    from downset.run.agreement import allowed_difference

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert [allowed_difference("cpu", "float32"), allowed_difference("cuda", "float32")] == [1e-3, 2e-2]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert [allowed_difference("cuda", "float32"), allowed_difference("cuda", "float16")] == [1e-3, 5e-2]


def test_a_damaged_cache_is_moved_aside(staged, tmp_path):
    model, *_ = staged
    (tmp_path / "profiles.sqlite").write_bytes(b"not a database " * 100)
    env = {"DOWNSET_CACHE": str(tmp_path)}
    done = downset("stage", model, "--threads", "2", "--budget-timings", "2", env=env)
    assert done.returncode == 0, done.stderr
    assert "damaged" in done.stderr
    assert list(tmp_path.glob("profiles.damaged-*"))
    assert "forgotten" in downset("profiles", "clear", env=env).stdout
