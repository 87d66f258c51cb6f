"""Strips of rows in exported programs: PyTorch's own loader computes the same from the file in strips, a proof says so,
and it says so of no file that computes something else."""

import gc
import json
import random
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812

import downset as ds  # noqa: E402
from downset.equivalence.prove import prove  # noqa: E402
from downset.errors import DownsetError, UnsupportedError  # noqa: E402
from downset.formats.reading import load  # noqa: E402
from downset.formats.torch.strip_form import strip_form, strip_rows  # noqa: E402
from downset.formats.torch.write import export_torch  # noqa: E402
from downset.graph.cost import row_form  # noqa: E402
from downset.partial.rewrite import InStrips, in_strips  # noqa: E402
from downset.partial.segments import computed_whole, find_segments  # noqa: E402
from tests.effort import LONG, cases  # noqa: E402
from tests.torch_networks import drawn_file, profiled_peaks, saved  # noqa: E402


def rows_of(graph):
    return strip_rows(graph, row_form(graph, halos_required=False))


def write_strips(path, output, draw):
    """Write the file with a segment drawn in strips; None where the network has none."""
    graph = load(path)
    form = rows_of(graph)
    segments = list(find_segments(graph, form, most_crossing=4))
    while segments:
        segment = segments.pop(draw.randrange(len(segments)))
        most = min(form.rows[tensor] for tensor in segment.results)
        free = frozenset(index for index in segment.operators if draw.random() < 0.2)
        part = InStrips(segment.first, segment.stop, draw.randint(2, min(most, 7)) if most > 1 else 1, free)
        try:
            striped = strip_form(in_strips(graph, [part], form=form))
        except UnsupportedError:  # some rows are of padding alone
            continue
        export_torch(output, striped, range(len(striped.ops)))
        return striped
    return None


def outputs_of(path, value):
    with torch.no_grad():
        outputs = torch.export.load(path).module()(value.clone())
    return [one.numpy() for one in (outputs if isinstance(outputs, (tuple, list)) else [outputs])]


def same(path, other, value):
    """Whether PyTorch computes the same up to rounding; not where it refuses the other file."""
    try:
        pairs = zip(outputs_of(path, value), outputs_of(other, value), strict=True)
    except Exception:  # PyTorch's loader raises errors of all kinds
        return False
    return all(np.allclose(one, two, rtol=1e-4, atol=1e-5 * max(np.abs(one).max(), 1e-6)) for one, two in pairs)


def test_random_networks_in_strips_compute_the_same_and_are_proven(tmp_path):
    """Convolutions, pools, in-place calls, sums and concatenations, in PyTorch's own module of the file."""
    draw, written = random.Random(3), 0
    for seed in range(cases(30)):
        path, shape = drawn_file(tmp_path / f"{seed}.pt2", 100 + seed)
        for number in range(2):
            output = tmp_path / f"{seed}_{number}.pt2"
            if write_strips(path, output, draw) is None:
                continue
            written += 1
            assert same(path, output, torch.randn(shape)), (seed, number)
            proof = prove(path, output)
            assert proof.proven, (seed, number, proof.reason)
    assert written >= cases(40)


class Tokens(torch.nn.Module):
    """A transformer's layer: `spelt` attention in products, else PyTorch's own with a bias of rows as its mask."""

    def __init__(self, spelt):
        super().__init__()
        self.spelt, self.norm, self.bias = spelt, torch.nn.LayerNorm(16), torch.nn.Parameter(torch.randn(20, 20))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*sizes) for sizes in ((16, 16),) * 3 + ((16, 40), (40, 16)))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (layer(y).view(1, 20, 2, 8).transpose(1, 2) for layer in self.layers[:3])
        if self.spelt:
            z = torch.softmax((q * 0.3) @ k.transpose(-2, -1) + self.bias, -1) @ v
        else:
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        x = x + z.transpose(1, 2).reshape(1, 20, 16)
        return x + self.layers[4](F.gelu(self.layers[3](x), approximate="tanh") * 2.0)


