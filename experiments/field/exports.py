"""Networks of today with random weights, exported by PyTorch: a UNet with cross attention, a step of a Llama with its
keys and values, and a ViT. Models of a few bytes behave in memory as large ones do, and no weights are downloaded.

    PYTHON -m experiments.field.exports FOLDER

PYTHON is an interpreter with PyTorch, transformers (5.24) and diffusers (0.42), which no test needs: `python -m
experiments.field --exports PYTHON` calls it where the files are not in the user's cache.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["SIZES", "exported"]

CACHE = Path.home() / ".cache" / "downset-exports"
SIZES: Mapping[str, Mapping[str, int]] = {
    "unet.onnx": {"tokens": 16},
    "llama.onnx": {"past": 128, "total": 129},
    "vit.onnx": {},
}
"""By file: the sizes that are given; a batch is 1."""
_LAYERS = 4


def exported(python: str) -> Iterator[Path]:
    """The files in the cache, made by this interpreter where they are missing; none without an interpreter that can."""
    if not all((CACHE / name).exists() for name in SIZES):
        CACHE.mkdir(parents=True, exist_ok=True)
        root = Path(__file__).resolve().parents[2]
        subprocess.run([python, "-m", "experiments.field.exports", str(CACHE)], cwd=root, check=False)
    yield from (CACHE / name for name in SIZES if (CACHE / name).exists())


def _unet(torch: Any, path: Path) -> None:
    from diffusers import UNet2DConditionModel

    net = UNet2DConditionModel(
        sample_size=32,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
        norm_num_groups=16,
    )
    call = _module(torch, net, lambda x, t, c: net(x, t, c, return_dict=False)[0])
    values = (torch.randn(1, 4, 32, 32), torch.tensor([10]), torch.randn(1, 16, 64))
    axes = {"x": {0: "batch"}, "c": {0: "batch", 1: "tokens"}, "y": {0: "batch"}}
    _export(call, values, path, ["x", "t", "c"], ["y"], axes)


def _vit(torch: Any, path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 192, "num_hidden_layers": _LAYERS, "num_attention_heads": 3, "intermediate_size": 768}
    net = ViTForImageClassification(ViTConfig(**sizes, num_labels=100, attn_implementation="eager"))
    call = _module(torch, net, lambda x: net(x).logits)
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    _export(call, (torch.randn(1, 3, 224, 224),), path, ["x"], ["y"], axes)


def _llama(torch: Any, path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.cache_utils import DynamicCache

    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": _LAYERS, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=4096, attn_implementation="eager")
    net = LlamaForCausalLM(config)

    def step(tokens: Any, mask: Any, place: Any, *past: Any) -> tuple[Any, ...]:
        cache = DynamicCache()
        for layer in range(_LAYERS):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = net(input_ids=tokens, attention_mask=mask, position_ids=place, past_key_values=cache, use_cache=True)
        kept = result.past_key_values.layers
        return (result.logits, *(tensor for layer in kept for tensor in (layer.keys, layer.values)))

    past = [torch.randn(1, 2, 128, 64) for _ in range(2 * _LAYERS)]
    names = [f"past{place}" for place in range(2 * _LAYERS)]
    values = (torch.ones(1, 1, dtype=torch.long), torch.ones(1, 129, dtype=torch.long), torch.full((1, 1), 128), *past)
    outputs = ["logits", *(f"next{place}" for place in range(2 * _LAYERS))]
    axes = {**{name: {2: "past"} for name in names}, "mask": {1: "total"}}
    _export(_module(torch, net, step), values, path, ["ids", "mask", "place", *names], outputs, axes)


def _module(torch: Any, net: Any, forward: Any) -> Any:
    """A module with this forward function, which holds the network."""
    holder = torch.nn.Module()
    holder.net, holder.forward = net, forward
    return holder.eval()


def _export(module: Any, values: Any, path: Path, inputs: list[str], outputs: list[str], axes: Any) -> None:
    from torch.onnx import export

    names = {"input_names": inputs, "output_names": outputs, "dynamic_axes": axes}
    export(module, values, str(path), opset_version=17, dynamo=False, **names)


def main() -> None:
    import torch

    for name, make in (("unet", _unet), ("vit", _vit), ("llama", _llama)):
        torch.manual_seed(0)
        make(torch, Path(sys.argv[1]) / f"{name}.onnx")


if __name__ == "__main__":
    main()
