"""What libraries allocate inside calls, held to PyTorch's own profiler."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from downset.integrations import call_workspaces
from downset.integrations.call_workspaces import measured_bytes, workspaces_of


def convolution(x, weight):
    y = torch.nn.functional.conv2d(x, weight, padding=1)
    return y, *torch.ops.aten.convolution_backward(
        y, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )[:2]


def profiled_bytes(call):
    """The most bytes within a call by torch.profiler, without those of its results."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        results = call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most - sum(of.nbytes for of in (results if isinstance(results, tuple) else (results,)))


@pytest.fixture
def empty_table(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(call_workspaces, "_TABLE", {})
    return tmp_path


def test_results_are_no_workspace_and_what_lives_between_is():
    x = torch.zeros(1000)
    assert measured_bytes(lambda: x + x) == 0
    assert measured_bytes(lambda: x + x.neg()) == 4000


def test_a_table_of_convolutions_holds_what_the_profiler_sees(empty_table, monkeypatch):
    x, weight = torch.randn(2, 48, 32, 32), torch.randn(16, 48, 3, 3)
    graph = make_fx(convolution, tracing_mode="fake")(x, weight).graph
    table = workspaces_of(graph.nodes)
    y = torch.nn.functional.conv2d(x, weight, padding=1)
    forward, backward = (node for node in graph.nodes if "convolution" in str(node.target))
    assert table.get(forward, 0) == profiled_bytes(lambda: torch.nn.functional.conv2d(x, weight, padding=1))
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    seen = profiled_bytes(lambda: torch.ops.aten.convolution_backward(y, x, weight, *rest)[:2])
    assert table.get(backward, 0) == seen
    assert set(table) <= {forward, backward}

    def measured_again(*_):
        raise AssertionError("measured twice")

    monkeypatch.setattr(call_workspaces, "measured_bytes", measured_again)
    assert workspaces_of(graph.nodes) == table
    monkeypatch.setattr(call_workspaces, "_TABLE", {})  # another process reads the file
    assert workspaces_of(graph.nodes) == table
    monkeypatch.undo()


def attention(q, k, v):
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return out, backward(out, q, k, v, out, sums, 0.0, True)


def test_an_attention_holds_rows_of_scores_for_each_thread(empty_table):
    operands = [torch.randn(2, 4, 64, 8) for _ in range(3)]
    nodes = make_fx(attention, tracing_mode="fake")(*operands).graph.nodes
    calls = [node for node in nodes if "attention" in str(node.target)]
    assert len(calls) == 2
    now, held = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            table = workspaces_of(nodes)
            held.append([table[call] for call in calls])
            out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*operands, 0.0, True)
            run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            seen = profiled_bytes(lambda: run(out, *operands, out, sums, 0.0, True))  # noqa: B023
            assert held[-1][1] == seen
    finally:
        torch.set_num_threads(now)
    assert all(two > one > 0 for one, two in zip(*held, strict=True))


def test_a_damaged_table_is_measured_again(empty_table, monkeypatch):
    graph = make_fx(convolution, tracing_mode="fake")(torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3)).graph
    table = workspaces_of(graph.nodes)
    (file,) = (empty_table / "downset").iterdir()
    file.write_text("[1")
    monkeypatch.setattr(call_workspaces, "_TABLE", {})
    assert workspaces_of(graph.nodes) == table
    assert file.read_text().startswith("{")


def test_another_number_of_threads_is_measured_anew(empty_table, monkeypatch):
    graph = make_fx(convolution, tracing_mode="fake")(torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3)).graph
    now, measured = torch.get_num_threads(), []
    monkeypatch.setattr(call_workspaces, "measured_bytes", lambda *_: measured.append(torch.get_num_threads()) or 1)
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            workspaces_of(graph.nodes)
    finally:
        torch.set_num_threads(now)
    assert measured == [1, 1, 2, 2]


def test_calls_of_unknown_shapes_and_other_operators_have_none(empty_table):
    symbolic = make_fx(convolution, tracing_mode="symbolic")(torch.randn(3, 8, 16, 16), torch.randn(8, 8, 3, 3))
    assert workspaces_of(symbolic.graph.nodes) == {}
    added = make_fx(lambda x: x + 1, tracing_mode="fake")(torch.zeros(8))
    assert workspaces_of(added.graph.nodes) == {}


def test_operands_are_laid_out_as_the_compiler_says(empty_table):
    """A convolution in the layout of its library copies less than one in the other layout."""
    x, weight = torch.randn(2, 48, 32, 32), torch.randn(16, 48, 3, 3)
    graph = make_fx(convolution, tracing_mode="fake")(x, weight).graph
    call = next(node for node in graph.nodes if "convolution.default" in str(node.target))
    last = [of.to(memory_format=torch.channels_last) for of in (x, weight)]
    ours = workspaces_of([call], {call: [of.stride() for of in last]}).get(call, 0)
    assert ours == profiled_bytes(lambda: torch.nn.functional.conv2d(*last, padding=1))
    assert ours < workspaces_of([call])[call]


def test_a_bias_that_the_compiler_takes_out_of_a_call_changes_no_layout_of_the_others(empty_table):
    x, weight, bias = torch.randn(2, 48, 32, 32), torch.randn(16, 48, 3, 3), torch.randn(16)
    graph = make_fx(torch.nn.functional.conv2d, tracing_mode="fake")(x, weight, bias).graph
    call = next(node for node in graph.nodes if "convolution.default" in str(node.target))
    last = [of.to(memory_format=torch.channels_last).stride() for of in (x, weight)]
    with_bias = workspaces_of([call], {call: [*last, bias.stride()]})
    assert workspaces_of([call], {call: last}) == with_bias != workspaces_of([call])


def test_calls_on_a_gpu_are_measured_there_and_known_by_its_library(empty_table, monkeypatch):
    """Stands for a GPU: the fake tensors of a trace have its device, and no call runs."""
    from torch._subclasses import FakeTensorMode

    measured = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(call_workspaces, "_zeros", lambda value, strides: (value.device.type, strides))
    monkeypatch.setattr(call_workspaces, "measured_bytes", lambda _, device: measured.append(device) or 512)
    with FakeTensorMode():
        x, weight = torch.empty(2, 8, 16, 16, device="cuda"), torch.empty(8, 8, 3, 3, device="cuda")
    nodes = make_fx(convolution, tracing_mode="fake")(x, weight).graph.nodes
    assert [*workspaces_of(nodes).values()] == [512, 512]
    assert measured == ["cuda", "cuda"]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    workspaces_of(nodes)
    assert len(measured) == 4
    monkeypatch.setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee")
    workspaces_of(nodes)
    assert len(measured) == 6
    assert all(key.startswith("a GPU") for key in call_workspaces._TABLE)


def test_a_call_that_does_not_run_is_not_kept_as_one_without_a_workspace(empty_table, monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("for now")

    graph = make_fx(convolution, tracing_mode="fake")(torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3)).graph
    expected = workspaces_of(graph.nodes)
    for file in (empty_table / "downset").iterdir():
        file.unlink()
    monkeypatch.setattr(call_workspaces, "_TABLE", {})
    with monkeypatch.context() as patched:
        patched.setattr(call_workspaces, "measured_bytes", fails)
        assert workspaces_of(graph.nodes) == {}
    monkeypatch.setattr(call_workspaces, "_TABLE", {})  # another process reads the file
    assert workspaces_of(graph.nodes) == expected