class Decoder(torch.nn.Module):
    """Transposed convolutions with even and uneven pads, a resize, a division of channels, and a stride of 2."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.Conv2d(3, 2, 5, padding=2)
        self.up = torch.nn.ConvTranspose2d(4, 4, 3, 2, 1, 1)
        self.wide = torch.nn.ConvTranspose2d(4, 3, 4, 2, 1)

    def forward(self, x):
        one, other = torch.split(F.hardswish(self.first(x)), 4, 1)
        y = F.interpolate(self.up(one * torch.sigmoid(other)), scale_factor=2)
        return self.last(F.leaky_relu(self.wide(F.max_pool2d(y, 3, 1, 1) + 0.5), 0.2))


class Causal(torch.nn.Module):
    """Attention whose mask follows from the place, with heads that share keys and without."""

    def __init__(self):
        super().__init__()
        self.read = torch.nn.ModuleList(torch.nn.Linear(16, width) for width in (16, 16, 16, 8, 8))

    def forward(self, x):
        q, k, v, shared, values = (layer(x).view(1, 20, -1, 4).transpose(1, 2) for layer in self.read)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.6)
        y = F.scaled_dot_product_attention(y, shared, values, enable_gqa=True)
        y = F.scaled_dot_product_attention(y, shared, values, is_causal=True, enable_gqa=True)
        return torch.sigmoid(y.transpose(1, 2).reshape(1, 20, 16))


class MatrixCalls(torch.nn.Module):
    """Layers as GPT-2 writes them: sums and products of matrices, with a vector or a matrix added, and batches."""

    def __init__(self):
        super().__init__()
        sizes = ((16, 48), (16, 64), (64, 16))
        self.weights = torch.nn.ParameterList(torch.randn(size) * size[0] ** -0.5 for size in sizes)
        self.added = torch.nn.ParameterList(torch.randn(*size[1:]) for size in sizes)

    def forward(self, x):
        q, k, v = torch.addmm(self.added[0], x.view(-1, 16), self.weights[0]).view(1, 20, 48).split(16, 2)
        q, k, v = (one.view(20, 4, 4).permute(1, 0, 2) for one in (q, k, v))
        y = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, -1), v).permute(1, 0, 2).reshape(20, 16)
        wide = F.gelu(torch.addmm(self.added[1], y, self.weights[1]), approximate="tanh")
        return torch.addmm(y, wide, self.weights[2]).relu() + torch.mm(y, self.weights[0][:, :16])


class Selections(torch.nn.Module):
    """A vision transformer's block: queries, keys and values of one layer, and the first token of the result."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*sizes) for sizes in ((16, 48), (48, 16), (16, 64), (64, 16)))

    def forward(self, x):
        parts = self.layers[0](x).reshape(1, 20, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 20, 16)
        z = F.scaled_dot_product_attention(parts[1], parts[0], parts[-1]).transpose(1, 2).reshape(1, 20, 16)
        x = x + y + z
        x = x + self.layers[3](F.gelu(self.layers[2](x)))
        return x[:, 0] + self.layers[3](F.silu(self.layers[2](x)))[:, -1], x.mean(-1)[:, 7]


class Everyday(torch.nn.Module):
    """What models of packages are made of: places that turn, sums in place, slices of columns and rows, casts."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.register_buffer("place", torch.randn(20, 8))

    def forward(self, x):
        y = self.layer(x)
        y += x
        one, two = y[..., :8], y[..., 8:]
        y = torch.cat([one * self.place.cos() - two * self.place.sin(), two], -1).contiguous()
        y = y.to(torch.float64).mul(torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-3)).float()
        y.mul_(0.5).sub_(x)
        return torch.sigmoid(self.layer(y[:, 3:19])), torch.zeros(4, dtype=torch.bool) & torch.ones(4, dtype=torch.bool)


class Lookups(torch.nn.Module):
    """Rows of tables for tokens, which are computed, and for their places."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(30, 16, padding_idx=0), torch.nn.Embedding(20, 16)
        self.wide, self.narrow = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.register_buffer("place", torch.arange(20))

    def forward(self, x):
        tokens = (x[..., 0] * 9).abs().clamp(max=29).to(torch.int64)
        y = self.tokens(tokens) + self.places(self.place)
        return y + self.narrow(F.gelu((1.5 - self.wide(y)).clamp(max=2.0)))


