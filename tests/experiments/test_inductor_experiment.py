"""What the measurement of training steps claims: how a peak is read, and what the committed rows and the page say."""

from pathlib import Path

import pytest
import torch

from downset import OrderProblem
from downset.integrations import recompute_pass
from downset.orders.check import verify_steps
from experiments.inductor.by_hand import step_of
from experiments.inductor.measure import WAYS, peak_bytes
from experiments.inductor.networks import NETWORKS, Case
from experiments.inductor.recompute import planning_cpu_s
from experiments.rows import load_rows
from experiments.speed.steps import load_steps, save_step
from experiments.speed.steps.generate import problem_of_step
from tests.rewrites.test_recompute_units import repeated

ROOT = Path(__file__).resolve().parents[2]


def test_a_peak_is_what_is_held_at_once_beside_what_was_there():
    kept = [torch.ones(1 << 20)]

    def step():
        one = torch.ones(1 << 18)
        del one
        two = torch.ones(3 << 18)
        three = torch.ones(1 << 18)
        del two, three
        kept[0] = torch.ones(1 << 18)
        return kept[0]

    assert peak_bytes(step) == 4 << 20


def test_each_search_for_what_runs_again_is_timed():
    with planning_cpu_s() as spent:
        plan = recompute_pass.plan_variants({1: repeated(1)}, 1, 2)
    assert plan.tried
    assert len(spent) == 1
    assert spent[0] > 0


def test_every_network_takes_a_step():
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        case = make()
        inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)
        loss = case.loss_fn(case.model(*inputs), case.targets)
        assert torch.isfinite(loss), name
        if name == "gpt_tiny":
            loss.backward()
            assert all(parameter.grad is not None for parameter in case.model.parameters())


def test_the_committed_rows_agree_with_one_another():
    rows = {(row["network"], row["way"]): row for row in load_rows("inductor")}
    networks = {network for network, way in rows if way == "whole"}
    assert networks >= {"gpt", "dlrm", "unet", "randwire", "moe"}
    for network in networks:
        of = {way: rows[network, way] for way in WAYS}
        for row in of.values():
            for loss, eager in zip(row["losses"], of["eager"]["losses"], strict=True):
                assert abs(loss - eager) <= 1e-3 * abs(eager)
        ordered = of["ordered"]
        assert ordered["bound"] <= ordered["our_estimate"] <= ordered["inductor_estimate"]
        assert ordered["proven"] == (ordered["bound"] == ordered["our_estimate"])
        assert ordered["planning_s"] <= 0.05 * ordered["first_step_cpu_s"]


def test_committed_steps_are_problems_and_are_written_alike(tmp_path, monkeypatch):
    steps = load_steps()
    assert steps
    committed = ROOT / "experiments" / "speed" / "steps"
    monkeypatch.setattr("experiments.speed.steps.FOLDER", tmp_path)
    for name, problem in steps:
        assert isinstance(problem, OrderProblem)
        verify_steps(problem.predecessors, tuple(range(len(problem.predecessors))))
        written = save_step(name.removeprefix("step_"), problem)
        assert written.read_bytes() == (committed / written.name).read_bytes()


def test_the_problem_of_a_step_is_that_of_its_kernels():
    """Read before kernels are compiled: three products, the loss, and the update at least."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    batch = torch.randn(32, 8), torch.randn(32, 4)
    with pytest.warns(UserWarning, match="Scheduled"):
        problem = problem_of_step(Case(layers, torch.nn.functional.mse_loss, *batch))
    assert len(problem.predecessors) >= 5
    assert any(problem.predecessors)


def test_regional_compile_by_hand_compiles_the_blocks(monkeypatch):
    """The compiler passes by some calls of `checkpoint`: the way would then be eager PyTorch by another name."""
    graphs, compile_ = [], torch.compile

    def recorded(graph, _):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_(function, backend=recorded, **options))
    torch._dynamo.reset()
    step = step_of(NETWORKS["gpt_tiny"], "both compiled", lambda report: None)
    assert not graphs
    step()
    assert graphs
