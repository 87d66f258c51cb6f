"""Merged networks as .onnx files: every one is proven and computes the same in ONNX Runtime, and nothing that computes
something else is proven, whatever its certificate says."""

import copy
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from downset.equivalence.prove import prove
from downset.formats.certificates import METADATA_KEY
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.rewrites.merge.families import FAMILIES, merge_families, merges_of
from tests.effort import cases
from tests.equivalence.merged_networks import MergeNet, every_merge, merging_networks, weights_of, with_weights
from tests.equivalence.mutants import ONNX, Mutant
from tests.equivalence.test_certificates import check_mutants, proven, same_in_onnx_runtime


def merged_file(path, other, families=tuple(FAMILIES)):
    """The number of merges in the file `other`, made from the one at `path`."""
    graph = load(path)
    merged, count = merge_families(graph, merges_of(graph), families)
    export_onnx(other, merged, range(len(merged.ops)))
    return count


def outputs(path, batch, seed=0):
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    shapes = {
        v.name: [batch if isinstance(extent, str) else extent for extent in v.shape] for v in session.get_inputs()
    }
    return session.run(None, {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()})


def interface(path):
    model = onnx.load(str(path))
    return [*model.graph.input], [*model.graph.output], [*model.opset_import]


@given(drawn=merging_networks(), families=st.sets(st.sampled_from(sorted(FAMILIES)), min_size=1))
@settings(max_examples=cases(120))
def test_every_merged_file_is_proven_and_computes_the_same(tmp_path_factory, drawn, families):
    net, ends = drawn
    folder = tmp_path_factory.mktemp("net")
    path, other = net.save(folder / "m.onnx", ends), folder / "r.onnx"
    if not merged_file(path, other, [name for name in FAMILIES if name in families]):
        return
    found = prove(path, other)
    assert found.proven, found.reason
    onnx.checker.check_model(onnx.load(str(other)), full_check=True)
    assert interface(path) == interface(other)
    for batch in (1, 3):
        if batch == 1 or net.batch == "batch":
            for ours, theirs in zip(outputs(other, batch), outputs(path, batch), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


def test_a_proof_names_its_condition_where_kernels_are_padded_or_pools_change_places(tmp_path):
    path, other = every_merge(tmp_path / "m.onnx"), tmp_path / "r.onnx"
    conditions = {}
    for family in FAMILIES:
        assert merged_file(path, other, [family]), family
        found = prove(path, other)
        assert found.proven, found.reason
        conditions[family] = (found.finite, found.exact)
    exact, rounded = (False, True), (True, False)
    assert conditions == {
        "stacked": exact,
        "pools swapped": rounded,
        "separables merged": exact,
        "padded": rounded,
    }
    # The condition is real: an infinite value times an added zero is NaN, where the original has numbers.
    merged_file(path, other, ["padded"])
    x = np.zeros((1, 3, 6, 5), np.float32)
    x[0, 0, 2, 2] = np.inf
    found = [onnxruntime.InferenceSession(str(each)).run(None, {"x0": x})[1] for each in (path, other)]
    assert np.isnan(found[1]).sum() > np.isnan(found[0]).sum()


@pytest.mark.parametrize("kind", sorted({*ONNX} - {"bodies"}))
@pytest.mark.parametrize("options", [{}, {"opset": 11, "constants": True}], ids=["17", "11"])
def test_what_is_proven_of_a_changed_merged_file_computes_the_same(tmp_path, kind, options):
    path, other = every_merge(tmp_path / "m.onnx", **options), tmp_path / "r.onnx"
    assert merged_file(path, other) >= 3 and prove(path, other).proven
    check_mutants(path, other, kind, tmp_path, every_one_counts=kind in ("interface", "constants"))


def kernels(model):
    """The merged kernels of a file, with the operator that reads each."""
    weights, merged = weights_of(model), [node for node in model.graph.node if "/merged" in node.name]
    return [(node, node.input[1], weights[node.input[1]]) for node in merged if node.op_type == "Conv"]


def test_tampered_kernels_are_rejected(tmp_path):
    """A kernel that lies one tap further, the kernels of two branches swapped, a bias that is missing or of another."""
    path, other = every_merge(tmp_path / "m.onnx"), tmp_path / "r.onnx"
    merged_file(path, other)
    model, tried = onnx.load(str(other)), set()
    for node, name, kernel in kernels(model):
        half = len(kernel) // 2
        swapped = np.concatenate([kernel[half:], kernel[:half]])
        changes = {
            "swapped": swapped,
            "one channel less": np.where(np.arange(len(kernel)).reshape(-1, 1, 1, 1) == 0, 0, kernel),
        }
        if kernel.shape[2] > 1:
            changes |= {
                f"shifted along {axis} by {step}": np.roll(kernel, step, axis) for axis in (2, 3) for step in (1, -1)
            }
        for what, value in changes.items():
            if not np.array_equal(value, kernel):
                changed = Mutant(what, with_weights(model, name, value.astype(np.float32)))
                assert not proven(path, changed.save(tmp_path / "t.onnx")), (node.name, what)
                tried.add(what.split()[0])
        if len(node.input) > 2:
            bias = weights_of(model)[node.input[2]]
            added = [("added", np.where(np.arange(len(bias)) == at, 1, bias)) for at in np.flatnonzero(bias == 0)]
            for what, value in (("zero", np.zeros_like(bias)), ("rolled", np.roll(bias, 1)), *added):
                if not np.array_equal(value, bias):
                    changed = Mutant(what, with_weights(model, node.input[2], value.astype(np.float32)))
                    assert not proven(path, changed.save(tmp_path / "t.onnx")), (node.name, what)
                    tried.add(what)
            bare = copy.deepcopy(model)
            (mine,) = [each for each in bare.graph.node if each.name == node.name]
            del mine.input[2:]
            if bias.any():
                assert not proven(path, Mutant("missing", bare).save(tmp_path / "t.onnx")), node.name
                tried.add("missing")
    assert tried == {"swapped", "one", "shifted", "zero", "rolled", "missing", "added"}


@pytest.mark.parametrize("name", ["pads", "strides", "dilations", "group", "count_include_pad", "axis"])
def test_changed_settings_of_merged_operators_are_rejected(tmp_path, name):
    path, other = every_merge(tmp_path / "m.onnx"), tmp_path / "r.onnx"
    merged_file(path, other)
    model, tried = onnx.load(str(other)), 0
    for place, node in enumerate(model.graph.node):
        for at, attribute in enumerate(node.attribute):
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                new = (
                    [value[0] + 1, *value[1:]]
                    if isinstance(value, list)
                    else 1 - value
                    if name != "group"
                    else value + 1
                )
                changed = copy.deepcopy(model)
                changed.graph.node[place].attribute[at].CopyFrom(helper.make_attribute(name, new))
                saved = Mutant(name, changed).save(tmp_path / "t.onnx")
                assert not proven(path, saved) or same_in_onnx_runtime(path, saved), (node.name, name)
                tried += 1
    assert tried


def test_no_certificate_makes_a_changed_kernel_right(tmp_path):
    path, other = every_merge(tmp_path / "m.onnx"), tmp_path / "r.onnx"
    merged_file(path, other)
    model = onnx.load(str(other))
    names = [name for node in onnx.load(str(path)).graph.node for name in node.output] + ["x0"]
    random = np.random.default_rng(0)
    (entry,) = [entry for entry in model.metadata_props if entry.key == METADATA_KEY]
    document = json.loads(entry.value)
    assert document["joined"] and prove(path, other).proven
    _, name, kernel = kernels(model)[0]
    for turn in range(80):
        said = copy.deepcopy(document)
        pieces = said["joined"][str(random.choice(sorted(said["joined"])))]
        piece = pieces[int(random.integers(len(pieces)))]
        match int(random.integers(4)):
            case 0:
                piece["of"] = str(random.choice(names))
            case 1:
                piece["before_pool"] = not piece.get("before_pool", False)
            case 2:
                pieces.reverse()
            case 3:
                pieces.append(copy.deepcopy(piece))
        changed = with_weights(model, name, np.roll(kernel, 1, 0) if turn % 2 else kernel)
        next(each for each in changed.metadata_props if each.key == METADATA_KEY).value = json.dumps(said)
        saved = Mutant("said", changed).save(tmp_path / "c.onnx")
        assert not proven(path, saved) or (turn % 2 == 0 and same_in_onnx_runtime(path, saved))


@pytest.mark.parametrize("options", [{}, {"opset": 11}], ids=["17", "11"])
def test_a_split_that_hands_out_other_channels_is_rejected(tmp_path, options):
    net = MergeNet(4, **options)
    x = net.input(2, (4, 4))
    path, other = (
        net.save(tmp_path / "m.onnx", [net.window(x, 2, [1, 1], [0] * 4) for _ in range(2)]),
        tmp_path / "r.onnx",
    )
    assert merged_file(path, other) == 1 and prove(path, other).proven
    model, tried = onnx.load(str(other)), 0
    for place, node in enumerate(model.graph.node):
        if node.op_type == "Split":
            changed = copy.deepcopy(model)
            results = changed.graph.node[place].output
            results[0], results[1] = results[1], results[0]
            assert not proven(path, Mutant("swapped", changed).save(tmp_path / "t.onnx")), node.name
            tried += 1
    assert tried


def test_windows_that_follow_the_size_do_not_merge_where_sizes_are_open(tmp_path):
    """SAME pads of a strided convolution follow the size of the image, and so do pads that only just agree."""

    def offers(made):
        net = MergeNet(1)
        x = net.input(2, (6, 6))
        ends = made(net, x)
        net.sizes |= dict.fromkeys(ends, (3, 3))
        graph = load(net.save(tmp_path / "m.onnx", ends))
        return bool(merges_of(graph)), bool(merges_of(graph, any_size=True))

    def same(net, x):
        attrs = {"strides": [2, 2], "auto_pad": "SAME_UPPER"}
        return [net.node("Conv", [x, net.constant(2, 2, k, k)], 2, kernel_shape=[k, k], **attrs) for k in (2, 3)]

    def padded(*ends):
        return lambda net, x: [net.window(x, 2, [3, 3], [1, 1, end, end], strides=(2, 2)) for end in ends]

    assert offers(same) == offers(padded(0, 1)) == (True, False)
    assert offers(padded(1, 1)) == (True, True)
