"""Plans made again while a pipeline runs: for the devices that are left, at the speeds that they have now."""

from __future__ import annotations

import threading

import onnx
import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving import deployment
from downset.distributed.serving.planning import Planning, slowed
from downset.distributed.serving.serve import _planned
from downset.errors import DownsetError, UnsupportedError, UsageError
from downset.formats.reading import load
from downset.joint.check import verify
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.replan import replan
from tests.models import branchy_model

THREE = Cluster(
    tuple(Device(f"d{place}", 1e5, bytes_per_s=1e9) for place in range(3)), Network("links", 1e9, overlap=True)
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return load(branchy_model(tmp_path_factory.mktemp("model") / "branchy.onnx"))


def test_without_change_the_plan_stays(graph):
    plan = plan_pipeline(graph, THREE)
    assert Planning(graph, plan).plan(["d0", "d1", "d2"], {"d0": 1.0}) is plan


@pytest.mark.parametrize("method", ["exact", "coedge"])
def test_a_new_plan_is_the_method_s_own_on_the_devices_as_they_are(method, graph):
    plan = plan_pipeline(graph, THREE, method=method)
    found = Planning(graph, plan).plan(["d0", "d2"], {"d2": 4.0})
    left = Cluster((Device("d0", 1e5, bytes_per_s=1e9), Device("d2", 2.5e4, bytes_per_s=2.5e8)), THREE.network)
    wanted = plan_pipeline(graph, left, method=method)
    assert (found.cluster, found.stages, found.period_s) == (wanted.cluster, wanted.stages, wanted.period_s)


def test_planning_again_with_nobody_lost_gives_the_same_plan(graph):
    plan = plan_pipeline(graph, THREE)
    again = replan(graph, plan, ())
    assert (again.cluster, again.stages, again.period_s) == (plan.cluster, plan.stages, plan.period_s)


def test_messages_name_the_missing_where_there_are_any(graph):
    plan = plan_pipeline(graph, THREE, source="d1", sink="d1")
    planning = Planning(graph, plan)
    with pytest.raises(UsageError, match="'d1' is the plan's source"):
        planning.plan(["d0", "d2"], {})
    with pytest.raises(UsageError, match="no device is left without d0, d2, d1"):
        planning.plan([], {})
    small = Cluster(tuple(Device(f"d{place}", 1e5, memory_bytes=1) for place in range(3)), THREE.network)
    with_names, without = (_refusal(graph, plan, small, lost) for lost in ((0,), ()))
    assert with_names == f"without d0: {without}" and not without.startswith("without")


def _refusal(graph, plan, cluster, lost):
    from dataclasses import replace

    with pytest.raises(DownsetError) as refused:
        replan(graph, replace(plan, cluster=cluster), lost)
    return str(refused.value)


def test_a_slow_device_is_slow_in_all_that_it_computes():
    assert slowed(THREE, {"d1": 2.0}).devices == (
        THREE.devices[0],
        Device("d1", 5e4, bytes_per_s=5e8),
        THREE.devices[2],
    )


def test_no_shard_is_written_after_the_end(graph, tmp_path, monkeypatch):
    """`serve` removes the folder then; a plan ahead of a loss may still be on its way, on another thread."""
    writing, may_write = threading.Event(), threading.Event()
    write = deployment.write_whole

    def slow_write(path, data):
        writing.set()
        assert may_write.wait(60.0)
        write(path, data)

    monkeypatch.setattr(deployment, "write_whole", slow_write)
    shards, ends = deployment.Shards(graph, tmp_path), []

    def work():
        with pytest.raises(UnsupportedError, match="the pipeline has ended"):
            for method in ("single", "exact", "pico"):
                shards.deployment(plan_pipeline(graph, THREE, method=method))
        ends.append("work")

    worker = threading.Thread(target=work)
    worker.start()
    assert writing.wait(60.0)
    closer = threading.Thread(target=lambda: (shards.close(), ends.append(len(list(tmp_path.iterdir())))))
    closer.start()
    closer.join(0.1)
    assert closer.is_alive() and not list(tmp_path.iterdir())
    may_write.set()
    closer.join(60.0)
    worker.join(60.0)
    assert ends.pop(ends.index("work")) == "work" and ends == [len(list(tmp_path.iterdir()))]


def test_plans_of_a_file_as_it_is_read_and_with_sizes_as_constants_are_both_served(tmp_path):
    """Commands plan the second, and `load` reads the first unless asked."""
    info = onnx.helper.make_tensor_value_info
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["shape"]),
        onnx.helper.make_node("Relu", ["x"], ["y"]),
        onnx.helper.make_node("Reshape", ["y", "shape"], ["z"]),
    ]
    ends = [info("x", 1, (1, 4, 8, 8))], [info("z", 1, (1, 4, 8, 8))]
    network = onnx.helper.make_graph(nodes, "sizes", *ends)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(network, opset_imports=opset, ir_version=8), tmp_path / "sizes.onnx")
    counts = set()
    for folded in (False, True):
        graph = load(tmp_path / "sizes.onnx", folded=folded)
        plan = plan_pipeline(graph, THREE, time_limit_s=1)
        verify(_planned(tmp_path / "sizes.onnx", plan), plan)
        counts.add(len(graph.ops))
    assert len(counts) == 2
