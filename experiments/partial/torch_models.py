"""Networks in PyTorch, with random weights, for strips of exported programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["MODELS"]

Model = tuple[Any, tuple[int, ...]]


def _mobile(torch: Any) -> Model:
    """Inverted residuals with in-place ReLU6, on 224x224."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, read: int, width: int, stride: int) -> None:
            super().__init__()
            wide = 6 * read
            self.shortcut = stride == 1 and read == width
            self.layers = nn.Sequential(
                *(nn.Conv2d(read, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)),
                nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                *(nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)),
                *(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)),
            )

        def forward(self, x):  # type: ignore[no-untyped-def]
            return x + self.layers(x) if self.shortcut else self.layers(x)

    sizes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 64, 2)]
    first = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*first, *(Block(*size) for size in sizes), *last), (1, 3, 224, 224)


def _unet(torch: Any) -> Model:
    """Two levels with transposed convolutions, on 256x256."""
    nn = torch.nn

    def double(read: int, width: int) -> Any:
        layers = [nn.Conv2d(read, width, 3, padding=1), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True))

    class UNet(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([double(3, 16), double(16, 32), double(32, 64)])
            self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
            self.join, self.last = nn.ModuleList([double(64, 32), double(32, 16)]), nn.Conv2d(16, 2, 1)

        def forward(self, x):  # type: ignore[no-untyped-def]
            one = self.down[0](x)
            two = self.down[1](nn.functional.max_pool2d(one, 2))
            three = self.down[2](nn.functional.max_pool2d(two, 2))
            two = self.join[0](torch.cat([self.up[0](three), two], 1))
            return self.last(self.join[1](torch.cat([self.up[1](two), one], 1)))

    return UNet(), (1, 3, 256, 256)


def _transformer(*, spelt: bool) -> Callable[[Any], Model]:
    """Four layers on 576 patches. `spelt`: attention is two products and a softmax."""

    def model(torch: Any) -> Model:
        nn = torch.nn

        class Layer(nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.norms = nn.ModuleList(nn.LayerNorm(96) for _ in range(2))
                self.read, self.write = nn.ModuleList(nn.Linear(96, 96) for _ in range(3)), nn.Linear(96, 96)
                self.wide = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96))

            def forward(self, x):  # type: ignore[no-untyped-def]
                y = self.norms[0](x)
                q, k, v = (layer(y).view(1, 576, 3, 32).transpose(1, 2) for layer in self.read)
                if spelt:
                    z = torch.softmax((q * 32**-0.5) @ k.transpose(-2, -1), -1) @ v
                else:
                    z = nn.functional.scaled_dot_product_attention(q, k, v)
                x = x + self.write(z.transpose(1, 2).reshape(1, 576, 96))
                return x + self.wide(self.norms[1](x))

        class Patches(nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.cut, self.place = nn.Conv2d(3, 96, 8, 8), nn.Parameter(torch.randn(1, 576, 96) * 0.02)

            def forward(self, x):  # type: ignore[no-untyped-def]
                return self.cut(x).flatten(2).transpose(1, 2) + self.place

        return nn.Sequential(Patches(), *(Layer() for _ in range(4))), (1, 3, 192, 192)

    return model


MODELS: Mapping[str, Callable[[Any], Model]] = {
    "mobile": _mobile,
    "unet": _unet,
    "transformer, attention in products": _transformer(spelt=True),
    "transformer, PyTorch's attention": _transformer(spelt=False),
}
"""By name: a function that makes the network and the shape of its input."""
