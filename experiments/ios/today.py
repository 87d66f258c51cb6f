"""Four networks of today for stages, as PyTorch modules with random weights, exported at a batch.

`moe_layer`: 8 experts of a mixture, all of which run on every token (a router's top k is not static). `decoder_step`:
one token through 4 layers with 512 kept. `unet_block`: a residual block with a time embedding, self-attention and
cross-attention on 77 tokens, of a diffusion UNet at 64 x 64. `detector`: branches of an Inception, a feature pyramid of
three scales and heads that classify and regress apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from downset import Graph
from downset.formats.torch.read import load_exported

__all__ = ["TODAY", "exported", "today_graph"]


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    def __init__(self, width: int = 1024, inner: int = 1408, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Gated(width, inner) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.router(x), -1)
        total = x
        for place, expert in enumerate(self.experts):
            total = total + shares[:, place : place + 1] * expert(x)
        return total


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ value


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.feed = Gated(width, 4 * width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, _, width = x.shape
        normal = self.before(x)
        query, key, value = (
            one(normal).view(batch, 1, self.heads, width // self.heads).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        x = x + self.out(attend(query, keys, values).transpose(1, 2).reshape(batch, 1, width))
        return x + self.feed(self.behind(x)), keys, values


class DecoderStep(nn.Module):
    def __init__(self, width: int = 1024, heads: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        kept_on = []
        for place, layer in enumerate(self.layers):
            x, keys, values = layer(x, kept[2 * place], kept[2 * place + 1])
            kept_on += [keys, values]
        return (x, *kept_on)


class UnetBlock(nn.Module):
    def __init__(self, source: int = 640, width: int = 320, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.GroupNorm(32, source), nn.GroupNorm(32, width), nn.GroupNorm(32, width)])
        self.first, self.second = nn.Conv2d(source, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.skip, self.time = nn.Conv2d(source, width, 1), nn.Linear(1280, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.cross = nn.ModuleList([nn.Linear(width, width), *(nn.Linear(768, width) for _ in range(2))])
        self.out, self.feed = nn.Linear(width, width), Gated(width, 4 * width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        silu = nn.functional.silu
        inner = self.first(silu(self.norms[0](x))) + self.time(silu(time))[:, :, None, None]
        x = self.skip(x) + self.second(silu(self.norms[1](inner)))
        batch, width, height, columns = x.shape
        rows = self.norms[2](x).view(batch, width, height * columns).transpose(1, 2)
        mixed = attend(*(self.split(one(rows)) for one in self.own[:3])).transpose(1, 2).reshape(rows.shape)
        rows = rows + self.own[3](mixed)
        others = (self.split(one(of)) for one, of in zip(self.cross, (rows, text, text), strict=True))
        rows = rows + self.out(attend(*others).transpose(1, 2).reshape(rows.shape))
        rows = rows + self.feed(rows)
        return x + rows.transpose(1, 2).reshape(x.shape)


def conv(source: int, width: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(source, width, kernel, stride, kernel // 2), nn.ReLU())


class Branches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        part = width // 4
        self.one = conv(width, part, 1)
        self.three = nn.Sequential(conv(width, part, 1), conv(part, part, 3))
        self.five = nn.Sequential(conv(width, part, 1), conv(part, part, 3), conv(part, part, 3))
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(width, part, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


class Head(nn.Module):
    def __init__(self, width: int, classes: int = 80) -> None:
        super().__init__()
        self.classify = nn.Sequential(conv(width, width, 3), conv(width, width, 3), nn.Conv2d(width, classes, 1))
        self.regress = nn.Sequential(conv(width, width, 3), conv(width, width, 3))
        self.box, self.there = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.regress(x)
        return torch.cat([self.box(inner), self.there(inner), self.classify(x)], 1).flatten(2)


class Detector(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 32, 3, 2), conv(32, 64, 3, 2), conv(64, width, 3, 2))
        self.parts = nn.ModuleList(
            nn.Sequential(*([conv(width, width, 3, 2)] if place else []), Branches(width), Branches(width))
            for place in range(3)
        )
        self.joins = nn.ModuleList(conv(2 * width, width, 3) for _ in range(2))
        self.heads = nn.ModuleList(Head(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x, scales = self.stem(x), []
        for part in self.parts:
            x = part(x)
            scales.append(x)
        wide, middle, deep = scales
        up = nn.functional.interpolate
        middle = self.joins[0](torch.cat([middle, up(deep, scale_factor=2.0)], 1))
        wide = self.joins[1](torch.cat([wide, up(middle, scale_factor=2.0)], 1))
        heads = zip(self.heads, (wide, middle, deep), strict=True)
        return torch.cat([head(scale) for head, scale in heads], 2)


def _decoder_inputs(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 1, 1024), *(torch.randn(batch, 16, 512, 64) for _ in range(8)))


TODAY: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]] = {
    "moe_layer": (Mixture, lambda batch: (torch.randn(batch, 1024),)),
    "decoder_step": (DecoderStep, _decoder_inputs),
    "unet_block": (
        UnetBlock,
        lambda batch: (torch.randn(batch, 640, 64, 64), torch.randn(batch, 1280), torch.randn(batch, 77, 768)),
    ),
    "detector": (Detector, lambda batch: (torch.randn(batch, 3, 416, 416),)),
}
"""By name: (the module, its random inputs at a batch)."""


def exported(name: str, batch: int) -> Any:
    """The exported program of one of these networks."""
    torch.manual_seed(0)
    module, inputs = TODAY[name]
    with torch.no_grad():
        return torch.export.export(module().eval(), inputs(batch))


def today_graph(name: str, batch: int) -> Graph:
    return replace(load_exported(exported(name, batch)), name=name)