NETWORKS = {
    "lookups": lambda: (Lookups(), (1, 20, 16)),
    "products": lambda: (Tokens(True), (1, 20, 16)),
    "attention": lambda: (Tokens(False), (1, 20, 16)),
    "causal": lambda: (Causal(), (1, 20, 16)),
    "matrix calls": lambda: (MatrixCalls(), (1, 20, 16)),
    "selections": lambda: (Selections(), (1, 20, 16)),
    "everyday": lambda: (Everyday(), (1, 20, 16)),
    "decoder": lambda: (Decoder(), (1, 3, 22, 20)),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_strips_of_tokens_and_decoders_are_proven(tmp_path, network):
    torch.manual_seed(1)
    module, shape = NETWORKS[network]()
    path, draw, kinds = saved(tmp_path / "m.pt2", module, *shape), random.Random(5), set()
    for number in range(14 if network in ("selections", "everyday", "lookups") else 8 if LONG else 5):
        striped = write_strips(path, tmp_path / f"{number}.pt2", draw)
        kinds |= {op.kind for op, place in zip(striped.ops, striped.source.op_index, strict=True) if place < 0}
        assert same(path, tmp_path / f"{number}.pt2", torch.randn(shape))
        assert prove(path, tmp_path / f"{number}.pt2").reason == ""
    assert {one for one in whole_calls(path) if "assert" not in one} <= {
        *("zeros", "ones", "and_1", "cos", "sin", "embedding_1"),  # which read constants alone
    }
    wanted = {
        "lookups": {"Gather", "aten::clamp.default", "aten::rsub.Scalar"},
        "products": {"MatMul", "Softmax", "LayerNormalization", "Gemm"},
        "attention": {"aten::scaled_dot_product_attention.default", "aten::gelu.default"},
        "causal": {"aten::scaled_dot_product_attention.default", "aten::tril.default"},
        "matrix calls": {"Gemm", "MatMul", "Softmax", "aten::gelu.default"},
        "selections": {"aten::select.int", "aten::unbind.int", "Gelu"},
        "everyday": {"aten::slice.Tensor", "aten::add_.Tensor", "aten::to.dtype", "aten::rsqrt.default"},
        "decoder": {"ConvTranspose", "aten::upsample_nearest2d.vec", "Split", "Pad", "MaxPool"},
    }
    assert wanted[network] <= kinds


def edited(path, output, change):
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(output, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith("models/model.json") else data)
    return output


def drawn_change(draw):
    """A change of one number, of one tensor that a call reads, or of an operator."""

    def change(data):
        model = json.loads(data)
        graph = model["graph_module"]["graph"]
        node = draw.choice(graph["nodes"])
        sizes = {name: repr(meta["sizes"]) for name, meta in graph["tensor_values"].items()}
        places = [argument for argument in node["inputs"] if not argument["arg"].keys() & {"as_none", "as_bool"}]
        content = draw.choice(places)["arg"]
        ((kind, value),) = content.items()
        if kind == "as_tensor":
            fits = [name for name in sizes if sizes[name] == sizes[value["name"]]]
            content[kind] = {"name": draw.choice(fits)}
        elif kind == "as_tensors":
            value[draw.randrange(len(value))] = draw.choice(value)
        elif kind == "as_ints":
            value[draw.randrange(len(value))] += draw.choice([-1, 1])
        elif kind == "as_int":
            content[kind] = value + draw.choice([-1, 1])
        else:
            content[kind] = 0.25
        return json.dumps(model).encode()

    return change


def test_a_mask_of_any_size_that_a_file_states_takes_no_memory(tmp_path):
    torch.manual_seed(1)
    module, shape = NETWORKS["causal"]()
    path, draw, tried = saved(tmp_path / "m.pt2", module, *shape), random.Random(5), 0

    def huge(data):
        nonlocal tried
        model = json.loads(data)
        graph = model["graph_module"]["graph"]
        for node in graph["nodes"]:
            if node["target"].split(".")[-2] in ("new_ones", "tril"):
                tried += 1
                (result,) = node["outputs"]
                meta = graph["tensor_values"][result["as_tensor"]["name"]]
                meta["sizes"] = [{"as_int": 1 << 17}] * len(meta["sizes"])
                meta["strides"] = [{"as_int": 1 << 17}, {"as_int": 1}][-len(meta["sizes"]) :]
                for argument in node["inputs"]:
                    if argument["name"] == "size":
                        argument["arg"]["as_ints"] = [1 << 17] * len(argument["arg"]["as_ints"])
        return json.dumps(model).encode()

    while not tried:
        write_strips(path, tmp_path / "s.pt2", draw)
        edited(tmp_path / "s.pt2", tmp_path / "c.pt2", huge)
    tracemalloc.start()
    try:
        assert prove(path, tmp_path / "c.pt2").reason
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("network", ["causal", "decoder", "everyday", "matrix calls", "selections"])
def test_no_changed_file_is_proven_that_computes_something_else(tmp_path, network):
    torch.manual_seed(2)
    module, shape = NETWORKS[network]()
    path, draw = saved(tmp_path / "m.pt2", module, *shape), random.Random(9)
    changed = refused = 0
    for number in range(cases(50)):
        if number % 10 == 0:
            write_strips(path, tmp_path / "s.pt2", draw)
        other = edited(tmp_path / "s.pt2", tmp_path / "c.pt2", drawn_change(draw))
        try:
            proven = prove(path, other).proven
        except DownsetError:
            proven = False
        if proven:
            assert same(path, other, torch.randn(shape)), number
        else:
            refused += 1
        changed += 1
    assert refused > changed / 3


def test_fit_ships_strips_that_hold_no_more_than_planned(tmp_path, run):
    """The bytes are those that PyTorch's profiler reports of its own module of the file that ships."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(16, 16, 3, padding=1)]
    path = saved(tmp_path / "m.pt2", torch.nn.Sequential(*layers, torch.nn.MaxPool2d(4)), 1, 3, 64, 64)
    result = ds.fit(path, output=tmp_path / "f.pt2", strips=8, time_limit_s=3)
    assert result.shipped == "strips" and result.outputs.proven and result.outputs.rounds_alike
    assert result.measured.after < result.measured.before / 2
    assert result.measured.after <= result.arena.after
    (profiled,) = profiled_peaks([(tmp_path / "f.pt2", (1, 3, 64, 64))])
    assert abs(profiled - result.measured.after) <= max(1024, profiled / 100)
    assert run("verify", path, tmp_path / "f.pt2")[0] == 0


def whole_calls(path):
    graph = load(path)
    return {graph.ops[index].name for index in computed_whole(graph, rows_of(graph))}


class Written(torch.nn.Module):
    """Calls that write into the caller's input, and into a value of which another is a view."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        y = self.layer(x)
        z = y.transpose(2, 3)
        y.relu_()
        return torch.sigmoid(z), x.mul_(2.0)


def test_calls_that_write_into_what_others_see_are_computed_whole(tmp_path):
    path = saved(tmp_path / "m.pt2", Written(), 1, 3, 8, 8)
    assert {"relu_", "sigmoid", "mul_"} <= whole_calls(path)
    reason = prove(path, path).reason
    assert "writes into what others read by another name" in reason


@pytest.mark.parametrize("causal", [False, True])
def test_attention_whose_queries_are_its_keys_is_computed_whole(tmp_path, causal):
    class Own(torch.nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, is_causal=causal)

    assert whole_calls(saved(tmp_path / "m.pt2", Own(), 1, 2, 8, 4)) == {"scaled_dot_product_attention"}


class Grid(torch.nn.Module):
    """Rows and columns of its weight hold the same numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("grid", torch.arange(4.0)[:, None] + torch.arange(4.0))

    def forward(self, x):
        return F.max_pool2d(x, 1) * self.grid


@pytest.mark.parametrize("argument", [("dim", 1), ("dim", 4), ("step", 0)])
def test_rows_of_a_weight_are_those_that_the_call_cuts_out(tmp_path, argument):
    """The sizes in the file are only statements."""
    path, striped = saved(tmp_path / "m.pt2", Grid(), 1, 2, 4, 4), tmp_path / "s.pt2"
    graph = load(path)
    rows = strip_form(in_strips(graph, [InStrips(0, len(graph.ops), 4)], form=rows_of(graph)))
    export_torch(striped, rows, range(len(rows.ops)))
    assert prove(path, striped).proven

    def change(data):
        model, (name, value) = json.loads(data), argument
        cuts = [one for one in model["graph_module"]["graph"]["nodes"] if one["target"].endswith(".slice.Tensor")]
        assert len(cuts) == 4
        for cut in cuts:
            cut["inputs"] = [one for one in cut["inputs"] if one["name"] != name]
            cut["inputs"].append({"name": name, "arg": {"as_int": value}, "kind": 2})
        return json.dumps(model).encode()

    other = edited(striped, tmp_path / "o.pt2", change)
    assert not same(path, other, torch.randn(1, 2, 4, 4))
    assert not prove(path, other).proven


def test_a_file_that_pytorch_reads_is_not_written_in_strips(tmp_path):
    path = saved(tmp_path / "m.pt2", torch.nn.Conv2d(3, 8, 3, padding=1), 1, 3, 16, 16)
    result = ds.fit(path, strips=4, trust=True, time_limit_s=1)
    assert any("is written in strips without trust=True" in note for note in result.notes)


def test_who_reads_an_overwritten_value_by_an_older_name_reads_the_new_one(tmp_path):
    class Twice(torch.nn.Module):
        def forward(self, x):
            y = x + x
            z = torch.relu_(y)
            return F.hardtanh_(z, 0.0, 0.5) + y

    graph = load(saved(tmp_path / "m.pt2", Twice(), 1, 3, 8, 8))
    last = graph.ops[-1]
    assert last.inputs[0] == last.inputs[1] == graph.ops[-2].outputs[0]


@pytest.mark.parametrize(
    "name, axis, size", [("conv2d", 2, 8), ("conv2d", 2, 32), ("max_pool2d", 3, 3), ("relu", -1, 0)]
)
def test_a_file_that_states_a_false_size_or_type_is_refused(tmp_path, name, axis, size):
    """Plans and proofs rest on the sizes of what calls make, which the file only states."""
    layers = [
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.MaxPool2d(2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
    ]

    def change(data):
        model = json.loads(data)
        meta = model["graph_module"]["graph"]["tensor_values"][name]
        meta.update({"dtype": 8} if axis < 0 else {})
        meta["sizes"][axis] = meta["sizes"][axis] if axis < 0 else {"as_int": size}
        return json.dumps(model).encode()

    path = edited(saved(tmp_path / "m.pt2", torch.nn.Sequential(*layers), 1, 3, 16, 16), tmp_path / "f.pt2", change)
    with pytest.raises(ds.LoadError, match=f"'{name}' is float.*and PyTorch makes float32"):
        ds.fit(path, output=tmp_path / "o.pt2", strips=2, time_limit_s=0.3)
    assert not (tmp_path / "o.pt2").exists()


def test_a_program_in_memory_is_fitted_as_its_file_is(tmp_path):
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(16, 16, 3, padding=1)]
    module, value = torch.nn.Sequential(*layers, torch.nn.MaxPool2d(4)).eval(), torch.randn(1, 3, 64, 64)
    program = torch.export.export(module, (value,))
    result = ds.fit(program, strips=8, time_limit_s=0.5)
    assert result.shipped == "strips" and result.outputs.proven and result.measured.after < result.measured.before
    assert result.output_path is None and result.graph.source.path not in str(result.command)
    torch.testing.assert_close(result.program.module()(value), module(value))
    folder = Path(result.graph.source.path).parent
    assert folder.exists()
    del result
    gc.collect()
    assert not folder.exists()
    with pytest.raises(ds.InfeasibleError, match=r"^program\.pt2 does not fit into 100 B"):
        ds.fit(program, ram_bytes=100, time_limit_s=0.1)
    with pytest.raises(ds.LoadError, match="symbolic shape; export with fixed sizes"):
        sizes = ({0: torch.export.Dim("batch")},)
        ds.fit(torch.export.export(module, (torch.randn(2, 3, 64, 64),), dynamic_shapes=sizes))
