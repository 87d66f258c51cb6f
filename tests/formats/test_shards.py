"""Shards through ONNX Runtime: the stitched outputs equal the whole model's."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial

import numpy as np
import onnx
import pytest

from downset.budget import Budget
from downset.clusters.model import Cluster, Device, Network
from downset.clusters.toml_file import load_cluster
from downset.errors import InvalidPlan, UnsupportedError
from downset.executor.arena import seeded_inputs
from downset.formats.reading import load
from downset.formats.shards.write import ShardBlock, export_shards, write_shards
from downset.graph.cost import row_form
from downset.graph.halos import extent
from downset.pipelines.chains import further_chains
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.early_fused import early_fused
from downset.pipelines.network import pipeline_units
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from tests.effort import LONG, untimed
from tests.models import branchy_model, installed_model
from zoo import ZOO

runtime = pytest.importorskip("onnxruntime")


QUICK = Cluster(
    tuple(Device(name, speed) for name, speed in (("a", 3e9), ("b", 2.5e9), ("c", 2e9))), Network("links", 1e9)
)
"""So quick a network that strips pay."""


def _session(path, *, optimised=True):
    options = runtime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _staged(graph, stages, devices):
    """The network in about `stages` stages of equal numbers of blocks, each on devices with strips of unequal size."""
    form, units = row_form(graph), pipeline_units(graph)
    size = -(-len(units) // stages)
    blocks = []
    for number, first in enumerate(range(0, len(units), size)):
        ops = tuple(sorted(op for unit in units[first : first + size] for op in unit))
        later = {t for unit in units[first + size :] for op in unit for t in graph.ops[op].inputs}
        rows = max(form.rows[t] for op in ops for t in graph.ops[op].outputs if t in later or t in graph.outputs)
        cuts = [rows * place * (place + 1) // (devices * (devices + 1)) for place in range(devices + 1)]
        strips = tuple((f"d{place}", cuts[place], cuts[place + 1]) for place in range(devices))
        blocks.append(ShardBlock(number, 0, ops, rows, strips))
    return blocks


def _rows(meta, span, columns=None):
    """The part of a tensor that shards.json says."""
    place = [slice(None)] * len(meta["shape"])
    if meta["rows_axis"] is not None:
        place[meta["rows_axis"]] = slice(*span)
    if columns is not None and meta["columns_axis"] is not None:
        place[meta["columns_axis"]] = slice(*columns)
    return tuple(place)


def _run(folder, graph, inputs, *, optimised=True):
    """Shard after shard, each given its rows of what was made before."""
    described = json.loads((folder / "shards.json").read_text())
    listed, tensors = described["shards"], described["tensors"]
    values = {graph.tensors[t].name: value for t, value in zip(graph.inputs, inputs, strict=True)}
    for shard in listed:
        given = {}
        for name, span in shard["inputs"].items():
            given[name] = np.ascontiguousarray(
                values[name][_rows(tensors[name], span, shard["input_columns"].get(name))]
            )
        made = _session(folder / shard["file"], optimised=optimised).run(list(shard["outputs"]), given)
        for (name, span), part in zip(shard["outputs"].items(), made, strict=True):
            meta = tensors[name]
            place = _rows(meta, span, shard["output_columns"].get(name))
            values.setdefault(name, np.full(meta["shape"], np.nan, meta["dtype"]))[place] = part
    return [values[graph.tensors[t].name] for t in graph.outputs], listed


def _compare(path, folder, stages=4, devices=3):
    graph = load(path)
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(graph.tensors[t].shape).astype(graph.tensors[t].dtype) for t in graph.inputs]
    names = [graph.tensors[t].name for t in graph.inputs]
    expected = _session(path).run(None, dict(zip(names, inputs, strict=True)))
    write_shards(folder, graph, _staged(graph, stages, devices))
    found, listed = _run(folder, graph, inputs)
    assert len(listed) > stages
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "stages", "devices"),
    [
        ("inception_v3", {"image": 75}, 3, 3),
        ("mobilenet_v3_large", {"image": 64}, 4, 3),
        ("squeezenet1_0", {"image": 79}, 4, 3),
    ],
)
def test_shards_of_the_zoo(name, options, stages, devices, tmp_path):
    onnx.save(ZOO[name](**options), str(tmp_path / "whole.onnx"))
    _compare(tmp_path / "whole.onnx", tmp_path / "shards", stages, devices)
    shutil.rmtree(tmp_path)  # hundreds of megabytes of weights


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("inception_v3", {"image": 75}),
        ("mobilenet_v3_large", {"image": 64}),
        *[("squeezenet1_0", {"image": 79}), ("vgg16", {"image": 48, "classifier": False})] * LONG,
        *[("yolov2", {"image": 64}), ("resnet34", {"image": 48})] * LONG,
    ],
)
def test_shards_of_exact_plans_of_the_zoo(name, options, tmp_path):
    onnx.save(ZOO[name](**options), str(tmp_path / "whole.onnx"))
    _planned(tmp_path, "exact")
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("method", ["exact", "pico", "coedge"])
@pytest.mark.parametrize("name", ["light_squeezenet", "light_inception_v2"])
def test_shards_of_plans_of_real_models(name, method, tmp_path):
    """Weights that operators compute, on every device that needs them."""
    shutil.copy(installed_model("onnx", f"{name}.onnx"), tmp_path / "whole.onnx")
    _planned(tmp_path, method)


def _planned(folder, method):
    """A method's plan of whole.onnx: its shards together make what the model makes."""
    graph = load(folder / "whole.onnx")
    plan = plan_pipeline(graph, QUICK, method=method, **untimed(50_000))
    shards = export_shards(folder / "shards", graph, plan)
    assert {shard.stage for shard in shards} == set(range(len(plan.stages)))
    assert len({shard.device for shard in shards}) == (1 if method == "single" else 3)
    inputs = seeded_inputs(graph)
    names = [graph.tensors[tensor].name for tensor in graph.inputs]
    expected = _session(folder / "whole.onnx").run(None, dict(zip(names, inputs, strict=True)))
    found, _ = _run(folder / "shards", graph, inputs)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vgg16", {"image": 48, "classifier": False}),
        ("squeezenet1_0", {"image": 79}),
        *[("resnet34", {"image": 48})] * LONG,
    ],
)
@pytest.mark.parametrize("topology", ["direct", "leader"])
def test_devices_that_hold_only_what_the_plan_gives_them_make_what_the_model_makes(name, options, topology, tmp_path):
    """Task by task: a strip reads what its own device has, a transfer copies rows that its sender has."""
    onnx.save(ZOO[name](**options), str(tmp_path / "whole.onnx"))
    graph = load(tmp_path / "whole.onnx")
    cluster = Cluster(tuple(Device(f"d{k}", 3e9 - k * 5e8) for k in range(4)), Network("links", 1e8))
    plan = plan_pipeline(graph, cluster, topology=topology, **untimed(500_000))
    assert ({stage.leader for stage in plan.stages} == {-1}) == (topology == "direct")
    assert len({task.device for task in plan.tasks}) > 2
    _task_by_task(tmp_path, graph, plan)


