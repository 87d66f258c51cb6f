"""Normalisations and means over rows of exported programs in two passes: PyTorch's own loader computes the same, a
proof says so, and it says so of no file that computes something else."""

import json
import random

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from downset.equivalence.prove import prove  # noqa: E402
from downset.errors import DownsetError  # noqa: E402
from downset.formats.reading import load  # noqa: E402
from downset.formats.torch.strip_form import runs_again, strip_form, strip_rows  # noqa: E402
from downset.formats.torch.write import export_torch  # noqa: E402
from downset.graph.cost import row_form  # noqa: E402
from downset.partial.rewrite import InStrips, in_strips  # noqa: E402
from downset.partial.segments import computed_whole, find_segments  # noqa: E402
from downset.rewrites.two_passes import has_row_means, in_two_passes, normalised_bytes, two_passes  # noqa: E402
from tests.effort import cases  # noqa: E402
from tests.equivalence.torch_mutants import MODEL, alike, as_json, changes, entries, results, write  # noqa: E402
from tests.torch_networks import saved  # noqa: E402

KINDS = {
    "groups": lambda: [nn.GroupNorm(4, 8), nn.GroupNorm(2, 8, affine=False)],
    "instances": lambda: [nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8)],
    "layers": lambda: [nn.LayerNorm([8, 9, 5]), nn.LayerNorm([9, 5]), nn.LayerNorm([9, 5], elementwise_affine=False)],
}


class Normalised(nn.Module):
    """Normalisations between convolutions, with a call in place, then a pool and means in their spellings."""

    def __init__(self, kind):
        super().__init__()
        self.norms = nn.ModuleList(KINDS[kind]())
        self.layers = nn.ModuleList(nn.Conv2d(3 if place == 0 else 8, 8, 3, 1, 1) for place in range(len(self.norms)))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = F.relu(norm(layer(x)), inplace=True)
            x = y if x.shape != y.shape else x + y
        return F.adaptive_avg_pool2d(x, 1), x.mean((-2, -1)), x.mean([1, 2, 3], keepdim=True)


def write_two_passes(path, output, draw):
    """Write the file with normalisations in two passes, in strips of all that can be cut."""
    graph = load(path)
    sizes = normalised_bytes(graph)
    divided = two_passes(graph, stored_bytes=draw.choice([*sizes[1:], 0]))
    assert runs_again(graph) and in_two_passes(divided) and has_row_means(divided)
    form = strip_rows(divided, row_form(divided, halos_required=False))
    assert not computed_whole(divided, form)
    found = [
        one
        for one in find_segments(divided, form, most_crossing=32)
        if all(form.rows[tensor] == 9 for tensor in one.results)
    ]
    parts, at = [], 0
    while left := [one for one in found if one.first >= at]:
        longest = max(left, key=lambda one: (-one.first, one.stop))
        parts.append(InStrips(longest.first, longest.stop, draw.randint(2, 4)))
        at = longest.stop
    striped = strip_form(in_strips(divided, parts, form=form))
    export_torch(output, striped, range(len(striped.ops)))


class Groups(nn.Module):
    """A normalisation of groups in one call, or in plain ones with this root."""

    def __init__(self, root=None):
        super().__init__()
        self.root, self.weight, self.bias = root, nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.register_buffer("least", torch.tensor([0.25]))

    def forward(self, x):
        if self.root is None:
            return F.group_norm(x, 2, self.weight, self.bias, 0.25) * 1
        y = x.reshape(2, 2, 30)
        mean = y.mean([2], keepdim=True)
        variance = (y * y).mean([2], keepdim=True) - mean * mean
        y = ((y - mean) / self.root(variance + self.least.reshape(1, 1, 1))).reshape(2, 4, 15)
        y = self.weight.reshape(1, 4, 1) * y + self.bias.reshape(1, 4, 1)
        return y.reshape(2, 4, 3, 5) * 1


def test_plain_calls_are_no_normalisation_of_another_root(tmp_path):
    inputs, files = (torch.randn(2, 4, 3, 5),), []
    for root in (None, torch.rsqrt):
        torch.manual_seed(1)
        files.append(saved(tmp_path / f"{len(files)}.pt2", Groups(root), 2, 4, 3, 5))
    content = entries(files[0])
    content[MODEL] = content[MODEL].replace(b'"group_norm"', b'"reshape_5"')
    graph = load(write(files[0], content))
    divided = strip_form(two_passes(graph, stored_bytes=0))
    export_torch(tmp_path / "s.pt2", divided, range(len(divided.ops)))
    assert not alike(results(files[1], inputs), results(tmp_path / "s.pt2", inputs))
    assert not prove(files[1], tmp_path / "s.pt2").proven


@pytest.mark.parametrize("kind", KINDS)
def test_normalisations_in_two_passes_are_equal_and_proven_and_no_changed_file_is(tmp_path, kind):
    torch.manual_seed(0)
    draw, inputs = random.Random(kind), (torch.randn(2, 3, 9, 5),)
    path, output = saved(tmp_path / "m.pt2", Normalised(kind), 2, 3, 9, 5), tmp_path / "s.pt2"
    write_two_passes(path, output, draw)
    wanted = results(path, inputs)
    assert alike(wanted, results(output, inputs))
    proof = prove(path, output)
    assert proof.proven and not proof.exact, proof.reason
    content, refused = entries(output), 0
    tried = draw.sample(list(changes(json.loads(content[MODEL]))), cases(100))
    for what, changed in tried:
        other = write(tmp_path / "o.pt2", {**content, MODEL: as_json(changed())})
        try:
            proven = prove(path, other).proven
        except DownsetError:
            proven = False
        refused += not proven
        if proven:
            found = results(other, inputs)
            assert isinstance(found, Exception) or alike(wanted, found), what
    assert refused > len(tried) / 2
