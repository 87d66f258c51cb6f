"""`peak_bytes=` inside PyTorch's compiler: the same numbers as eager PyTorch, in fewer bytes; and what goes wrong."""

import pickle
import warnings

import pytest
import torch
from torch._functorch import partitioners
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_compiler
from torch._inductor.dependencies import WeakDep
from torch._inductor.virtualized import V
from torch.nn import functional

import downset as ds
from downset.integrations import recompute_pass
from tests.fresh_graphs import fresh_graphs
from tests.integrations.test_inductor_options import Scheduled, Watched

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]

COMPILE = torch.compile


class Deep(torch.nn.Module):
    """Blocks that widen: what is wide is cheap to make again."""

    def __init__(self, blocks=3):
        super().__init__()
        self.up = torch.nn.ModuleList(torch.nn.Linear(8, 64) for _ in range(blocks))
        self.down = torch.nn.ModuleList(torch.nn.Linear(64, 8) for _ in range(blocks))
        self.norm = torch.nn.BatchNorm1d(8)  # has buffers that change

    def forward(self, x):
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.tanh(functional.gelu(up(x))))
        return self.norm(x)


def batch(rows=96):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 8, generator=generator), torch.randn(rows, 8, generator=generator)


class Branching(Deep):
    """Also branches by its data."""

    def forward(self, x):
        made = super().forward(x)
        return made * torch.cond(made.sum() > 0, lambda of: of.sin() * 2, lambda of: of.cos() + 1, (made,))


def run_apart(model, settings, *, dynamic=None):
    """Loss, and the bytes that are saved for the backward pass, with our partitioner; what it makes runs as it is."""
    x, y = batch()
    saved = []

    def compiled(graph, inputs):
        saved.append(graph)
        return make_boxed_compiler(lambda made, _: made)(graph, inputs)

    def backend(graph, inputs):
        return aot_module_simplified(
            graph, inputs, fw_compiler=compiled, bw_compiler=compiled, partition_fn=settings["custom_partitioner_fn"]
        )

    torch._dynamo.reset()
    forward = torch.compile(
        lambda x, y: functional.mse_loss(model(x), y), fullgraph=True, backend=backend, dynamic=dynamic
    )
    loss = forward(x, y)
    loss.backward()
    values = [node.meta["val"] for node in saved[1].graph.find_nodes(op="placeholder") if "primals" not in node.name]
    sizes = [value.numel() * value.itemsize for value in values if isinstance(value, torch.Tensor)]
    return loss, sum(size if isinstance(size, int) else size.node.hint for size in sizes)


def reports_of(peak_bytes, **more):
    reports = []
    return ds.inductor.options(report=reports.append, peak_bytes=peak_bytes, **more), reports


@pytest.mark.parametrize(("kind", "dynamic"), [(Deep, None), (Branching, None), (Deep, True)])
def test_forward_and_backward_apart_compute_the_same_and_save_less(kind, dynamic):
    settings, reports = reports_of(10**9)
    _, most = run_apart(kind(), settings, dynamic=dynamic)
    (easy,) = reports
    limit = easy.none_bytes * 3 // 4
    torch.manual_seed(0)
    model = kind()
    settings, reports = reports_of(limit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss, saved = run_apart(model, settings, dynamic=dynamic)
    (report,) = reports
    assert report.peak_bytes <= limit
    assert report.operators
    assert report.front == easy.front
    assert saved < most
    torch.manual_seed(0)
    eager = kind()
    expected = functional.mse_loss(eager(batch()[0]), batch()[1])
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))


def whole_step(peak_bytes, monkeypatch, then, **more):
    """A whole step with our pass on its graph, which `then` gets; it runs without Inductor."""
    reports = []
    torch.manual_seed(0)
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def compile_(function, *, fullgraph, options):
        def inference(graph, inputs):
            before = len(graph.graph.nodes)
            options["joint_custom_post_pass"](graph.graph)
            graph.recompile()
            then(graph.graph, len(graph.graph.nodes) - before)
            return make_boxed_compiler(lambda made, _: made)(graph, inputs)

        def backend(graph, inputs):
            return aot_module_simplified(graph, inputs, fw_compiler=inference, inference_compiler=inference)

        return COMPILE(function, fullgraph=fullgraph, backend=backend)

    monkeypatch.setattr(torch, "compile", compile_)
    torch._dynamo.reset()
    options = {"report": reports.append, "peak_bytes": peak_bytes, **more}
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizer, **options)
    losses = [step(*batch()) for _ in range(2)]
    assert step.fallback == ""
    return model, losses, reports


