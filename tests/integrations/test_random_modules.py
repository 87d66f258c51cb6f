"""`torch.compile(model, backend=stage_backend)` on random modules: values, NaN and shared memory of eager PyTorch, on
inputs that were not planned for."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import downset as ds
from tests.effort import cases
from tests.integrations.test_stage_backend import QUICK, sharing

MAPS = (
    torch.relu,
    torch.sigmoid,
    functional.silu,
    functional.hardswish,
    torch.abs,
    lambda x: 1 - x,
    lambda x: x / 3,
    lambda x: x**2,
    lambda x: x.clamp(-1, 1),
    lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: x.clone(),
    lambda x: x.contiguous(),
    lambda x: x.flip(-1),
    lambda x: x.softmax(1),
    lambda x: x.softmax(-1, dtype=torch.float64).float(),
    lambda x: x.to(torch.float32, copy=True),
    lambda x: x.transpose(-1, -2),
    lambda x: x[..., 1:],
    lambda x: x[:, ::2],
    lambda x: x.mean(1, keepdim=True),
    lambda x: torch.stack([x, x + 1], 1).flatten(1, 2),
    lambda x: x.chunk(2, 1)[0],
    lambda x: functional.max_pool2d(x, 2, 1),
    lambda x: functional.avg_pool2d(x, 3, 1, 1),
    lambda x: functional.pad(x, (1, 0, 0, 1)),
    lambda x: functional.interpolate(x, scale_factor=2),
    lambda x: functional.layer_norm(x, x.shape[-1:]),
    lambda x: x.amax((2, 3), True),
)
PAIRS = (torch.add, torch.mul, torch.maximum, lambda one, other: torch.sub(one, other, alpha=0.5))


class Drawn(nn.Module):
    """Steps that are drawn: maps, convolutions, normalisations, sums and concatenations of earlier values."""

    def __init__(self, draw, shape):
        super().__init__()
        self.steps, self.layers, values = [], nn.ModuleList(), [torch.zeros(shape)]
        while len(self.steps) < draw.randint(3, 12):
            place = draw.randrange(len(values))
            other = draw.choice([at for at, value in enumerate(values) if value.shape == values[place].shape])
            channels = values[place].shape[1]
            step, reads = draw.choice(
                [
                    (nn.Conv2d(channels, draw.randint(1, 5), draw.choice([1, (1, 3), 2]), padding=1), [place]),
                    (nn.Conv2d(channels, channels, 3, draw.choice([1, 2]), 1, groups=channels), [place]),
                    (nn.BatchNorm2d(channels), [place]),
                    (draw.choice(PAIRS), [place, other]),
                    (lambda *given: torch.cat(given, 1), [place, other]),
                    *[(step, [place]) for step in draw.sample(MAPS, 4)],
                ]
            )
            step = step.eval() if isinstance(step, nn.Module) else step
            try:
                made = step(*[values[at] for at in reads])
            except (RuntimeError, IndexError):
                continue
            if 0 < made.numel() < 20_000 and made.dim() == 4:
                self.layers += [step] if isinstance(step, nn.Module) else []
                self.steps.append((step, reads))
                values.append(made)
        self.returned = [*draw.sample(range(len(values)), draw.randint(1, 3)), len(values) - 1]

    def forward(self, x):
        values = [x]
        for step, reads in self.steps:
            values.append(step(*[values[at] for at in reads]))
        return tuple(values[at] for at in self.returned)


@pytest.mark.parametrize("seed", range(cases(40)))
def test_a_random_module_computes_what_it_does_alone(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    shape = draw.randint(1, 2), draw.randint(1, 6), draw.randint(3, 9), draw.randint(3, 9)
    layout = draw.choice([torch.contiguous_format, torch.channels_last])
    module = Drawn(draw, shape).eval()
    compiled = torch.compile(module, backend=ds.stage_backend, dynamic=False, options={**QUICK, "strict": True})
    earlier = []
    for number in (0.0, 1.0, float("nan")):
        x = torch.randn(shape).contiguous(memory_format=layout)
        x[0, 0, 1, 1] *= number
        with torch.no_grad():
            ours, theirs = compiled(x), module(x)
        for one, other in zip(ours, theirs, strict=True):
            largest = other.nan_to_num().abs().max()
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(largest)), equal_nan=True)
        assert [[at for at, _ in each] for each in sharing([x], ours)] == [
            [at for at, _ in each] for each in sharing([x], theirs)
        ]
        assert all(torch.equal(one, kept) for one, kept in earlier if not kept.isnan().any())
        earlier += [(one, one.clone()) for one in ours]
