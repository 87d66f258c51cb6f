"""`.pt2` archives are data: read and written without PyTorch, and nothing that they bring runs unless it is trusted."""

import json
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from downset.errors import LoadError
from downset.formats.reading import load
from downset.formats.torch.read import load_exported
from downset.formats.writing import export
from downset.orders.plan import plan_order

MODEL, WEIGHTS, SAMPLES = "models/model.json", "data/weights/model_weights_config.json", "data/sample_inputs/model.pt"


class Network(torch.nn.Module):
    """Tied weights, a buffer that is a slice, a constant in the code, a result with several parts, a dictionary."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Linear(8, 4)
        self.again = self.last
        self.register_buffer("scale", torch.randn(4, 6)[1:3, ::2], persistent=False)
        self.register_buffer("short", torch.randn(3).to(torch.float16))

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        joined = torch.cat([y, torch.nn.functional.max_pool2d(y, 3, 1, 1)], 1)
        one, other = torch.split(joined, 8, 1)
        mean = (one * torch.sigmoid(other)).mean((2, 3)) + torch.tensor(3.0) * self.scale.sum() + self.short.sum()
        values, places = torch.topk(mean, 2)
        return {"a": self.last(mean), "b": (values, places), "c": self.again(torch.transpose(mean, 0, 1).T) + 0.5}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    program = torch.export.export(Network().eval(), (torch.randn(1, 3, 8, 8),))
    path = tmp_path_factory.mktemp("saved") / "m.pt2"
    torch.export.save(program, path)
    return program, path


@pytest.mark.parametrize("kind", ["zip", "script", "pickle", "other zip"])
def test_a_file_of_torch_save_is_told_how_to_be_exported(tmp_path, kind, fails):
    path, layer = tmp_path / "m.pt2", torch.nn.Linear(2, 2)
    if kind == "script":
        torch.jit.save(torch.jit.trace(layer, torch.zeros(1, 2)), path)
    elif kind == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("m/something", b"else")
    else:
        torch.save(layer.state_dict(), path, _use_new_zipfile_serialization=kind == "zip")
    called = "a zip archive without archive_format" if kind == "other zip" else "a file of torch.save holds weights"
    fails(5, "inspect", path, says=f"m.pt2 is not an exported program{' (' if kind == 'other zip' else ': '}{called}")
    with pytest.raises(LoadError, match=r"write one with torch\.export\.save\(torch\.export\.export\(model, "):
        load(path)


def edited(path, source, changes):
    """The archive with entries (by their name below its root) replaced by what the functions make of them."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            change = changes.get(name.partition("/")[2])
            new.writestr(name, old.read(name) if change is None else change(old.read(name)))
    return path


def edited_json(change):
    def apply(data):
        said = json.loads(data)
        change(said)
        return json.dumps(said).encode()

    return apply


def test_an_archive_is_the_program_that_pytorch_reads(saved):
    program, path = saved
    ours, theirs = load(path), load_exported(program)
    assert [(op.name, op.kind, dict(op.attrs)) for op in ours.ops] == [
        (op.name, op.kind, dict(op.attrs)) for op in theirs.ops
    ]
    for one, other in zip(ours.ops, theirs.ops, strict=True):
        for mine, expected in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
            assert [ours.tensors[t] for t in mine] == [theirs.tensors[t] for t in expected]
    assert [ours.tensors[t] for t in ours.inputs] == [theirs.tensors[t] for t in theirs.inputs]
    assert [ours.tensors[t] for t in ours.outputs] == [theirs.tensors[t] for t in theirs.outputs]
    expected = {theirs.tensors[t].name: theirs.constant(t) for t in theirs.constants}
    assert len(expected) > 10
    for tensor in ours.constants:
        np.testing.assert_array_equal(ours.constant(tensor), expected[ours.tensors[tensor].name])
        assert ours.constant(tensor).dtype == expected[ours.tensors[tensor].name].dtype


def test_reading_and_writing_import_no_torch(saved, tmp_path):
    _, path = saved
    code = (
        "import sys, downset as ds; g = ds.load(sys.argv[1]); o = ds.plan_order(g, memory='torch', method='kahn');"
        "ds.export(sys.argv[2], g, o); assert 'torch' not in sys.modules and 'pickle' not in dir(g)"
    )
    subprocess.run([sys.executable, "-c", code, path, tmp_path / "r.pt2"], check=True)


def test_a_reordered_archive_computes_the_same_in_pytorch(saved, tmp_path):
    program, path = saved
    graph = load(path)
    value = torch.randn(1, 3, 8, 8)
    order = plan_order(graph, method="kahn", memory="torch")
    assert order.steps != tuple(range(len(graph.ops)))
    export(tmp_path / "r.pt2", graph, order)
    again = torch.export.load(tmp_path / "r.pt2")
    assert [op.name for op in load_exported(again).ops] == [graph.ops[step].name for step in order.steps]
    for one, other in zip(*map(_leaves, (program.module()(value), again.module()(value))), strict=True):
        assert torch.equal(one, other)
    with zipfile.ZipFile(tmp_path / "r.pt2") as archive, (tmp_path / "r.pt2").open("rb") as file:
        for entry in archive.infolist():  # the data begins where weights can be mapped
            file.seek(entry.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            assert (entry.header_offset + 30 + name + extra) % 64 == 0


def _leaves(value):
    return torch.utils._pytree.tree_leaves(value)


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def pickled_weight(mark):
    def change(said):
        said["config"]["first.bias"]["use_pickle"] = True

    return {WEIGHTS: edited_json(change), "data/weights/weight_1": lambda _: pickle.dumps(Payload(mark), protocol=2)}


def pickled_samples(mark):
    return {SAMPLES: lambda _: pickle.dumps(Payload(mark), protocol=2)}


def evaluated_size(mark):
    code = f"__import__('os').mkdir({str(mark)!r})"

    def change(said):
        sizes = said["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
        sizes[0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 1}}}

    return {MODEL: edited_json(change)}


