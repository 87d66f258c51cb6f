"""No changed `.pt2` file is proven of which PyTorch's own loader computes something else, and none raises an error of
Python's."""

import copy
import io
import json
import random

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from downset.equivalence.prove import prove  # noqa: E402
from downset.errors import DownsetError  # noqa: E402
from tests.effort import cases  # noqa: E402
from tests.equivalence.torch_mutants import (  # noqa: E402
    CERTIFICATE,
    MODEL,
    WEIGHTS,
    alike,
    as_json,
    changes,
    entries,
    programs,
    results,
    write,
)

EMPTY = json.dumps({"version": 1, "parts": {}}).encode()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    folder, files = tmp_path_factory.mktemp("programs"), {}
    for name, (program, inputs) in programs().items():
        torch.export.save(program, folder / f"{name}.pt2")
        files[name] = folder / f"{name}.pt2", inputs
    return files


def proven(path, other):
    try:
        return prove(path, other).proven
    except DownsetError:
        return False


def by_name(model):
    """The program with all arguments but the first ones given by their names."""
    other = copy.deepcopy(model)
    for node in other["graph_module"]["graph"]["nodes"]:
        for argument in node["inputs"][1:]:
            argument["kind"] = 2
    return other


@pytest.mark.parametrize("named", [False, True], ids=["by place", "by name"])
@pytest.mark.parametrize("name", ["kept", "written", "windows", "rows"])
def test_no_changed_program_is_proven_that_computes_something_else(saved, tmp_path, name, named):
    path, inputs = saved[name]
    content, draw = entries(path), random.Random(f"{name}{named}")
    model = json.loads(content[MODEL])
    if named:
        model = by_name(model)
        path = write(tmp_path / "named.pt2", {**content, MODEL: as_json(model)})
    wanted, refused = results(path, inputs), 0
    assert prove(path, path).proven
    tried = draw.sample(list(changes(model)), cases(150))
    for what, changed in tried:
        further = draw.choice([{}, {CERTIFICATE: EMPTY}])
        other = write(tmp_path / "o.pt2", {**content, MODEL: as_json(changed()), **further})
        if not proven(path, other):
            refused += 1
        else:
            found = results(other, inputs)
            assert isinstance(found, Exception) or alike(wanted, found), what
    assert refused > len(tried) / 3


def _edit(content, entry, change):
    said = json.loads(content[entry])
    change(said)
    content[entry] = json.dumps(said).encode()


def _weights_trade_places(content):
    def change(said):
        one, two = said["config"]["first.weight"], said["config"]["second.weight"]
        one["path_name"], two["path_name"] = two["path_name"], one["path_name"]

    _edit(content, WEIGHTS, change)


def _pickled_weights_first(content):
    """PyTorch reads the weights of older files before any others."""
    file = io.BytesIO()
    state = {}
    for name, payload in json.loads(content[WEIGHTS])["config"].items():
        value = torch.zeros(*_sizes(payload), dtype=torch.bfloat16 if name == "brain" else torch.float32)
        state[name] = nn.Parameter(value) if payload["is_param"] else value
    torch.save(state, file)
    content["data/weights/model.pt"] = file.getvalue()


def _sizes(payload):
    return [size["as_int"] for size in payload["tensor_meta"]["sizes"]]


def _states_share_bytes(content):
    def change(said):
        said["config"]["two"]["path_name"] = said["config"]["one"]["path_name"]

    _edit(content, WEIGHTS, change)


def _another_type(content):
    """The same values of a constant in a type by which PyTorch multiplies otherwise."""
    payload = json.loads(content[WEIGHTS])["config"]["brain"]
    file = f"data/weights/{payload['path_name']}"
    values = torch.frombuffer(bytearray(content[file]), dtype=torch.bfloat16).float()
    content[file] = values.numpy().tobytes()
    _edit(content, WEIGHTS, lambda said: said["config"]["brain"]["tensor_meta"].update(dtype=7))

    def retyped(said):
        said["graph_module"]["graph"]["tensor_values"]["b_brain"].update(dtype=7)

    _edit(content, MODEL, retyped)


def _in_place(content):
    """The result of a call in place is of the type of what it writes over."""

    def change(said):
        (node,) = (node for node in said["graph_module"]["graph"]["nodes"] if "add.Tensor" in node["target"])
        node["target"] = "torch.ops.aten.add_.Tensor"

    _edit(content, MODEL, change)


def _scales(content):
    """Scales from which places follow, besides the sizes."""

    def change(said):
        (node,) = (node for node in said["graph_module"]["graph"]["nodes"] if "upsample" in node["target"])
        node["inputs"] += [{"name": name, "arg": {"as_float": 8.0}, "kind": 1} for name in ("scales_h", "scales_w")]

    _edit(content, MODEL, change)


class Attacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        for name, state in (("one", torch.zeros(4)), ("two", torch.zeros(4)), ("brain", torch.randn(4).bfloat16())):
            self.register_buffer(name, state)
        self.register_buffer("other", torch.randn(4), persistent=False)

    def forward(self, x):
        self.one.mul_(2).sub_(x[0, 0, 0] * self.other)
        self.two.sub_(1)
        y = torch.ops.aten.upsample_nearest2d.default(self.second(self.first(x))[None], [16, 16])
        brain = torch.tanh(x.bfloat16())
        return y, self.one * self.two, brain * self.brain


ATTACKS = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _weights_trade_places,
        _pickled_weights_first,
        _states_share_bytes,
        _another_type,
        _in_place,
        _scales,
    )
}


