"""The exit codes of `verify`: 0 only for a proof, or where runs are accepted that could have shown a difference; 4 for
any run that differs; 6 for all else."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest

from downset.errors import LimitReached, UnsupportedError
from downset.fitting.fit import fit
from downset.reports.fit_document import fit_document
from downset.reports.json_form import json_of
from downset.reports.terminal import text_of
from downset.results.comparisons import BY_RUNTIME, Comparison, Proof
from downset.runtimes import compare as comparing
from downset.runtimes.compare import compare
from downset.runtimes.outputs import in_torch
from tests.equivalence.pairs_apart import node, onnx_pair, saved, written_otherwise
from tests.models import branchy_model, constant

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "verify.json").read_text())


def unchanging(path, kinds):
    """Outputs that are the same for every input."""
    nodes = [node("Mul", ["x", "zero"], "t0")]
    nodes += [node(kind, [f"t{at}"], f"t{at + 1}") for at, kind in enumerate(kinds)]
    return saved(path, [*nodes, node("Identity", [f"t{len(kinds)}"], "y")], [constant("zero", np.zeros(1, np.float32))])


def masked(path, weight):
    """A weight that no output shows."""
    nodes = [node("Mul", ["x", "w"], f"m{weight}"), node("Mul", [f"m{weight}", "zero"], f"z{weight}")]
    weights = [constant("w", np.float32(weight)), constant("zero", np.zeros(1, np.float32))]
    return saved(path, [*nodes, node("Add", ["x", f"z{weight}"], "y")], weights)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "otherwise").mkdir()
    (tmp_path / "apart").mkdir()
    agreeing = written_otherwise(tmp_path / "otherwise", 2)
    return {
        "same": [agreeing[0], agreeing[0]],
        "agreeing": agreeing,
        "apart": onnx_pair(tmp_path / "apart", "compared", 0),
        "unchanging": [unchanging(tmp_path / f"{kind}.onnx", ["Abs", kind]) for kind in ("Sin", "Tan")],
        "masked": [masked(tmp_path / f"w{weight}.onnx", weight) for weight in (1, 2)],
    }


@pytest.mark.parametrize(
    ("pair", "plain", "accepted"),
    [("same", 0, 0), ("agreeing", 6, 0), ("apart", 4, 4), ("unchanging", 6, 6), ("masked", 6, 6)],
)
def test_a_code_says_what_is_known(tmp_path, run, files, pair, plain, accepted):
    """A tolerance and inputs change no 6 into 0."""
    np.save(tmp_path / "x.npy", np.full((1, 4), 0.5, np.float32))
    own = ("--input", tmp_path / "x.npy")
    for options in ((), ("--tolerance", "0"), ("--tolerance", "1e30"), own, (*own, "--tolerance", "1")):
        status, out, _ = run("verify", *files[pair], *options, "--json")
        found = json.loads(out)
        jsonschema.validate(found, SCHEMA)
        assert (status, found["proven"], found["ok"]) == (plain, plain == 0, plain == 0), options
        assert bool(found["reason"]) == (plain != 0)
        if pair != "agreeing":
            break
    status, out, _ = run("verify", *files[pair], "--accept-runs", "--json")
    assert (status, json.loads(out)["proven"]) == (accepted, plain == 0)


def test_a_run_that_differs_outweighs_a_proof(fails, files, monkeypatch):
    differing = Comparison(False, 3.0, "ort", floats=True, largest=1.0)
    monkeypatch.setattr(comparing, "compare_outputs", lambda *_, proof, **__: replace(differing, proof=proof))
    for proof in (Proof(True), Proof(True, exact=False), Proof(True, optimised=True), Proof(False, reason="none")):
        monkeypatch.setattr(comparing, "prove_same", lambda *_, proof=proof, **__: proof)
        fails(4, "verify", *files["same"], "--accept-runs", says="largest absolute difference 3")


@pytest.mark.parametrize("error", [UnsupportedError("no runtime here"), LimitReached("it took too long")])
def test_where_nothing_ran_only_a_proof_is_enough(run, fails, files, monkeypatch, error):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr(comparing, "compare_outputs", refused)
    fails(6, "verify", *files["agreeing"], "--accept-runs", says=f"outputs not compared: {error}")
    status, out, _ = run("verify", *files["same"])
    assert status == 0 and out == f"proven the same network\noutputs not compared: {error}\n"


def test_a_file_that_the_runtime_refuses_differs_from_one_that_it_runs(fails, files, tmp_path):
    """Names of nodes have no meaning, but ONNX Runtime refuses two that are equal."""
    model = onnx.load(files["agreeing"][0])
    model.graph.node.append(node("Neg", [model.graph.input[0].name], "unread"))
    pair = [tmp_path / "names.onnx", tmp_path / "one_name.onnx"]
    for path, names in zip(pair, ("ab", "aa"), strict=True):
        for each, name in zip((model.graph.node[0], model.graph.node[-1]), names, strict=True):
            each.name = name
        onnx.save(model, path)
    assert compare(*pair).proof.proven
    fails(4, "verify", *pair, says="names.onnx alone")
    fails(4, "verify", *pair[::-1], says="names.onnx alone")


def test_sums_in_another_order_are_proven_up_to_rounding_and_said_so(run, files, monkeypatch):
    monkeypatch.setattr(comparing, "prove_same", lambda *_, **__: Proof(True, exact=False, rewrites=2))
    status, out, _ = run("verify", *files["same"])
    assert status == 0 and "sums are added up in another order, equal up to rounding" in out.splitlines()[0]


def test_exported_programs_are_proven_and_run_as_data_and_with_trust(tmp_path, run, fails):
    torch = pytest.importorskip("torch")

    def exported(name, factor):
        class Scaled(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x * factor)

        torch.export.save(torch.export.export(Scaled(), (torch.ones(1, 4),)), tmp_path / name)
        return tmp_path / name

    one, other, changed = exported("a.pt2", 2.0), exported("b.pt2", 2.0), exported("c.pt2", 3.0)
    assert run("verify", one, other)[0] == 0
    for trust in (False, True):
        found = compare(one, other, trust=trust)
        assert found.verdict() == "proven" and found.telling and found.equal and found.runtime == "torch"
    fails(4, "verify", one, changed, says="differ in torch")
    fails(4, "verify", one, changed, "--trust", says="differ in torch")


@pytest.mark.own_processes("torch")
def test_a_program_runs_in_a_worker(tmp_path):
    torch = pytest.importorskip("torch")
    network, frame = torch.nn.Linear(4, 2), torch.arange(4.0)[None]
    torch.export.save(torch.export.export(network, (frame,)), tmp_path / "m.pt2")
    ((output,),) = in_torch(tmp_path / "m.pt2", [{"input": frame.numpy()}]).outputs
    np.testing.assert_allclose(output, network(frame).detach().numpy(), rtol=1e-6)


def test_fit_says_first_that_what_it_ships_is_not_proven(tmp_path, run):
    path = branchy_model(tmp_path / "m.onnx")
    result = fit(path, output=tmp_path / "f.onnx", time_limit_s=20)
    assert result.shipped != "original" and not result.outputs.proven
    assert text_of(fit_document(result)).split("\n")[1] == f"not proven the same network: {BY_RUNTIME}"
    found = json_of(fit_document(result))["outputs"]
    assert (found["proven"], found["reason"]) == (False, BY_RUNTIME)
    status, out, err = run("fit", path, "--time-limit", "20s", "--arena", "10MB")
    first = out.splitlines()[:2]
    assert status == 0 and first[0].startswith("Fits"), err
    assert first[1].startswith("not proven the same network: ONNX Runtime's own optimisation")


def test_what_fit_ships_as_it_is_needs_no_proof(tmp_path):
    path = saved(tmp_path / "m.onnx", [node("Relu", ["x"], "y")], [])
    result = fit(path, time_limit_s=20)
    assert result.shipped == "original" and result.outputs.proven
    assert "not proven the same" not in text_of(fit_document(result))