def test_a_whole_step_with_copies_is_the_plain_step(monkeypatch):
    added = []
    _, _, (none,) = whole_step(10**9, monkeypatch, lambda graph, more: added.append(more))
    assert added == [0]
    least = none.front[-1][1]
    model, losses, (report,) = whole_step(least, monkeypatch, lambda graph, more: added.append(more))
    assert report.peak_bytes == least < none.none_bytes
    assert added[1] >= len(report.operators) > 0
    agrees_with_plain(model, losses)


def agrees_with_plain(model, losses):
    torch.manual_seed(0)
    plain = Deep()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for loss in losses:
        expected = functional.mse_loss(plain(batch()[0]), batch()[1])
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()), rtol=1e-3, atol=1e-4)


def puts_of(graph):
    """(results that move, their copies on the host, the copies of those on the device)"""
    put = torch.ops.prims.device_put.default
    back = [node for node in graph.nodes if node.target is put and getattr(node.args[0], "target", None) is put]
    hosts = [node.args[0] for node in back]
    return [node.args[0] for node in hosts], hosts, back


def test_results_of_a_whole_step_move_to_the_host_and_come_back(monkeypatch):
    """Behind the forward pass nothing reads a result that moves but through its copies. Where the device's memory is
    the host's, nothing moves."""
    graphs = []
    link = {"link_bytes_s": 1e18}
    _, _, (none,) = whole_step(10**9, monkeypatch, lambda graph, _: graphs.append(graph))
    least = none.front[-1][1]
    _, _, (plain,) = whole_step(least, monkeypatch, lambda graph, _: graphs.append(graph), **link)
    assert plain.moved == ()
    assert puts_of(graphs[-1])[0] == []
    monkeypatch.setattr(recompute_pass, "has_own_memory", lambda nodes: True)
    model, losses, (report,) = whole_step(least, monkeypatch, lambda graph, _: graphs.append(graph), **link)
    moved, hosts, back = puts_of(graphs[-1])
    assert {node.name for node in moved} == {of.name for of in report.moved} != set()
    assert report.cost_s < plain.cost_s
    assert report.peak_bytes <= least
    place = {node: number for number, node in enumerate(graphs[-1].nodes)}
    for result, host, copy in zip(moved, hosts, back, strict=True):
        assert set(host.users) == {copy}
        assert not any(of.meta.get("autograd_backward") for of in result.users)
        assert any(of.meta.get("autograd_backward") for of in copy.users)
        assert place[result] < place[host] < place[copy] < min(place[of] for of in copy.users)
    agrees_with_plain(model, losses)


def test_results_move_between_forward_and_backward_graphs(monkeypatch):
    monkeypatch.setattr(recompute_pass, "has_own_memory", lambda nodes: True)
    settings, reports = reports_of(100_000, link_bytes_s=1e18)
    torch.manual_seed(0)
    model, eager = Deep(), Deep()
    eager.load_state_dict(model.state_dict())
    loss, _ = run_apart(model, settings)
    (report,) = reports
    assert report.moved
    expected = functional.mse_loss(eager(batch()[0]), batch()[1])
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize(
    ("given", "told"),
    [({"link_bytes_s": 1e9}, "give peak_bytes, too"), ({"peak_bytes": 10**6, "link_bytes_s": 0}, "above 0")],
)
def test_a_link_that_cannot_be_used_is_refused(given, told):
    with pytest.raises(ds.UsageError, match=told):
        ds.inductor.options(**given)


def test_the_scheduler_keeps_copies_behind_the_forward_pass():
    """Else it fuses a copy with its original, and nothing is gained. No copy waits for an update."""
    seen = []

    class After(Watched):
        def __call__(self, nodes):
            scheduler = V.graph.scheduler
            for dep in (dep for node in nodes for dep in node.unmet_dependencies if isinstance(dep, WeakDep)):
                # Inductor looks the buffer up among those that are mutated.
                assert dep.mutating_buf in scheduler.mutation_real_name or dep.mutating_buf not in scheduler.name_to_buf
            seen.append(
                [
                    (
                        set(node.get_operation_names()),
                        set(node.ancestors),
                        [o for p in node.get_nodes() for o in p.node.get_origins()],
                    )
                    for node in nodes
                ]
            )
            raise Scheduled

    torch.manual_seed(0)
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reports = []
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizer, report=reports.append, peak_bytes=130_000)
    options = step._options
    step._options = lambda: {**options(), "_post_fusion_custom_pass": After(None)}
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="Scheduled"), fresh_graphs():
        step(*batch())  # falls back
    (report,) = reports
    assert report.operators
    (nodes,) = seen
    copied = [before for _, before, origins in nodes if any(o.meta.get("downset_again") for o in origins)]
    late = set()
    for names, _, origins in nodes:
        if any(o.meta.get("downset_again") or o.meta.get("autograd_backward") for o in origins):
            late |= names
    forward = [(names, before) for names, before, _ in nodes if not late & (names | before)]
    updates = set().union(*(names for names, before, _ in nodes if not names & late and before & late))
    assert copied
    assert updates
    last, _ = max(forward, key=lambda one: len(one[1]))
    for before in copied:
        assert last & before
        assert not updates & before  # gradients of what is updated early would stay until then


