"""`ds.inductor.options()` in real compiles: orders, results, caches; and what fails leaves a compile as it was."""

import os
import random
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._inductor import memory
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.virtualized import V
from torch.testing._internal.distributed.fake_pg import FakeStore

import downset as ds
from downset.compiled import OrderReport
from downset.integrations import order_pass, scheduler_storages
from downset.results.plans import Evidence, Order
from tests.fresh_graphs import fresh_graphs

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


REPORT = OrderReport("graph", 0, 9, 9, Order((), "live", Evidence("optimal", 9, 9, True)), False, "op", ())


class Scheduled(Exception):
    """Ends a compile after its scheduler: nothing is generated, so a test takes a second and not twenty."""


class Watched(CustomSchedulerPass):
    """Our pass, and what it was given and gave."""

    def __init__(self, ours, *, stop=True):
        self.ours, self.stop, self.seen = ours, stop, []

    def uuid(self):
        return None

    def __call__(self, nodes):
        ordered = self.ours(list(nodes))
        self.seen.append((list(nodes), ordered))
        if self.stop:
            raise Scheduled
        return ordered


def scheduled(function, *inputs, **settings):
    """(nodes as Inductor had them, as we order them, reports) of the one graph of a function."""
    reports = []
    name = "_post_fusion_custom_pass"
    option = (name, ds.inductor.options(report=reports.append)[name])
    watched = Watched(option[1])
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Scheduled"), fresh_graphs():
        torch.compile(function, fullgraph=True, options={option[0]: watched, **settings})(*inputs)
    ((before, after),) = watched.seen
    return before, after, reports


def wide_first(x):
    """Both branches widen and narrow again; Inductor's given order widens both first."""
    one = torch.mm(x, torch.ones(8, 512))
    two = torch.mm(x + 1, torch.ones(8, 512))
    three = torch.mm(x + 2, torch.ones(8, 512))
    narrow = torch.ones(512, 8)
    return torch.mm(two, narrow) + torch.mm(one, narrow) + torch.mm(three, narrow)


def assert_keeps_dependencies(before, after):
    assert sorted(map(id, before)) == sorted(map(id, after))
    at = {node: step for step, node in enumerate(after)}
    made_by = {name: node for node in after for name in node.get_buffer_names()}
    for node in after:
        for dep in node.unmet_dependencies:
            maker = made_by.get(dep.name)
            assert maker is None or maker is node or at[maker] < at[node]


def test_a_report_of_a_real_graph():
    before, after, (report,) = scheduled(wide_first, torch.ones(64, 8))
    assert_keeps_dependencies(before, after)
    assert report.nodes == len(before)
    assert report.order.evidence.proven
    assert report.order.peak_bytes <= report.inductor_bytes <= report.given_bytes
    assert sum(buffer.nbytes for buffer in report.peak_live) == min(report.order.peak_bytes, report.inductor_bytes)
    here = re.escape(__file__)
    assert any(re.fullmatch(rf"{here}:\d+", buffer.source) for buffer in report.peak_live)
    said = str(report)
    assert f"{report.nodes} nodes" in said
    assert "proven" in said


@pytest.mark.parametrize("inside", [False, True])
def test_where_all_code_is_pytorchs_own_modules_are_named(inside):
    layers = torch.nn.Sequential(torch.nn.Linear(8, 64, bias=False), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    model = torch.nn.Sequential(layers, torch.nn.Softmax(1)) if inside else layers
    _, _, (report,) = scheduled(model.requires_grad_(False), torch.ones(512, 8))
    first = "0.0" if inside else "0"
    assert f"module {first} (Linear)" in {buffer.source for buffer in report.peak_live}
    assert f"module {first} (Linear)" in str(report)


@pytest.mark.parametrize("fails", [False, True])
def test_inductors_own_pass_runs_only_where_ours_cannot(fails, monkeypatch):
    """It would undo our order by an estimate that counts what kernels keep in registers."""
    calls = []
    own = memory.reorder_for_peak_memory

    def counted(nodes, *others, **options):
        calls.append(own(nodes, *others, **options))
        return calls[-1]

    def broken(*_):
        raise RuntimeError("another torch")

    if fails:
        monkeypatch.setattr(order_pass, "_ordered", broken)
    monkeypatch.setattr(memory, "reorder_for_peak_memory", counted)
    options = ds.inductor.options()
    options["_post_fusion_custom_pass"] = watched = Watched(options["_post_fusion_custom_pass"], stop=False)
    torch._dynamo.reset()
    x = torch.ones(64, 8)
    with fresh_graphs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.compile(wide_first, options=options)(x), wide_first(x))
    ((_, ordered),) = watched.seen
    assert calls == ([ordered] if fails else [])