def test_whole_layers_between_any_two_downsets_make_what_the_model_makes(tmp_path):
    """Several tensors cross a cut, some past a stage that does not read them; without leaders."""
    onnx.save(ZOO["unet"](image=48, channels=8, levels=3), str(tmp_path / "whole.onnx"))
    graph = load(tmp_path / "whole.onnx")
    cluster = Cluster(tuple(Device(f"d{k}", 3e9 - k * 5e8) for k in range(4)), Network("links", 1e8))
    chain = next(further_chains(graph, cluster, clock=Budget(60).start(), rows=True))
    (stages,) = chain.beginnings
    assert len(stages) > 2 and max(len(chain.crossing(stage.splits[0].start)) for stage in stages[1:]) > 1
    planned = plan_pipeline(chain, cluster, topology="direct", method=lambda *_, **__: FoundPipeline(stages, 0.0))
    assert {stage.leader for stage in planned.stages} == {-1}
    _task_by_task(tmp_path, graph, planned)


def _task_by_task(tmp_path, graph, plan):
    """The tasks of a plan on devices that hold what they were given or made, and the results at the exit."""
    cluster = plan.cluster
    shards = export_shards(tmp_path / "shards", graph, plan)
    meta = json.loads((tmp_path / "shards" / "shards.json").read_text())["tensors"]
    by_place = {(shard.stage, shard.block, shard.device): shard for shard in shards}
    held = [{} for _ in cluster.devices]

    def part(device, name, span):
        whole = held[device].setdefault(name, np.full(meta[name]["shape"], np.nan, meta[name]["dtype"]))
        return whole[_rows(meta[name], span)]

    inputs = seeded_inputs(graph)
    names = [graph.tensors[tensor].name for tensor in graph.inputs]
    for tensor, value in zip(names, inputs, strict=True):
        held[plan.entry][tensor] = value
    for task in plan.tasks:
        if task.transfer is not None:
            for rows in task.transfer.rows:
                tensor, span = graph.tensors[rows.tensor].name, (rows.start, rows.stop)
                sent = part(task.transfer.source, tensor, span)
                assert not np.isnan(sent).any()
                part(task.transfer.target, tensor, span)[...] = sent
            continue
        shard = by_place[task.stage, task.block, cluster.devices[task.device].name]
        given = {tensor: np.ascontiguousarray(part(task.device, tensor, span)) for tensor, span in shard.inputs.items()}
        assert not any(np.isnan(value).any() for value in given.values())
        made = _session(tmp_path / "shards" / shard.file).run(list(shard.outputs), given)
        for (tensor, span), value in zip(shard.outputs.items(), made, strict=True):
            part(task.device, tensor, span)[...] = value
    expected = _session(tmp_path / "whole.onnx").run(None, dict(zip(names, inputs, strict=True)))
    for tensor, value in zip(graph.outputs, expected, strict=True):
        np.testing.assert_allclose(value, held[plan.exit][graph.tensors[tensor].name], rtol=1e-3, atol=1e-4)
    shutil.rmtree(tmp_path)


