"""The zoo: every network loads and runs, and is the published one as far as figures and facts say."""

import json
import math
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest

from downset.formats.reading import load
from downset.graph.cost import op_macs
from downset.memory.liveness import lifetimes
from zoo import ZOO, counts, graph
from zoo.randwire_cifar import watts_strogatz

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

SMALL = {
    "inception_v3": {"image": 107},
    "vgg16": {"image": 32, "classifier": False},
    "yolov2": {"image": 64},
    "nasnet_large": {"image": 67, "filters": 24},
    "randwire_large": {"image": 64, "channels": 16},
    "nasnet_mobile": {"image": 64, "repeats": 1},
    "nasnet_a_large": {"image": 67, "channels": 24, "repeats": 1},
    "pnasnet_large": {"image": 67, "channels": 24, "repeats": 2, "following": 1},
    "amoebanet_large": {"image": 67, "channels": 24, "repeats": 1},
    "darts": {"image": 64, "layers": 5},
    "randwire_cifar10": {"image": 32},
    "randwire_cifar100": {"image": 32},
}
"""Options of a variant that runs fast; an image of 64 for what is not named."""

# MACs in millions, weights in millions, tolerance of the latter: torchvision's and the papers' figures. Folded batch
# normalisation leaves one bias where scale and shift were two, so weights agree to about 1 %.
PUBLISHED = {
    "inception_v3": (5711, 21.79, 0.01),
    "vgg16": (15470, 138.36, 0.01),
    "resnet34": (3664, 21.80, 0.01),
    "resnet50": (4089, 25.56, 0.01),
    "mobilenet_v1": (569, 4.24, 0.01),
    "mobilenet_v2": (300.8, 3.50, 0.01),
    "mobilenet_v3_large": (216.6, 5.48, 0.01),
    "yolov2": (17090, 50.98, 0.01),
    "yolov8n": (4370, 3.15, 0.02),
    "squeezenet1_0": (819, 1.248, 0.01),
    "densenet121": (2834, 7.98, 0.01),
    "nasnet_mobile": (564, 5.29, 0.01),
    "pnasnet_large": (25000, 86.1, 0.02),
}


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
    model = ZOO[name](**SMALL.get(name, {"image": 64}))
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
    found, (macs, weights, close) = counts(ZOO[name](weights=False)), PUBLISHED[name]
    assert found["macs"] / 1e6 == pytest.approx(macs, rel=0.005 if close < 0.02 else close)
    assert found["weights"] / 1e6 == pytest.approx(weights, rel=close)


def test_darts_has_the_published_weights():
    assert round(counts(ZOO["darts"](weights=False))["weights"] / 1e6, 1) == 4.7


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


def test_leaving_weights_out_leaves_the_rest_alone():
    whole, light = graph("mobilenet_v2", image=64), graph("mobilenet_v2", image=64, weights=False)
    assert (whole.tensors, whole.ops) == (light.tensors, light.ops)
    assert counts(ZOO["mobilenet_v2"](image=64)) == counts(ZOO["mobilenet_v2"](image=64, weights=False))


def units(model):
    """IOS's operators in order: (name, nodes); a name is bBLOCK/uUNIT."""
    found = {}
    for node in model.graph.node:
        found.setdefault("/".join(node.name.split("/")[:2]), []).append(node)
    return found


@pytest.mark.parametrize("name", ["inception_v3", "squeezenet", "nasnet_large", "randwire_large"])
def test_the_networks_of_the_stages_paper_are_its_graphs(name):
    """Operator by operator against the facts, where they are at hand; the counts of its Table 2 always."""
    model = ZOO[name](weights=False)
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
        kinds = [part.op_type for part in parts if part.op_type not in ("Add", "Sum", "Concat", "Identity")]
        geometry = [
            {a.name: onnx.helper.get_attribute_value(a) for a in part.attribute}
            for part in parts
            if part.op_type in ("Conv", "MaxPool", "AveragePool")
        ]
        subs = fact.get("sub", [fact])
        names = {
            "conv": ["Conv"],
            "relu": ["Relu"],
            "pool_max": ["MaxPool"],
            "pool_avg": ["AveragePool"],
            "pool_global_avg": ["GlobalAveragePool"],
            "identity": [],
        }
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


def padded_bytes(tensor):
    """float32 with channels padded to a multiple of 4, as GPU delegates store them."""
    channels = tensor.shape[1]
    return tensor.nbytes // channels * (-(-channels // 4) * 4)


