"""Small exported programs, changes of all that their files state, and PyTorch's own loader as the oracle of what a file
computes."""

import copy
import json
import zipfile

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

CERTIFICATE = "extra/downset.certificate"
MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.group = nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 2, 2, groups=2)
        self.norm, self.up = nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 3, 2, 1, 1)
        self.norm.running_mean.normal_()

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)), inplace=True) + self.group(x)
        y = F.avg_pool2d(F.max_pool2d(self.up(y), 3, 2, 1), 3, 1, 1, count_include_pad=False)
        one, two = torch.split(F.interpolate(y, scale_factor=2), 2, 1)
        return F.hardtanh(torch.cat([one, torch.sub(two, one, alpha=2)], 1), -0.5, 0.7)[:, :, 1:9:2], F.gelu(one)


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("mask", torch.randn(8, 8))
        self.table = nn.Embedding(9, 8, padding_idx=2)
        self.register_buffer("places", torch.randint(0, 9, (8,)))

    def forward(self, x):
        y = self.norm(x) + self.table(self.places)
        q, k = (layer(y).view(1, 8, 2, 4).transpose(1, 2) for layer in (self.q, self.k))
        z = F.scaled_dot_product_attention(q, k, k, attn_mask=self.mask, scale=0.7)
        z = z.permute(0, 2, 1, 3).flatten(2) + torch.softmax(q @ k.transpose(-2, -1), -1).mean(1, keepdim=True)[:, 0]
        z = torch.div(z, 0.3, rounding_mode="floor") * F.leaky_relu(x, 0.2)
        return torch.bmm(z, z).unsqueeze(1).squeeze(0), torch.chunk(z, 2, 1)[1], torch.clamp(z, -1, 1), 7