class Enough(BaseException):
    """Ends a compile from inside our pass, which catches every Exception."""


def test_parts_of_a_whole_step_that_no_line_of_the_model_makes_have_names(monkeypatch):
    sources = []

    def read(nodes, *_, single):
        sources.extend(order_pass._source(node) for node in nodes)
        raise Enough

    monkeypatch.setattr(order_pass, "_ordered", read)
    model = torch.nn.Linear(8, 8, bias=False)
    step = ds.inductor.compile_step(model, torch.nn.functional.mse_loss, torch.optim.Adam(model.parameters()))
    torch._dynamo.reset()
    with fresh_graphs(), pytest.raises(Enough):
        step(torch.ones(4, 8), torch.ones(4, 8))
    assert {"a gradient", "the optimiser's update", "module (Linear)"} <= set(sources)


def random_network(seed):
    """A function of random matrix products and sums over eight inputs, some of them changed in place."""

    generator = random.Random(seed)
    plan = [(generator.choice("maiw"), generator.randint(0, 99), generator.randint(0, 99)) for _ in range(14)]

    def run(x):
        held = [x, x + 1]
        for kind, one, two in plan:
            a, b = held[one % len(held)], held[two % len(held)]
            if kind == "m":
                held.append(torch.mm(a, b))
            elif kind == "a":
                held.append(torch.addmm(a, b, a))
            elif kind == "w":
                held.append(torch.mm(torch.mm(a, torch.ones(16, 64)), torch.ones(64, 16)))
            else:
                held.append(torch.mm(held.pop(), b).add_(1))
        return held[-1].sum(), held[-2]

    return run


@pytest.mark.parametrize("seed", range(6))
def test_orders_of_real_graphs_respect_every_dependency(seed):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="downset")
        before, after, (report,) = scheduled(random_network(seed), torch.eye(16))
    assert_keeps_dependencies(before, after)
    assert report.order.peak_bytes <= report.inductor_bytes


def test_on_several_devices_no_peak_of_one_rises(monkeypatch):
    """A stand-in says where buffers lie, for there is no second device here: the sum falls either way."""

    def spread(known, *, rises):
        best = min(known.orders.values(), key=lambda order: order_pass._inductor_peak(known, order))
        theirs = [known.nodes.index(node) for node in best]
        ours = order_pass.least_called_order(
            known.problem, known.overwriting, order_pass._joined(known.nodes), work_limit=20_000
        ).steps
        for seed in range(1000):
            draw = random.Random(seed)
            devices = [draw.choice(["cpu", "cuda:0"]) for _ in known.problem.storages]
            risen = order_pass.rise_by_device(known.problem, devices, theirs, ours)
            if bool(risen) == rises and len({*devices}) == 2:
                return devices
        raise AssertionError("no such placement")

    function = random_network(14)
    monkeypatch.setattr(order_pass, "_devices", lambda known: spread(known, rises=False))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="downset")
        before, after, (report,) = scheduled(function, torch.eye(16))
    assert report.chosen
    assert report.devices == "on 2 devices (cpu, cuda:0)"
    assert after != before
    monkeypatch.setattr(order_pass, "_devices", lambda known: spread(known, rises=True))
    with pytest.warns(UserWarning, match=r"order: on 2 devices .* B more on (cpu|cuda:0), so it keeps Inductor's$"):
        before, after, (report,) = scheduled(function, torch.eye(16))
    assert after == before
    assert not report.chosen
    assert report.peak_bytes == report.inductor_bytes > report.order.peak_bytes
    assert report.devices in str(report)
    assert f"-> {report.inductor_bytes:,} B" in str(report)