class Mixed(nn.Module):
    def forward(self, x):
        return torch.sigmoid(torch.tanh(x.bfloat16()) + torch.tanh(x))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    torch.manual_seed(1)
    inputs, folder = (torch.randn(1, 4, 4),), tmp_path_factory.mktemp("attacked")
    torch.export.save(torch.export.export(Attacked().eval(), inputs).run_decompositions({}), folder / "whole.pt2")
    torch.export.save(torch.export.export(Mixed(), inputs), folder / "mixed.pt2")
    return folder, inputs


@pytest.mark.parametrize("certified", [False, True], ids=["plain", "certified"])
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attacked_file_is_proven(attacked, tmp_path, name, certified):
    folder, inputs = attacked
    path = folder / ("mixed.pt2" if name == "in place" else "whole.pt2")
    content = entries(path)
    assert prove(path, path).proven
    ATTACKS[name](content)
    other = write(tmp_path / "o.pt2", {**content, **({CERTIFICATE: EMPTY} if certified else {})})
    found = results(other, inputs)
    assert not isinstance(found, Exception), found
    assert not alike(results(path, inputs), found), "the attack is dead: this test shows nothing"
    assert not proven(path, other)


class Trained(nn.Module):
    """A normalisation in training, whose statistics are read behind it."""

    def __init__(self):
        super().__init__()
        for name, state in (("mean", torch.zeros(3)), ("var", torch.ones(3))):
            self.register_buffer(name, state)

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.var, training=True), self.mean * 2


@pytest.mark.parametrize("named", [False, True], ids=["by place", "by name"])
def test_no_file_is_proven_that_reads_statistics_before_they_are_written(tmp_path, named):
    inputs, path = (torch.randn(2, 3, 4),), tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Trained(), inputs), path)
    content = entries(path)
    model = json.loads(content[MODEL])
    model = by_name(model) if named else model
    path = write(path, {**content, MODEL: as_json(model)})
    graph = model["graph_module"]["graph"]
    assert [node["name"] for node in graph["nodes"]] == ["batch_norm", "mul"]
    graph["nodes"].reverse()
    other = write(tmp_path / "o.pt2", {**content, MODEL: as_json(model)})
    assert not alike(results(path, inputs), results(other, inputs))
    assert not proven(path, other)


def _in_sums(model, alpha):
    """The program of one convolution as the sum of two, each of half the channels that it reads."""
    graph = model["graph_module"]["graph"]
    (conv,) = graph["nodes"]
    source, weight, result = conv["inputs"][0]["arg"], conv["inputs"][1]["arg"], conv["outputs"]
    said, parts = graph["tensor_values"], {}

    def node(target, inputs, name):
        arguments = [{"name": key, "arg": value, "kind": 2 if key == "alpha" else 1} for key, value in inputs]
        output = [{"as_tensor": {"name": name}}]
        return {**conv, "name": name, "target": f"torch.ops.aten.{target}", "inputs": arguments, "outputs": output}

    nodes, made = [], conv["name"]
    for half in (0, 1):
        bounds = [(key, {"as_int": value}) for key, value in (("dim", 1), ("start", 2 * half), ("end", 2 * half + 2))]
        for what, value, kind in (("read", source, "slice_copy.Tensor"), ("cut", weight, "slice.Tensor")):
            name = f"{what}_{half}"
            said[name] = copy.deepcopy(said[value["as_tensor"]["name"]])
            said[name]["sizes"][1] = {"as_int": 2}
            parts[name] = {"of": value["as_tensor"]["name"], "box": [[1, 2 * half, 2 * half + 2]]}
            nodes.append(node(kind, [("self", value), *bounds], name))
        given = [
            (key, {"as_tensor": {"name": f"{what}_{half}"}}) for key, what in (("input", "read"), ("weight", "cut"))
        ]
        said[f"sum_{half}"] = said[made]
        parts[f"sum_{half}"] = {"of": made, "box": [], "terms": [2 * half, 2 * half + 2]}
        nodes.append(node("conv2d.default", given, f"sum_{half}"))
    both = [(key, {"as_tensor": {"name": f"sum_{half}"}}) for half, key in enumerate(("self", "other"))]
    further = [("alpha", {"as_int": alpha})] if alpha != 1 else []
    nodes.append({**node("add.Tensor", [*both, *further], made), "outputs": result})
    graph["nodes"] = nodes
    return json.dumps({"version": 1, "parts": parts}).encode()


@pytest.mark.parametrize("alpha", [1, 3])
def test_a_sum_of_products_is_proven_only_where_it_scales_nothing(tmp_path, alpha):
    torch.manual_seed(2)
    inputs, path = (torch.randn(1, 4, 6, 6),), tmp_path / "m.pt2"
    torch.export.save(torch.export.export(nn.Conv2d(4, 4, 3, bias=False).eval(), inputs), path)
    content = entries(path)
    model = json.loads(content[MODEL])
    content[CERTIFICATE] = _in_sums(model, alpha)
    other = write(tmp_path / "o.pt2", {**content, MODEL: as_json(model)})
    assert alike(results(path, inputs), results(other, inputs)) == (alpha == 1)
    assert prove(path, other).proven == (alpha == 1), prove(path, other).reason


class Row(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.register_buffer("index", torch.tensor([index]))

    def forward(self, x):
        return x + self.table(self.index)


def test_a_row_that_pytorch_refuses_is_not_proven_to_be_the_last_one(tmp_path):
    """ONNX's Gather counts negative places from the end; PyTorch's embedding does not."""
    files = []
    for index in (8, -1, 8):
        torch.manual_seed(0)
        files.append(tmp_path / f"{len(files)}.pt2")
        torch.export.save(torch.export.export(Row(index).eval(), (torch.zeros(1, 4),)), files[-1])
    assert proven(files[0], files[2])
    assert not proven(files[0], files[1])
