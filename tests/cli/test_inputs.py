"""What a command says where it is given a model for a plan, a plan for a model, or no cluster."""

import pytest

from downset.clusters.toml_file import cluster_names
from downset.formats.plan_json import write_plan
from downset.results.plans import Evidence, Order
from tests.models import branchy_model


@pytest.mark.parametrize("name", ["net.onnx", "net.TFLITE", "net.pt2"])
def test_a_model_in_place_of_a_plan_is_told_what_makes_one(fails, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    split = f"make its plan first: `downset split '{name}' --cluster CLUSTER -o plan.json`"
    fails(5, "simulate", name, says=split)
    fails(5, "run", "net.onnx", "--plan", name, says=f"make its plan first: `downset stage '{name}' -o plan.json`")


def test_serve_says_so_too(fails, tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    np.save("x.npy", np.zeros((2, 3, 8, 8), np.float32))
    fails(5, "serve", "net.onnx", "--plan", "net.onnx", "--input", "x.npy", says="downset split 'net.onnx' --cluster")


def test_a_plan_in_place_of_a_model(fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_plan("plan.json", Order((0,), "live", Evidence("given", 0, 0, False)))
    said = "plan.json is a plan of kind 'order', not a model; give the model, and the plan with --plan"
    for command in (("serve", "plan.json", "--input", "x.npy"), ("split", "plan.json", "--cluster", "pico_1mac")):
        fails(5, *command, says=said)
    fails(5, "order", "plan.json", says=said)


def test_a_plain_graph_in_place_of_a_plan(fails, tmp_path):
    (tmp_path / "g.json").write_text('{"tensors": [], "ops": [], "inputs": [], "outputs": []}')
    fails(5, "simulate", tmp_path / "g.json", says="`downset split` and `downset stage` make one")


def test_a_missing_cluster_names_those_that_there_are_and_the_form_of_a_file(fails, tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    np.save("x.npy", np.zeros((2, 3, 8, 8), np.float32))
    names = ", ".join(cluster_names())
    assert "pico_1mac" in names
    said = f"give a built-in cluster ({names}) or a TOML file of yours with one [network] and a [[device]] for each"
    fails(2, "split", "net.onnx", says=f"--cluster is missing: {said}")
    fails(2, "serve", "net.onnx", "--input", "x.npy", says=f"--cluster is missing, and so is --plan: {said}")