@pytest.mark.parametrize(
    ("name", "file", "largest", "naive"),
    [
        ("mobilenet_v1", "mobilenet_v1_1.0_224", 3211264, 19.248),
        ("mobilenet_v2", "mobilenet_v2_1.0_224", 4816896, 26.313),
        ("deeplab_v3", "deeplabv3_257_mv_gpu", 3195072, 48.642),
    ],
)
def test_the_intermediates_of_the_memory_paper_come_out_exactly(name, file, largest, naive):
    """`naive` and the paper's other figures follow from these records; MiB as its Table 1 prints them."""
    network = graph(name, fused=True, weights=False)
    found = lifetimes(network, range(len(network.ops)), "paper")
    tensor_of = {record: network.tensors[t] for t, record in enumerate(found.record_of) if record >= 0}
    ours = [(r.start, r.stop, padded_bytes(tensor_of[i])) for i, r in enumerate(found.records)]
    assert max(nbytes for _, _, nbytes in ours) == largest
    assert round(sum(nbytes for _, _, nbytes in ours) / 2**20, 3) == naive
    if (SHARED / "records").exists():
        rows = (SHARED / "records" / f"{file}.csv").read_text().split()[1:]
        assert sorted(ours) == sorted(tuple(map(int, row.split(",")[1:])) for row in rows)


def wiring(network, skipped=()):
    """By operator: kind, shape of the result with channels last, and which results it reads."""
    made, found = {tensor: -1 - i for i, tensor in enumerate(network.inputs)}, []
    for op in network.ops:
        read = sorted(made[tensor] for tensor in set(op.inputs) if tensor in made)
        if op.kind in skipped:
            made[op.outputs[0]] = read[0]
            continue
        shape = network.tensors[op.outputs[0]].shape
        made[op.outputs[0]] = len(found)
        if network.source.format != "tflite":
            shape = (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
        found.append((op.kind.split("::")[-1].replace("FusedConv", "Conv"), shape, read))
    return found


def test_swiftnet_is_the_published_file():
    path = SHARED.parent / "models" / "swiftnet_hpd_vwwc224_uint8.tflite"
    ours = wiring(graph("swiftnet_hpd", fused=True, weights=False), skipped=("Flatten",))
    assert len(ours) == 84
    if path.exists():
        assert ours == wiring(load(path), skipped=("Split",))


def test_swiftnet_has_the_multiplications_of_the_published_file():
    path = SHARED.parent / "models" / "swiftnet_hpd_vwwc224_uint8.tflite"
    ours = [
        op_macs(network, op) for network in [graph("swiftnet_hpd", fused=True, weights=False)] for op in network.ops
    ]
    ours = [macs for macs in ours if macs]
    assert sum(ours) == 56_156_504 == counts(ZOO["swiftnet_hpd"](weights=False))["macs"]
    if path.exists():
        published = load(path)
        assert ours == [macs for op in published.ops if (macs := op_macs(published, op))]


def test_darts_has_the_weights_of_its_authors_pretrained_model():
    """4.719 million: behind a pointwise or full convolution theirs have a scale and a shift for each channel, ours a
    bias that they are folded into."""
    network = graph("darts", weights=False)
    biases = sum(
        network.tensors[op.inputs[2]].shape[0] for op in network.ops if op.kind == "Conv" and len(op.inputs) > 2
    )
    assert counts(ZOO["darts"](weights=False))["weights"] + biases == 4_718_752


@pytest.mark.parametrize("name", ["nasnet_mobile", "pnasnet_large", "amoebanet_large", "darts_cell"])
def test_searched_cells_are_wired_as_the_published_definitions(name):
    network = graph(name, weights=False, **({"following": 4} if name == "pnasnet_large" else {}))
    ours = wiring(network, skipped=("Flatten",))
    expected = {"nasnet_mobile": 714, "pnasnet_large": 811, "amoebanet_large": 873, "darts_cell": 47}
    assert len(ours) == expected[name]
    if not (SHARED / "orders").exists():
        return
    facts = json.loads((SHARED / "orders" / f"{name}.json").read_text())
    kinds = {
        "CONV": "Conv",
        "DW": "Conv",
        "RELU": "Relu",
        "ADD": "Add",
        "CONCAT": "Concat",
        "AVG": "AveragePool",
        "AVG1": "AveragePool",
        "IDS": "AveragePool",
        "MAX": "MaxPool",
        "PADCROP": "Pad",
        "GAP": "GlobalAveragePool",
        "FC": "Gemm",
    }
    made = {tensor: -1 - i for i, tensor in enumerate(facts["inputs"])}
    for position, (op, (kind, shape, read)) in enumerate(zip(facts["ops"], ours, strict=True)):
        theirs = facts["tensors"][op["outs"][0]]["shape"]
        made[op["outs"][0]] = position
        assert (kind, math.prod(shape), read) == (
            kinds[op["name"]],
            math.prod(theirs),
            sorted(made[tensor] for tensor in set(op["ins"])),
        )


def test_random_graphs_are_connected_and_seeded():
    for seed in range(20):
        earlier = watts_strogatz(32, 4, 0.75, Random(seed))
        assert earlier == watts_strogatz(32, 4, 0.75, Random(seed))
        assert sum(map(len, earlier)) == 64, "rewiring keeps the number of edges"
        reached = {0}
        for _ in range(32):
            for node, others in enumerate(earlier):
                if node in reached or reached & set(others):
                    reached |= {node, *others}
        assert len(reached) == 32
    assert watts_strogatz(32, 4, 0.75, Random(0)) != watts_strogatz(32, 4, 0.75, Random(1))