def test_the_hosts_memory_counts_only_where_the_graph_runs_on_the_host():
    """What a graph of another device puts into the host's memory takes none of that device's."""

    def node(*devices):
        buffers = [
            SimpleNamespace(get_name=lambda name=name: name, node=SimpleNamespace(get_device=lambda of=of: of))
            for name, of in devices
        ]
        return SimpleNamespace(get_outputs=lambda: buffers)

    host, other = torch.device("cpu"), torch.device("cuda")
    assert scheduler_storages.on_host([node(("a", host)), node(("b", host))]) == frozenset()
    assert scheduler_storages.on_host([node(("a", other), ("b", host)), node(("c", other)), node(("d", None))]) == {"b"}


def test_several_devices_are_told_once_however_many_graphs(monkeypatch):
    ours = order_pass.order_pass(work_limit=1, report=None, check=None, limited=False)
    reports = [replace(REPORT, devices=f"on 2 devices, {more} B more") for more in (1, 2)]
    monkeypatch.setattr(order_pass, "_ordered", lambda nodes, *_, single: (nodes, reports.pop(), 0))
    with pytest.warns(UserWarning, match="on 2 devices, 2 B more") as told:
        ours([])
        ours([])
    assert len(told) == 1


def test_several_streams_keep_inductors_order_and_say_so():
    """The scheduler is told that there are some, for this machine has no device with streams."""
    option = ("_post_fusion_custom_pass", ds.inductor.options()["_post_fusion_custom_pass"])

    def on_streams(nodes):
        V.graph.scheduler._multi_stream_nodes = True
        return option[1](nodes)

    watched = Watched(on_streams)
    torch._dynamo.reset()
    with (
        pytest.warns(
            UserWarning, match="own order: UnsupportedError: the model places its operators on several streams$"
        ),
        pytest.raises(Exception, match="Scheduled"),
        fresh_graphs(),
    ):
        torch.compile(wide_first, fullgraph=True, options={option[0]: watched})(torch.ones(64, 8))
    ((before, after),) = watched.seen
    assert before == after


def test_collectives_keep_their_order():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:

        def gathers(x):
            from torch.distributed._functional_collectives import all_reduce

            group = dist.group.WORLD
            made = [all_reduce(torch.mm(x + at, x), "sum", group) for at in range(4)]
            return torch.mm(made[3], made[0]) + torch.mm(made[1], made[2])

        before, after, (report,) = scheduled(gathers, torch.ones(32, 32))
    finally:
        dist.destroy_process_group()
    from torch._inductor.utils import is_collective, is_wait

    def meetings(nodes):
        return [node for node in nodes if is_collective(node.node) or is_wait(node.node)]

    assert len(meetings(before)) == 8
    assert meetings(before) == meetings(after)
    assert_keeps_dependencies(before, after)
    assert report.nodes == len(before)


def test_generators_draw_in_their_order():
    def draws(x):
        held = [torch.bernoulli(x).mm(x) for _ in range(3)]
        return held[2].mm(held[0]) + held[1]

    before, after, _ = scheduled(draws, torch.full((16, 16), 0.5), fallback_random=True)

    def generators(nodes):
        return [node for node in nodes if "aten.rand" in str(getattr(node.node, "op_overload", ""))]

    assert len(generators(before)) == 3
    assert generators(before) == generators(after)


def test_open_sizes_branches_and_mutation_compute_what_eager_does():
    def mixed(x):
        x.add_(1)
        chosen = torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + 1, (x,))
        return chosen.view(-1).sum() + x

    reports = []
    torch._dynamo.reset()
    compiled = torch.compile(mixed, dynamic=True, options=ds.inductor.options(report=reports.append))
    for rows, shift in ((3, 0.0), (5, -4.0), (7, 2.0)):
        ours = torch.linspace(-1, 1, rows * 4).reshape(rows, 4) + shift
        theirs = ours.clone()
        torch.testing.assert_close(compiled(ours), mixed(theirs))
        torch.testing.assert_close(ours, theirs)
    assert reports


