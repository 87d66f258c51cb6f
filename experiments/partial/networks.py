"""Three small networks of today, as PyTorch exports them: a vision transformer, a denoising UNet with attention, and
the decoder of an autoencoder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import gelu, interpolate, scaled_dot_product_attention, silu

__all__ = ["NETWORKS", "export_network"]

Values = torch.Tensor


class Attention(nn.Module):
    """Heads that attend to the tokens themselves or to those of a context."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = nn.Linear(width, width, bias=False)
        self.keys, self.values = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.result = nn.Linear(width, width)

    def forward(self, x: Values, context: Values) -> Values:
        batch, tokens, width = x.shape
        queries = self.queries(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
        keys, values = (
            one(context).view(batch, context.shape[1], self.heads, -1).transpose(1, 2)
            for one in (self.keys, self.values)
        )
        mixed = scaled_dot_product_attention(queries, keys, values)
        return self.result(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and two products, each behind a normalisation."""

    def __init__(self, width: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = Attention(width, heads, width)
        self.other = Attention(width, heads, context) if context else None
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Values, context: Values | None = None) -> Values:
        normal = self.norms[0](x)
        x = x + self.own(normal, normal)
        if self.other is not None and context is not None:
            x = x + self.other(self.norms[1](x), context)
        return x + self.outer(gelu(self.inner(self.norms[2](x))))


class Transformer(nn.Module):
    """An image in patches of 8 x 8, two blocks, and ten classes."""

    def __init__(self, image: int = 224, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.place = nn.Parameter(0.02 * torch.randn(1, (image // 8) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, 3) for _ in range(2))
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Values) -> Values:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        return self.classes(self.norm(x).mean(1))


class Residual(nn.Module):
    """Two convolutions behind group normalisations, and a shortcut; a step's numbers are added between them."""

    def __init__(self, read: int, width: int, step: int = 0) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, read), nn.GroupNorm(8, width)
        self.one, self.two = nn.Conv2d(read, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.step = nn.Linear(step, width) if step else None
        self.shortcut = nn.Conv2d(read, width, 1) if read != width else nn.Identity()

    def forward(self, x: Values, step: Values | None = None) -> Values:
        inner = self.one(silu(self.first(x)))
        if self.step is not None and step is not None:
            inner = inner + self.step(silu(step))[:, :, None, None]
        return self.shortcut(x) + self.two(silu(self.second(inner)))


class Spatial(nn.Module):
    """A block over the positions of an image."""

    def __init__(self, channels: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self.norm, self.block = nn.GroupNorm(8, channels), Block(channels, heads, context)
        self.into, self.out = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Values, context: Values | None = None) -> Values:
        batch, channels, height, width = x.shape
        tokens = self.into(self.norm(x)).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        tokens = self.block(tokens, context)
        return x + self.out(tokens.reshape(batch, height, width, channels).permute(0, 3, 1, 2))


class Denoiser(nn.Module):
    """A UNet of two resolutions with attention in both, to itself and to a context."""

    def __init__(self, channels: int = 32, context: int = 64) -> None:
        super().__init__()
        self.step = nn.Linear(64, 128)
        self.begin, self.down = nn.Conv2d(4, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, 2, 1)
        self.left, self.deep = Residual(channels, channels, 128), Residual(channels, 2 * channels, 128)
        self.up, self.right = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1), Residual(3 * channels, channels, 128)
        widths = (channels, 2 * channels, channels)
        self.blocks = nn.ModuleList(Spatial(width, 2, context) for width in widths)
        self.norm, self.end = nn.GroupNorm(8, channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: Values, step: Values, context: Values) -> Values:
        step = self.step(step)
        kept = self.blocks[0](self.left(self.begin(x), step), context)
        deep = self.blocks[1](self.deep(self.down(kept), step), context)
        large = self.up(interpolate(deep, scale_factor=2.0, mode="nearest"))
        x = self.blocks[2](self.right(torch.cat([large, kept], 1), step), context)
        return self.end(silu(self.norm(x)))


class Decoder(nn.Module):
    """A decoder of a grid of 32 x 32 to an image of 256 x 256, with attention on the grid."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        widths = (4 * channels, 4 * channels, 2 * channels, channels)
        self.begin, self.attention = nn.Conv2d(4, widths[0], 3, padding=1), Spatial(widths[0], 1)
        self.parts = nn.ModuleList(Residual(*pair) for pair in zip(widths, (*widths[1:], channels), strict=True))
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths[1:])
        self.norm, self.end = nn.GroupNorm(8, channels), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Values) -> Values:
        x = self.attention(self.begin(x))
        for part, up in zip(self.parts, self.ups, strict=False):
            x = up(interpolate(part(x), scale_factor=2.0, mode="nearest"))
        return self.end(silu(self.norm(self.parts[-1](x))))


NETWORKS: Mapping[str, tuple[type[nn.Module], tuple[tuple[int, ...], ...]]] = {
    "vision transformer": (Transformer, ((1, 3, 224, 224),)),
    "UNet with attention": (Denoiser, ((1, 4, 32, 32), (1, 64), (1, 16, 64))),
    "decoder of an autoencoder": (Decoder, ((1, 4, 32, 32),)),
}
"""By name: the network, and the shapes of its inputs."""


def export_network(name: str, path: Path) -> None:
    """Write a network with weights drawn from seed 0 as an .onnx file, by PyTorch's exporter that needs no further
    package."""
    network, shapes = NETWORKS[name]
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape) for shape in shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network().eval(), inputs, str(path), dynamo=False, opset_version=17)