def test_shards_of_a_small_model(tmp_path):
    _compare(branchy_model(tmp_path / "whole.onnx"), tmp_path / "shards", stages=2, devices=2)


def test_shards_of_a_real_model(tmp_path):
    """Opset 9, weights computed from their shapes, local response normalisation, a classifier."""
    _compare(installed_model("onnx", "light_inception_v2.onnx"), tmp_path / "shards", 3, 2)


@pytest.mark.parametrize("method", [method for method in PIPELINERS if method not in ("exact", "early_fused")])
def test_shards_of_a_plan(method, tmp_path):
    """Stages of one block, and of many; strips as a planner cut them."""
    onnx.save(ZOO["squeezenet1_0"](image=79), str(tmp_path / "whole.onnx"))
    _planned(tmp_path, method)


@pytest.mark.parametrize(
    ("name", "options", "fused"),
    [
        ("squeezenet1_0", {"image": 79}, 6),
        ("vgg16", {"image": 48, "classifier": False}, 9),
        ("resnet34", {"image": 48}, 5),
    ],
)
def test_tiles_are_cut_along_both_axes(name, options, fused, tmp_path):
    """Halos of rows and of columns, and corners."""
    onnx.save(ZOO[name](**options), str(tmp_path / "whole.onnx"))
    graph = load(tmp_path / "whole.onnx")
    plan = plan_pipeline(graph, load_cluster("rpi_8"), method=partial(early_fused, fused=fused), **untimed(200_000))
    tiles = [shard for shard in export_shards(tmp_path / "shards", graph, plan) if shard.output_columns]
    assert len(tiles) == 8 and len({tuple(tile.output_columns.values()) for tile in tiles}) == 2
    inputs = seeded_inputs(graph)
    names = [graph.tensors[tensor].name for tensor in graph.inputs]
    expected = _session(tmp_path / "whole.onnx").run(None, dict(zip(names, inputs, strict=True)))
    found, _ = _run(tmp_path / "shards", graph, inputs)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_plan_of_another_model_is_refused(tmp_path):
    onnx.save(ZOO["squeezenet1_0"](image=79), str(tmp_path / "whole.onnx"))
    graph = load(tmp_path / "whole.onnx")
    plan = plan_pipeline(graph, load_cluster("pico_1mac"), method="single")
    with pytest.raises(InvalidPlan, match="not those of this model"):
        export_shards(tmp_path / "shards", load(branchy_model(tmp_path / "other.onnx")), plan)


