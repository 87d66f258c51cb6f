"""While a CUDA graph is captured nothing may be read back from the device. PyTorch's meta device has shapes but no
values: whatever runs on it reads none."""

import pytest
import torch

from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.formats.reading import load
from downset.stages.prepared import prepare
from downset.stages.unit_graph import group_units
from tests.capturing import as_if_capturing
from tests.kernels.test_kernels import CASES, KINDS, saved_case
from tests.networks import branchy, random_network
from zoo import ZOO


def run_on_meta(graph):
    binder = Binder(graph, device="meta", dtype="float16")
    table = dict(zip(graph.inputs, map(binder.place, seeded_inputs(graph)), strict=True))
    for ops in group_units(graph).units:
        for call in binder.bind(ops):
            with as_if_capturing():
                results = call.run([table[tensor] for tensor in call.inputs])
            for tensor, result in zip(call.outputs, results, strict=False):
                assert tuple(result.shape) == graph.tensors[tensor].shape
                assert result.device.type == "meta"
                table[tensor] = result
    return [table[tensor] for tensor in graph.outputs]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("squeezenet", {"image": 64}),
        ("inception_v3", {"image": 75}),
        ("randwire_large", {"image": 32, "channels": 8}),
        ("nasnet_large", {"image": 96, "filters": 16}),
        ("mobilenet_v2", {}),
    ],
)
def test_the_networks_read_nothing_back(tmp_path, name, options):
    import onnx

    onnx.save(ZOO[name](**options), str(tmp_path / "m.onnx"))
    (result,) = run_on_meta(prepare(load(tmp_path / "m.onnx")))
    assert result.dtype == torch.float16


@pytest.mark.parametrize("seed", range(4))
def test_random_networks_read_nothing_back(tmp_path, seed):
    run_on_meta(prepare(load(random_network(tmp_path / "m.onnx", seed=seed))))
    run_on_meta(prepare(load(branchy(tmp_path / "b.onnx")), batch=2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_reads_nothing_back(tmp_path, kind):
    """Every operator there is a kernel for: axes, sizes and limits that are constants, data that is not."""
    for seed in range(CASES):
        saved_case(tmp_path / "one.onnx", kind, seed)
        run_on_meta(load(tmp_path / "one.onnx"))


def test_what_is_read_from_the_device_or_copied_there_is_found():
    values, places = torch.zeros(4, device="meta"), torch.arange(2)
    with pytest.raises(RuntimeError):
        float(values[0])
    for wrong in (
        lambda: torch.index_select(values, 0, places),
        lambda: places.to("meta"),
        lambda: torch.tensor([1, 2], device="meta"),
        lambda: values + torch.ones(4),
    ):
        with pytest.raises((AssertionError, RuntimeError)), as_if_capturing():
            wrong()
    with as_if_capturing():
        assert (values * torch.tensor(2.0)).device.type == "meta"
