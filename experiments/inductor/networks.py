"""Networks whose training steps are measured: small definitions of known shapes, with seeded weights and batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["NETWORKS", "OTHERS", "REALISTIC", "Case", "RandWire", "blocks_of", "dlrm"]


@dataclass(frozen=True)
class Case:
    model: nn.Module
    loss_fn: Callable[..., Tensor]
    inputs: Any
    targets: Tensor
    learning_rate: float = 1e-3


class Block(nn.Module):
    """A transformer's: attention, then a network of two layers, or a mixture of `experts` of them."""

    def __init__(self, width: int, heads: int, experts: int = 0, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Mixture(width, experts) if experts else feed_forward(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, steps, width))
        return x + self.mlp(self.norm_2(x))


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Mixture(nn.Module):
    """Every expert sees every token; the two of highest score count."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, experts)
        self.experts = nn.ModuleList(feed_forward(width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(x)
        least = scores.topk(2, dim=-1).values[..., -1:]
        shares = torch.where(scores >= least, scores, float("-inf")).softmax(dim=-1)
        return sum(shares[..., index : index + 1] * expert(x) for index, expert in enumerate(self.experts))


class GPT(nn.Module):
    def __init__(self, words: int, width: int, layers: int, steps: int, experts: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(steps, width))
        self.blocks = nn.Sequential(*(Block(width, 4, experts) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens) + self.place))).flatten(0, 1)


class ViT(nn.Module):
    """Patches of an image as tokens, and blocks that see all of them."""

    def __init__(self, side: int, patch: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, 4, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))


class DLRM(nn.Module):
    """Embeddings of sparse features, a network for dense ones, their products pair by pair, and a network on top."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("pairs", torch.tensor(list(itertools.combinations(range(tables + 1), 2))).T)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        low = self.bottom(dense)
        every = torch.stack([low, *(table(sparse[:, column]) for column, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(every, every.transpose(1, 2))
        return self.top(torch.cat([low, products[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)


def convolution(inside: int, outside: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside), nn.ReLU())


class UNet(nn.Module):
    """`attention`: at the lowest resolution, a transformer's block between its pixels."""

    def __init__(self, width: int, depth: int, *, attention: bool = False) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(depth + 1)]
        self.first = self.double(3, width)
        self.down = nn.ModuleList(self.double(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(self.double(a + b, a) for a, b in itertools.pairwise(sizes))
        self.between = Block(sizes[-1], 4, causal=False) if attention else None
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def double(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(convolution(inside, outside), convolution(outside, outside))

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        if self.between is not None:
            x = self.between(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)
        for block in reversed(self.up):
            x = block(torch.cat([kept.pop(), functional.interpolate(x, scale_factor=2.0)], dim=1))
        return self.last(x)


class RandWire(nn.Module):
    """A random graph of separable convolutions: Watts and Strogatz's, of `nodes` with 4 neighbours, rewired at 0.75."""

    def __init__(self, nodes: int, width: int, seed: int) -> None:
        super().__init__()
        generator = random.Random(seed)
        pairs = set()
        for node, step in itertools.product(range(nodes), (1, 2)):
            other = (node + step) % nodes
            if generator.random() < 0.75:
                other = generator.choice([free for free in range(nodes) if free != node])
            pairs.add((min(node, other), max(node, other)))
        self.sources = [sorted(a for a, b in pairs if b == node) for node in range(nodes)]
        self.unread = sorted(set(range(nodes)) - {a for a, _ in pairs})
        self.stem = convolution(3, width, 3, 2)
        self.shares = nn.ParameterList(torch.zeros(max(len(sources), 1)) for sources in self.sources)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
                nn.Conv2d(width, width, 1, bias=False),
                nn.BatchNorm2d(width),
            )
            for _ in range(nodes)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        outputs: list[Tensor] = []
        for sources, shares, layer in zip(self.sources, self.shares, self.layers, strict=True):
            weights = shares.sigmoid()
            read = (
                sum(weights[index] * outputs[source] for index, source in enumerate(sources))
                if sources
                else weights[0] * x
            )
            outputs.append(layer(functional.relu(read)))
        return self.head((sum(outputs[node] for node in self.unread) / len(self.unread)).mean(dim=(2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(inside, width, 1),
            convolution(width, width, 3, stride),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        same = stride == 1 and inside == 4 * width
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.short(x))


def resnet50(classes: int) -> nn.Module:
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(inside, width, stride if number == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def guide() -> Case:
    """The model of docs/pytorch.md, on a large batch."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]
    return Case(nn.Sequential(*layers), functional.mse_loss, torch.randn(2048, 64), torch.randn(2048, 64))


class Residual(nn.Module):
    """Adds a network of two layers to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), feed_forward(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


def residual(width: int, layers: int, rows: int) -> Case:
    layers_of = [Residual(width) for _ in range(layers)]
    return Case(nn.Sequential(*layers_of), functional.mse_loss, torch.randn(rows, width), torch.randn(rows, width))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of which a person keeps only the inputs for the backward pass."""
    if isinstance(model, UNet):
        between = [model.between] if model.between is not None else []
        return [model.first, *model.down, *between, *reversed(model.up)]
    if isinstance(model, RandWire):
        return [model.stem, *model.layers]
    if isinstance(model, DLRM):
        return [model.bottom, model.top]
    blocks = [module for module in model.modules() if isinstance(module, Block | Bottleneck)]
    return blocks or list(model.children())


def language(model: nn.Module, words: int, batch: int, steps: int) -> Case:
    tokens = torch.randint(0, words, (batch, steps))
    return Case(model, functional.cross_entropy, tokens, tokens.roll(-1, 1).flatten())


def images(
    model: nn.Module, batch: int, side: int, classes: int, *, dense: bool = False, learning_rate: float = 1e-3
) -> Case:
    targets = torch.randint(0, classes, (batch, side, side) if dense else (batch,))
    inputs = torch.randn(batch, 3, side, side)
    return Case(model, functional.cross_entropy, inputs, targets, learning_rate)


def channels_last(case: Case) -> Case:
    """The case with model and batch in the layout that is faster for convolutions on a processor."""
    model = case.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    return replace(case, model=model, inputs=case.inputs.to(memory_format=torch.channels_last))


def dlrm(tables: int) -> Case:
    inputs = (torch.randn(256, 13), torch.randint(0, 1000, (256, tables)))
    return Case(DLRM(tables, 1000, 16), functional.binary_cross_entropy_with_logits, inputs, torch.rand(256))


NETWORKS: dict[str, Callable[[], Case]] = {
    "gpt": lambda: language(GPT(2048, 128, 4, 64), 2048, 4, 64),
    "gpt_wide": lambda: language(GPT(2048, 256, 4, 64), 2048, 1, 64),
    "dlrm": lambda: dlrm(16),
    "unet": lambda: images(UNet(16, 3), 2, 64, 2, dense=True),
    "randwire": lambda: images(RandWire(16, 24, 1), 2, 64, 10),
    "moe": lambda: language(GPT(1024, 96, 2, 64, experts=4), 1024, 4, 64),
    # its norms magnify rounding, and Adam's first steps look at signs: at a larger rate, or with norms over fewer
    # values, rounding decides where training goes
    "resnet50": lambda: images(resnet50(100), 8, 64, 100, learning_rate=1e-6),
    "resnet50_last": lambda: channels_last(images(resnet50(100), 8, 64, 100, learning_rate=1e-6)),
    "guide": guide,
    "residual": lambda: residual(64, 8, 2048),
    "gpt_real": lambda: language(GPT(8192, 256, 6, 512), 8192, 1, 512),
    "gpt2_small": lambda: language(GPT(50257, 768, 12, 512), 50257, 1, 512),
    "vit": lambda: images(ViT(64, 8, 192, 6, 100), 8, 64, 100),
    "unet_attention": lambda: images(UNet(16, 3, attention=True), 2, 64, 2, dense=True),
    "gpt_24": lambda: language(GPT(2048, 128, 24, 64), 2048, 4, 64),
    "gpt_tiny": lambda: language(GPT(64, 32, 1, 16), 64, 2, 16),
}
"""By name; call after a seed. "gpt_wide" has few tokens for its weights, so gradients weigh more than activations;
"resnet50_last" has its model and its batch in the layout channels-last; "gpt_24" shows what planning many layers takes;
"gpt_tiny" is for quick runs."""
OTHERS = ("gpt_24", "gpt_tiny")
REALISTIC = ("guide", "residual", "gpt_real", "gpt2_small", "vit", "unet_attention")
"""Networks that are measured against what is written by hand alone."""