def test_rows_are_stated(tmp_path):
    path = branchy_model(tmp_path / "whole.onnx")
    graph = load(path)
    stem = graph.ops[0]
    block = ShardBlock(0, 0, (0, 1), 8, (("left/..", 0, 3), ("right", 3, 8), ("idle", 8, 8)))
    shards = write_shards(tmp_path / "shards", graph, [block])
    names = [r"stage0_block0_left_\.\._[0-9a-f]{12}\.onnx", r"stage0_block0_right_[0-9a-f]{12}\.onnx"]
    assert all(re.fullmatch(name, shard.file) for name, shard in zip(names, shards, strict=True))
    assert [shard.inputs for shard in shards] == [{"x": (0, 4)}, {"x": (2, 8)}]
    assert [shard.outputs for shard in shards] == [{"r": (0, 3)}, {"r": (3, 8)}]
    node = onnx.load(str(tmp_path / "shards" / shards[0].file)).graph.node[0]
    pads = next(attribute.ints for attribute in node.attribute if attribute.name == "pads")
    assert (node.op_type, list(pads), stem.kind) == ("Conv", [1, 1, 0, 1], "Conv")
    assert extent(graph, stem.outputs[0]) == 8


def test_devices_with_names_that_files_cannot_have_keep_their_shards(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    everything = tuple(range(len(graph.ops)))
    shards = write_shards(tmp_path / "s", graph, [ShardBlock(0, 0, everything, 8, (("d 1", 0, 4), ("d/1", 4, 8)))])
    assert [shard.device for shard in shards] == ["d 1", "d/1"]
    rows = [onnx.load(tmp_path / "s" / shard.file).graph.input[0].type.tensor_type.shape.dim[2] for shard in shards]
    assert len({shard.file for shard in shards}) == 2
    assert [row.dim_value for row in rows] == [stop - start for start, stop in (s.inputs["x"] for s in shards)]


def test_exported_programs_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    from downset.formats.torch.read import load_exported

    graph = load_exported(torch.export.export(torch.nn.Conv2d(3, 4, 3).eval(), (torch.zeros(1, 3, 8, 8),)))
    with pytest.raises(UnsupportedError, match=r"torch\.onnx\.export"):
        export_shards(tmp_path / "s", graph, plan_pipeline(graph, QUICK, method="single"))
    assert not (tmp_path / "s").exists()


def test_an_earlier_export_leaves_nothing_behind(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    everything = tuple(range(len(graph.ops)))
    two = [ShardBlock(0, 0, everything, 8, (("a", 0, 4), ("b", 4, 8)))]
    one = [ShardBlock(0, 0, everything, 8, (("a", 0, 8),))]
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "mine.onnx").write_text("not ours")
    for blocks in (two, one):
        shards = write_shards(tmp_path / "shards", graph, blocks)
        written = {path.name for path in (tmp_path / "shards").iterdir()}
        assert written == {shard.file for shard in shards} | {"shards.json", "mine.onnx"}