ATTACKS = {
    "pickled weight": (pickled_weight, "is pickled"),
    "size that is evaluated": (evaluated_size, "symbolic shape"),
    "pickled samples": (pickled_samples, None),
}
"""By name: what edits the archive, and what it is refused for (None: that part is not even read)."""


@pytest.mark.parametrize("name", ATTACKS)
def test_code_in_an_archive_runs_only_where_it_is_trusted(saved, tmp_path, fails, run, name):
    attack, refused = ATTACKS[name]
    mark, path = tmp_path / "it_ran", tmp_path / "m.pt2"
    edited(path, saved[1], attack(mark))
    for command in (["inspect", path], ["order", path], ["fit", path, "-o", tmp_path / "out.pt2"]):
        if refused is None:
            assert run(*command)[0] == 0
        else:
            fails(5, *command, says=refused)
        assert not mark.exists()
    _, out, err = run("inspect", path, "--trust")
    assert mark.exists(), "the payload is dead: this test shows nothing"
    assert "Traceback" not in out + err


def test_modules_that_an_archive_names_are_not_imported(saved, tmp_path, monkeypatch):
    """PyTorch imports the module that the tree of the results names."""
    mark = tmp_path / "it_ran"
    (tmp_path / "brought_along.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    monkeypatch.syspath_prepend(tmp_path)

    def change(said):
        signature = said["graph_module"]["module_call_graph"][0]["signature"]
        version, tree = json.loads(signature["out_spec"])
        key = {"__enum__": True, "fqn": "brought_along:Key", "name": "a"}
        tree["context"] = json.dumps([key, *json.loads(tree["context"])[1:]])
        signature["out_spec"] = json.dumps([version, tree])

    path = edited(tmp_path / "m.pt2", saved[1], {MODEL: edited_json(change)})
    graph = load(path)
    export(tmp_path / "r.pt2", graph, plan_order(graph, method="kahn", memory="torch"))
    assert not mark.exists()
    with pytest.raises(LoadError):
        load(path, trust=True)
    assert mark.exists(), "the payload is dead: this test shows nothing"


def _json_edits():
    def graph(said):
        return said["graph_module"]["graph"]

    yield "twice", lambda said: graph(said)["nodes"].append(graph(said)["nodes"][0])
    yield "nothing before makes it", lambda said: graph(said)["nodes"].reverse()
    yield "unknown element type", lambda said: graph(said)["tensor_values"]["x"].update(dtype=99)
    yield "not dense", lambda said: graph(said)["tensor_values"]["x"].update(layout=1)
    yield "negative size", lambda said: graph(said)["tensor_values"]["x"]["sizes"][0].update(as_int=-1)
    yield "schema 99", lambda said: said["schema_version"].update(major=99)
    yield "damaged", lambda said: graph(said)["nodes"][0]["inputs"][0].update(arg={})
    yield "damaged", lambda said: graph(said)["nodes"][0]["inputs"][3].update(arg={"as_ints": "x"})
    yield "impossibly large", lambda said: graph(said)["tensor_values"]["conv2d"]["sizes"][0].update(as_int=1 << 50)


@pytest.mark.parametrize(("says", "change"), list(_json_edits()))
def test_odd_archives_are_refused_in_one_line(saved, tmp_path, fails, says, change):
    path = edited(tmp_path / "m.pt2", saved[1], {MODEL: edited_json(change)})
    fails(5, "inspect", path, says=says if says != "twice" else "given to two values")


@pytest.mark.parametrize("field", ["strides", "sizes", "storage_offset"])
def test_weights_never_reach_outside_their_entry(saved, tmp_path, field):
    def change(said):
        meta = said["config"]["first.weight"]["tensor_meta"]
        meta[field] = {"as_int": 10**6} if field == "storage_offset" else [{"as_int": 999} for _ in range(4)]

    path = edited(tmp_path / "m.pt2", saved[1], {WEIGHTS: edited_json(change)})
    with pytest.raises(LoadError, match="damaged"):
        load(path)


def test_compressed_doubled_and_damaged_archives_are_refused(saved, tmp_path, fails):
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(saved[1]) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    fails(5, "inspect", path, says="compressed or encrypted")
    with zipfile.ZipFile(saved[1]) as old, zipfile.ZipFile(path, "w") as new, pytest.warns(UserWarning, match="Dupl"):
        for name in [*old.namelist(), old.namelist()[0]]:
            new.writestr(name, old.read(name))
    fails(5, "inspect", path, says="two entries have one name")
    data = saved[1].read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(data)
        for at in generator.integers(0, len(data), 40):
            damaged[at] = generator.integers(0, 256)
        path.write_bytes(damaged[: generator.integers(1, len(data) + 1)] if generator.random() < 0.3 else damaged)
        try:
            graph = load(path)
            for tensor in graph.constants:
                graph.constant(tensor)
        except LoadError as error:
            assert "\n" not in str(error)
