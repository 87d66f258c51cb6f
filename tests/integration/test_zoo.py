"""The zoo: every network loads and runs, and is the published one as far as figures and facts say."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from downset.load import load
from experiments.zoo import ZOO, counts

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

SMALL = {
    "inception_v3": 107, "squeezenet": 64, "vgg16": 224, "yolov2": 64,
}  # fmt: skip
"""Smallest images that leave something to the last layers; 64 for what is not named."""

# MACs in millions, weights in millions: torchvision's and the papers' figures. Folded batch normalisation leaves one
# bias where scale and shift were two, so weights agree to within 1 %.
PUBLISHED = {
    "inception_v3": (5711, 21.79), "vgg16": (15470, 138.36), "resnet34": (3664, 21.80), "resnet50": (4089, 25.56),
    "mobilenet_v1": (569, 4.24), "mobilenet_v2": (300.8, 3.50), "mobilenet_v3_large": (216.6, 5.48),
    "yolov2": (17090, 50.98),
}  # fmt: skip


@cache
def full(name):
    return ZOO[name]()


def session(model, path):
    onnx.save(model, str(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(model, path):
    running = session(model, path)
    random = np.random.default_rng(1)
    feeds = {i.name: random.standard_normal(i.shape, dtype=np.float32) for i in running.get_inputs()}
    return running.run(None, feeds)


@pytest.mark.parametrize("name", ZOO)
def test_every_network_loads_and_runs_with_sane_numbers(tmp_path, name):
    model = ZOO[name](image=SMALL.get(name, 64))
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True)
    for result in run(model, tmp_path / "m.onnx"):
        assert np.isfinite(result).all()
        assert result.std() > 1e-6, "constant outputs would make every comparison pass"
        assert abs(result).max() < 1e6
    graph = load(tmp_path / "m.onnx")
    assert len(graph.ops) == counts(model)["ops"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_macs_and_weights_are_the_published_ones(name):
    found, (macs, weights) = counts(full(name)), PUBLISHED[name]
    assert found["macs"] / 1e6 == pytest.approx(macs, rel=0.005)
    assert found["weights"] / 1e6 == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize("name", ["squeezenet", "mobilenet_v2"])
def test_seeds_decide_the_weights_and_nothing_else(name):
    one, same, other = ZOO[name](seed=3, image=64), ZOO[name](seed=3, image=64), ZOO[name](seed=4, image=64)
    assert one.SerializeToString() == same.SerializeToString() != other.SerializeToString()
    assert [n.SerializeToString() for n in one.graph.node] == [n.SerializeToString() for n in other.graph.node]


@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet"])
def test_fused_activations_compute_the_same(tmp_path, name):
    apart = run(ZOO[name](image=64), tmp_path / "a.onnx")
    fused = run(ZOO[name](image=64, fused=True), tmp_path / "f.onnx")
    for one, other in zip(apart, fused, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_batch_normalisation_stands_beside_every_convolution():
    kinds = [node.op_type for node in ZOO["resnet34"](image=64, batch_norm=True).graph.node]
    assert kinds.count("BatchNormalization") == kinds.count("Conv") == 36


def units(model):
    """IOS's operators in order: (name, nodes); a name is bBLOCK/uUNIT."""
    found = {}
    for node in model.graph.node:
        found.setdefault("/".join(node.name.split("/")[:2]), []).append(node)
    return found


@pytest.mark.parametrize(
    "name", [n for n in ("inception_v3", "squeezenet", "nasnet_large", "randwire_large") if n in ZOO]
)
def test_the_networks_of_the_stages_paper_are_its_graphs(name):
    """Operator by operator against the facts, where they are at hand; the counts of its Table 2 always."""
    model = full(name)
    ours = units(model)
    expected = {
        "inception_v3": (119, 13),
        "squeezenet": (50, 12),
        "nasnet_large": (374, 25),
        "randwire_large": (120, 6),
    }
    assert (len(ours), len({unit.split("/")[0] for unit in ours})) == expected[name]
    if not (SHARED / "ios").exists():
        return
    facts = json.loads((SHARED / "ios" / f"{name}.json").read_text())
    shapes = {v.name: v.type for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    shapes |= {v.name: v.type for v in (*model.graph.output, *model.graph.input)}
    number = {"input": facts["input"]["id"]}  # tensor name -> the fact's node
    nodes = [(block, node) for block, part in enumerate(facts["blocks"]) for node in part["nodes"]]
    for (unit, parts), (block, fact) in zip(ours.items(), nodes, strict=True):
        assert unit.startswith(f"b{block}/")
        inner = {out for part in parts for out in part.output}
        read = [number[item] for part in parts for item in part.input if item in number and item not in inner]
        assert sorted(read) == sorted(i for term in fact["inputs"] for i in term), unit
        number[parts[-1].output[0]] = fact["id"]
        dims = shapes[parts[-1].output[0]].tensor_type.shape.dim
        assert [d.dim_value for d in dims][1:] == fact["out_shape"], unit
        kinds = [part.op_type for part in parts if part.op_type not in ("Add", "Sum", "Concat")]
        geometry = [
            {a.name: onnx.helper.get_attribute_value(a) for a in part.attribute} for part in parts
            if part.op_type in ("Conv", "MaxPool", "AveragePool")
        ]  # fmt: skip
        subs = fact.get("sub", [fact])
        names = {"conv": ["Conv"], "relu": ["Relu"], "pool_max": ["MaxPool"], "pool_avg": ["AveragePool"],
                 "pool_global_avg": ["GlobalAveragePool"], "identity": []}  # fmt: skip
        wanted = [kind for sub in subs for kind in names[sub["kind"]] + (["Relu"] if sub.get("act") == "relu" else [])]
        assert kinds == wanted, unit
        for theirs, attrs in zip(
            [s for s in subs if "k" in s and s["kind"] != "pool_global_avg"], geometry, strict=True
        ):
            assert list(attrs["kernel_shape"]) == theirs["k"]
            assert list(attrs["strides"]) == theirs["s"]
            assert list(attrs["pads"]) == theirs["p"] * 2
            assert attrs.get("group", 1) == theirs.get("g", 1)
        sums = [part for part in parts if part.op_type in ("Add", "Sum")]
        assert [len(part.input) for part in sums] == [len(term) for term in fact["inputs"] if len(term) > 1], unit
        assert any(part.op_type == "Concat" for part in parts) == (len(fact["inputs"]) > 1), unit
    assert math.prod(facts["input"]["shape"]) > 0