def test_an_impossible_peak_is_told_and_the_least_is_taken():
    settings, reports = reports_of(10)
    with pytest.warns(UserWarning, match=r"within 10 B \(proven that none comes below [\d,]+ B\)") as told:
        run_apart(Deep(), settings)
    assert len(told) == 1
    assert told[0].filename == __file__
    (report,) = reports
    assert report.peak_bytes == report.front[-1][1]
    assert "run again" in str(report)


def scheduled(limit):
    """(the recomputation's report or None, the peak of the ordered graph, warnings) of a step that is compiled up to
    its order."""
    choices, peaks = [], []

    def report(told):
        if isinstance(told, ds.inductor.RecomputeReport):
            choices.append(told)
            return
        peaks.append(told.peak_bytes)
        raise Scheduled

    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizer, report=report, peak_bytes=limit)
    torch._dynamo.reset()
    with pytest.warns(UserWarning) as told, fresh_graphs():
        step(*batch())  # falls back, because the report raises
    return choices[0] if choices else None, peaks[0], told


@pytest.mark.parametrize("limit", [20_000, 10**9])
def test_a_graph_whose_peak_is_above_its_limit_once_fused_is_told(limit, monkeypatch):
    """The estimate before fusion is taken for right: nothing runs again, though the peak is higher."""
    monkeypatch.setattr(recompute_pass, "_chosen", lambda *_: ())
    _, peak, told = scheduled(limit)
    above = [one for one in told if "once its kernels are fused" in str(one.message)]
    assert len(above) == (peak > limit)
    for one in above:
        assert f"peaks at {peak:,} B by an estimate of what they allocate, above the 20,000 B" in str(one.message)
        assert "no choice that was tried holds less by that one" in str(one.message)
        assert one.filename == __file__
    assert peak > 20_000


def test_a_smaller_limit_that_is_proposed_gives_a_smaller_choice(monkeypatch):
    """The peak after fusion is told as twice the limit; what is then proposed, pasted, is kept to. No step is planned
    again by itself here."""
    monkeypatch.setattr(recompute_pass, "_MOST_PLANS", 1)
    check = recompute_pass.check_peak

    def doubled(settings, _, *, last):
        check(settings, 2 * settings.peak_bytes, last=last)

    monkeypatch.setattr(recompute_pass, "check_peak", doubled)
    first, _, told = scheduled(10**9)
    (said,) = [str(one.message) for one in told if "once its kernels are fused" in str(one.message)]
    proposed = int(said.rpartition("try peak_bytes=")[2].partition(";")[0])
    assert proposed < first.peak_bytes and proposed in [peak for _, peak in first.front]
    monkeypatch.setattr(recompute_pass, "check_peak", check)
    second, _, told = scheduled(proposed)
    assert second.peak_bytes <= proposed
    assert not any("finds no choice" in str(one.message) for one in told)


def test_where_a_contract_is_missing_pytorchs_own_choice_stays(monkeypatch):
    monkeypatch.setattr(partitioners, "classify_nodes", None)
    settings, reports = reports_of(10)
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    chosen = []
    monkeypatch.setattr(
        partitioners, "min_cut_rematerialization_partition", lambda gm, inputs, **options: chosen.append(gm)
    )
    with pytest.warns(UserWarning, match="recomputes nothing in a graph: TypeError"):
        settings["custom_partitioner_fn"](graph, [], num_fwd_outputs=1)
    assert chosen == [graph]
    assert reports == []


def test_caches_tell_limits_apart_and_ask_for_no_report():
    def keys(**changed):
        made = ds.inductor.options(**{"peak_bytes": 100, **changed})
        return made["custom_partitioner_fn"].uuid(), pickle.dumps(made["custom_partitioner_fn"])

    assert keys() == keys(report=print)
    assert keys()[0] != keys(peak_bytes=101)[0]
    assert keys()[0] != keys(choices=3)[0]
    again = pickle.loads(keys()[1])
    assert again.uuid() == keys()[0]
