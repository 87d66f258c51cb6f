"""Ten small networks of common shapes, named before any was planned: those on which ExecuTorch's own planners, of one
memory and of two, and ours are compared."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, interpolate, max_pool2d, relu, relu6

__all__ = ["networks"]


class Branches(nn.Module):
    """A small CNN of two branches that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.left = nn.Conv2d(16, 24, 3, padding=1, stride=2)
        self.deep = nn.Conv2d(24, 24, 3, padding=1)
        self.narrow = nn.Conv2d(24, 8, 1)
        self.right = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        left = relu(self.left(x))
        left = relu(self.deep(left)) + left
        return (torch.sigmoid(self.narrow(left)) * avg_pool2d(self.right(x), 2)).mean((2, 3))


class Inception(nn.Module):
    """Four parallel branches, concatenated, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(c, 16, 1),
                    nn.Conv2d(c, 16, 1),
                    nn.Conv2d(16, 24, 3, padding=1),
                    nn.Conv2d(c, 8, 1),
                    nn.Conv2d(8, 16, 5, padding=2),
                    nn.Conv2d(c, 8, 1),
                ]
            )
            for c in (16, 64)
        )
        self.stem = nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        for one, before, wide, narrow, wider, pooled in self.parts:
            ends = [one(x), wide(relu(before(x))), wider(relu(narrow(x))), pooled(avg_pool2d(x, 3, 1, 1))]
            x = relu(torch.cat(ends, dim=1))
        return x.mean((2, 3))


class UNet(nn.Module):
    """Down twice, up twice, with connections across."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(3, 8), (8, 16), (16, 32), (48, 16), (24, 8)]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in widths)

    def forward(self, x: Tensor) -> Tensor:
        first = relu(self.layers[0](x))
        second = relu(self.layers[1](max_pool2d(first, 2)))
        x = relu(self.layers[2](max_pool2d(second, 2)))
        x = relu(self.layers[3](torch.cat([interpolate(x, scale_factor=2.0), second], dim=1)))
        return self.layers[4](torch.cat([interpolate(x, scale_factor=2.0), first], dim=1))


class InvertedResiduals(nn.Module):
    """MobileNet v2: a stem and four inverted residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        sizes = [(8, 16, 2), (16, 16, 1), (16, 24, 2), (24, 24, 1)]
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(narrow, 6 * narrow, 1),
                    nn.Conv2d(6 * narrow, 6 * narrow, 3, padding=1, stride=stride, groups=6 * narrow),
                    nn.Conv2d(6 * narrow, wide, 1),
                ]
            )
            for narrow, wide, stride in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        x = relu6(self.stem(x))
        for expand, depthwise, project in self.blocks:
            y = project(relu6(depthwise(relu6(expand(x)))))
            x = x + y if x.shape == y.shape else y
        return x.mean((2, 3))


class Residuals(nn.Module):
    """ResNet: three blocks, the second of half the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        sizes = [(16, 16, 1), (16, 32, 2), (32, 32, 1)]
        self.first = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, stride=s) for a, b, s in sizes)
        self.second = nn.ModuleList(nn.Conv2d(b, b, 3, padding=1) for _, b, _ in sizes)
        self.across = nn.ModuleList(nn.Conv2d(a, b, 1, stride=s) for a, b, s in sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        for first, second, across in zip(self.first, self.second, self.across, strict=True):
            x = relu(second(relu(first(x))) + across(x))
        return x.mean((2, 3))


class Dense(nn.Module):
    """DenseNet: four layers, each of which reads all results before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(16 + 12 * i, 12, 3, padding=1) for i in range(4))
        self.last = nn.Conv2d(64, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [relu(self.stem(x))]
        for layer in self.layers:
            parts.append(relu(layer(torch.cat(parts, dim=1))))
        return avg_pool2d(self.last(torch.cat(parts, dim=1)), 2)


class Fires(nn.Module):
    """SqueezeNet: three fire modules."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        sizes = [(24, 8, 16), (32, 8, 16), (32, 16, 32)]
        self.parts = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(a, s, 1), nn.Conv2d(s, e, 1), nn.Conv2d(s, e, 3, padding=1)]) for a, s, e in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        for squeeze, one, three in self.parts:
            y = relu(squeeze(x))
            x = torch.cat([relu(one(y)), relu(three(y))], dim=1)
        return x.mean((2, 3))


class Pyramid(nn.Module):
    """A feature pyramid: three sizes down, added on the way up, a head on each."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, stride=2) for a, b in [(3, 16), (16, 24), (24, 32)])
        self.lateral = nn.ModuleList(nn.Conv2d(a, 16, 1) for a in (16, 24, 32))
        self.heads = nn.ModuleList(nn.Conv2d(16, 4, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        sizes = []
        for layer in self.down:
            x = relu(layer(x))
            sizes.append(x)
        top = self.lateral[2](sizes[2])
        ends = [self.heads[2](top)]
        for level in (1, 0):
            top = interpolate(top, scale_factor=2.0) + self.lateral[level](sizes[level])
            ends.append(self.heads[level](top))
        return torch.cat([end.flatten(1) for end in ends], dim=1)


class Cells(nn.Module):
    """NASNet's shape: two cells, each of whose sums reads both results before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.parts = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(16, 16, k, padding=k // 2, groups=16) for k in (3, 5, 3, 5, 3)) for _ in range(2)
        )
        self.joins = nn.ModuleList(nn.Conv2d(48, 16, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        before = here = relu(self.stem(x))
        for (a, b, c, d, e), join in zip(self.parts, self.joins, strict=True):
            sums = [a(here) + b(before), c(here) + max_pool2d(before, 3, 1, 1), d(here) + e(before)]
            before, here = here, relu(join(torch.cat(sums, dim=1)))
        return adaptive_avg_pool2d(here, 1)


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Each network with the shape of its input."""
    torch.manual_seed(0)
    modules: dict[str, nn.Module] = {
        "two branches": Branches(),
        "inception blocks": Inception(),
        "U-Net": UNet(),
        "inverted residuals": InvertedResiduals(),
        "residual blocks": Residuals(),
        "dense block": Dense(),
        "fire modules": Fires(),
        "feature pyramid": Pyramid(),
        "cells": Cells(),
    }
    images = {name: (module.eval(), (1, 3, 32, 32)) for name, module in modules.items()}
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return {**images, "transformer layer": (encoder.eval(), (1, 16, 64))}