class Kept(nn.Module):
    """Buffers that change, a weight that is used twice, and several types."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        for name in ("one", "two"):
            self.register_buffer(name, torch.zeros(4, 4))
        self.register_buffer("brain", torch.randn(4, 4).bfloat16())
        self.register_buffer("other", torch.randn(4, 4), persistent=False)

    def forward(self, x, y):
        self.one.add_(x)
        self.two.add_(2)
        z = self.one * (x @ self.weight) + self.two * self.other
        return z * self.weight, y.bfloat16() * self.brain, torch.where(x > 0, z, y).to(torch.float64)


class Written(nn.Module):
    """Calls in place, of which older names are read."""

    def forward(self, x, y):
        z = x - y
        w = torch.relu_(z)
        v = z.clone()
        v.mul_(0.7)
        return F.hardtanh_(w, 0.0, 0.5) + z, torch.sigmoid(v).sub_(0.5, alpha=2), F.leaky_relu(v, 0.3) / y


def programs():
    """By name: an exported program and inputs for it."""
    kept = torch.export.export(Kept().eval(), (torch.randn(4, 4), torch.randn(4, 4)))
    made = {"kept": (kept.run_decompositions({}), (torch.randn(4, 4), torch.randn(4, 4)))}
    for module, *inputs in (
        (Written(), torch.randn(4, 4), torch.randn(4, 4)),
        (Windows(), torch.randn(1, 4, 6, 6)),
        (Rows(), torch.randn(1, 8, 8)),
    ):
        made[type(module).__name__.lower()] = torch.export.export(module.eval(), tuple(inputs)), tuple(inputs)
    return made


def entries(path):
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(f"m/{name}", data)
    return path


def results(path, inputs):
    """All that a caller sees of two calls in turn; the error where PyTorch refuses the file or a call."""
    try:
        module, seen = torch.export.load(path).module(), []
        with torch.no_grad():
            for factor in (1, -2):
                given = [value * factor for value in inputs]
                torch.manual_seed(0)
                seen += [*torch.utils._pytree.tree_leaves(module(*given)), *given]
                seen = [one.clone() if isinstance(one, torch.Tensor) else one for one in seen]
    except Exception as error:  # PyTorch's loader raises errors of all kinds
        return error
    return seen


def alike(ours, theirs):
    if isinstance(ours, Exception) or isinstance(theirs, Exception) or len(ours) != len(theirs):
        return False
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(one, torch.Tensor):
            if (type(one), one) != (type(other), other):
                return False
        else:
            same = (one.dtype, one.shape) == (other.dtype, other.shape)
            if not (same and np.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5, equal_nan=True)):
                return False
    return True


def changes(model):
    """(what is changed, a function that makes the changed program) of each change of one place: of a number, a name, an
    argument, a call or its place."""
    graph = model["graph_module"]["graph"]
    names = [*graph["tensor_values"]]
    sizes = {name: [repr(meta[key]) for key in ("sizes", "dtype")] for name, meta in graph["tensor_values"].items()}

    def changed(edit):
        def made():
            other = copy.deepcopy(model)
            edit(other["graph_module"]["graph"])
            return other

        return made

    def replaced(path, value):
        def edit(graph):
            item = graph
            for key in path[:-1]:
                item = item[key]
            item[path[-1]] = value

        return f"{path} = {value!r}", changed(edit)

    def leaves(item, path):
        if isinstance(item, dict):
            for key, inner in item.items():
                yield from leaves(inner, (*path, key))
        elif isinstance(item, list):
            for place, inner in enumerate(item):
                yield from leaves(inner, (*path, place))
            for place in range(len(item) - 1):
                turned = [*item]
                turned[place : place + 2] = item[place + 1], item[place]
                yield replaced(path, turned)
        else:
            for value in _others(item, path[-1]):
                yield replaced(path, value)

    def _others(item, key):
        if isinstance(item, bool):
            return [not item]
        if isinstance(item, int):
            return [item + 1, item - 1, -item, item * 2]
        if isinstance(item, float):
            return [item * 2, -item, 0.0]
        if key == "name" and item in sizes:
            return [name for name in names if sizes[name] == sizes[item] and name != item]
        return ["tanh", "ceil", ""] if key == "as_string" else []

    for place, node in enumerate(graph["nodes"]):
        where, target = ("nodes", place), node["target"]
        yield f"without {target}", changed(lambda graph, place=place: graph["nodes"].pop(place))
        yield from leaves(node["inputs"], (*where, "inputs"))
        yield from leaves(node["outputs"], (*where, "outputs"))
        base, _, overload = target.rpartition(".")
        for other in ([base[:-1]] if base.endswith("_") else [f"{base}_"]) + _TARGETS:
            yield replaced((*where, "target"), other if other in _TARGETS else f"{other}.{overload}")
        for number, argument in enumerate(node["inputs"]):
            at = (*where, "inputs", number)
            yield replaced((*at, "kind"), 3 - argument["kind"])
            yield f"{at} left out", changed(lambda graph, p=place, n=number: graph["nodes"][p]["inputs"].pop(n))
            for other in node["inputs"]:
                if other is not argument:
                    yield replaced((*at, "name"), other["name"])
                    yield replaced((*at, "arg"), other["arg"])
            for value in _ARGUMENTS:
                yield replaced((*at, "arg"), value)
        for name in _NAMES:
            more = [*node["inputs"], {"name": name, "arg": {"as_int": 1}, "kind": 2}]
            yield replaced((*where, "inputs"), more)
        for number in range(len(node["inputs"]) - 1):  # two arguments trade names
            turned = copy.deepcopy(node["inputs"])
            one, two = turned[number : number + 2]
            one["name"], two["name"] = two["name"], one["name"]
            yield replaced((*where, "inputs"), turned)
        if place:
            turned = [*graph["nodes"]]
            turned[place - 1 : place + 1] = turned[place], turned[place - 1]
            yield replaced(("nodes",), turned)
    for key in graph:
        if key != "nodes":
            yield from leaves(graph[key], (key,))


_TARGETS = ["torch.ops.aten.sub.Tensor", "torch.ops.aten.sigmoid.default", "torch.ops.aten.mul.Tensor"]
_ARGUMENTS = [{"as_none": True}, {"as_bool": True}, {"as_int": 2}, {"as_float": 0.5}, {"as_ints": [1]}]
_NAMES = ["alpha", "ceil_mode", "dtype", "is_causal", "dilation", "dim", "out_dtype", "memory_format"]


def as_json(model):
    return json.dumps(model).encode()