@pytest.mark.parametrize("broken", ["prepare_planning_info", "estimate_peak_memory", "topological_sort_lpmf"])
def test_where_a_contract_is_missing_the_graph_compiles_in_inductors_order(broken, monkeypatch):
    """Told once and in one line, however many graphs meet it."""
    option = ("_post_fusion_custom_pass", ds.inductor.options()["_post_fusion_custom_pass"])
    watched = Watched(lambda nodes: option[1](option[1](nodes)))  # as if two graphs met it

    def missing(*arguments):
        raise AttributeError("missing")

    monkeypatch.setattr(memory, broken, missing)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("always", message="downset")
        with pytest.raises(Exception, match="Scheduled"), fresh_graphs():
            torch.compile(wide_first, fullgraph=True, options={option[0]: watched})(torch.ones(16, 8))
    ((before, after),) = watched.seen
    assert before == after
    ours = [str(warning.message) for warning in told if "downset" in str(warning.message)]
    assert ours == ["downset leaves a graph in Inductor's own order: AttributeError: missing"]


def test_a_torch_without_passes_compiles_as_ever(monkeypatch):
    """A limit is refused by no version: it is not kept, and the line says that nothing is ordered."""
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.10.1"))
    with pytest.warns(UserWarning, match="this torch takes no pass"):
        assert ds.inductor.options(peak_bytes=10**6) == {}
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"as torch\.compile, not as one graph: this torch cannot"):
        step = ds.inductor.compile_step(model, torch.nn.functional.mse_loss, optimizer, peak_bytes=10**6)
    assert step.rung == "torch.compile"


def test_a_torch_that_marks_no_backward_pass_runs_a_step_as_two_graphs(monkeypatch):
    """As torch 2.11: in one graph nothing could run again, and it would hold more than PyTorch's two."""
    monkeypatch.delattr(torch.fx.traceback, "_mark_autograd_backward")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="does not mark the backward pass"):
        step = ds.inductor.compile_step(model, torch.nn.functional.mse_loss, optimizer)
    assert step.rung == "forward and backward graphs in our order"


PROGRAM = """
import torch, warnings
warnings.filterwarnings("error", message="downset")
import downset as ds
from torch._dynamo.utils import counters
reports = []
torch.manual_seed(0)
# Products of matrices alone: no C++ is compiled for them.
layers = [torch.nn.Linear(one, other, bias=False) for one, other in ((8, 64), (64, 8), (8, 8))]
model = torch.nn.Sequential(*layers)
options = ds.inductor.options(report=reports.append, peak_bytes=9_000)
result = torch.compile(model, fullgraph=True, options=options)(torch.ones(16, 8))
result.backward(torch.ones(16, 8))
assert torch.allclose(result, model(torch.ones(16, 8)), rtol=1e-4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.zero_grad()
step = ds.inductor.compile_step(model, torch.nn.functional.mse_loss, optimizer, report=reports.append)
with warnings.catch_warnings(record=True) as told:
    for _ in range(2):
        step(torch.ones(4, 8), torch.ones(4, 8))
told = sum("took this step from its cache" in str(one.message) for one in told)
print(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"], len(reports), told)
"""


def test_the_second_process_finds_the_graphs_in_the_caches(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment
        ).stdout.split()
        for _ in range(2)
    ]
    assert said[0] == ["0", "0", "4", "0"]  # what runs again, and the orders of forward, backward and the whole step
    assert said[1] == ["3", "2", "0", "1"]


def test_settings_that_change_orders_change_the_key_of_the_cache():
    def key(**settings):
        value = ds.inductor.options(**settings)["_post_fusion_custom_pass"]
        return value.uuid()

    assert key() == key(report=print)
    assert key() != key(work_limit=3)
