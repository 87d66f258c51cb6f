"""Random PyTorch networks of branches, and a second look at what they allocate: PyTorch's own loader and module, in a
process of its own, under PyTorch's profiler. Nothing here is shared with downset."""

import json
import random
import subprocess
import sys

import torch
from torch import nn

PROFILE = """
import json, sys, torch
from torch.profiler import ProfilerActivity, profile
peaks = []
for path, shape in json.loads(sys.argv[1]):
    module, value, most = torch.export.load(path).module(), torch.randn(shape), 0
    for _ in range(2):
        with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            module(value)
        events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
        live = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            live += event.nbytes()
            most = max(most, live)
    peaks.append(most)
print("PEAKS", json.dumps(peaks))
"""


class Branches(nn.Module):
    """Calls drawn from the seed, each on any earlier value, also in place; all that nothing reads is an output."""

    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        self.layers, self.calls = nn.ModuleList(), []
        self.side = draw.choice([8, 14, 16, 28, 33])
        sizes = [(3, self.side)]
        for _ in range(draw.randint(4, 10)):
            source = draw.randrange(len(sizes))
            made = self._drawn(draw, sizes, source)
            if made is not None:
                sizes.append(made)

    def _drawn(self, draw, sizes, source):
        channels, side = sizes[source]
        kind = draw.choice(
            [
                "conv",
                "conv",
                "conv",
                "depthwise",
                "norm",
                "max",
                "average",
                "relu",
                "relu_",
                "sigmoid",
                "matmul",
                "add",
                "mul",
                "cat",
            ]
        )
        if kind in ("add", "mul", "cat"):
            fits = [i for i, size in enumerate(sizes) if size[1] == side and (kind == "cat" or size[0] == channels)]
            other = draw.choice(fits)
            self.calls.append((kind, source, other))
            return (channels + sizes[other][0] if kind == "cat" else channels, side)
        if kind in ("relu", "relu_", "sigmoid", "matmul"):
            if kind == "relu_" and not source:  # the input is the caller's
                return None
            self.calls.append((kind, source, source))
            return channels, side
        if kind in ("max", "average") and side < 4:
            return None
        kernel, stride, width = draw.choice([1, 3, 5]), draw.choice([1, 1, 2]), draw.choice([4, 7, 8, 16, 24, 32])
        layer, made = {
            "conv": (nn.Conv2d(channels, width, kernel, stride, kernel // 2), (width, (side - 1) // stride + 1)),
            "depthwise": (nn.Conv2d(channels, channels, 3, 1, 1, groups=channels), (channels, side)),
            "norm": (nn.BatchNorm2d(channels), (channels, side)),
            "max": (nn.MaxPool2d(2), (channels, side // 2)),
            "average": (nn.AvgPool2d(3, 1, 1), (channels, side)),
        }[kind]
        self.layers.append(layer)
        self.calls.append((len(self.layers) - 1, source, source))
        return made

    def forward(self, x):
        values = [x]
        for kind, source, other in self.calls:
            one, two = values[source], values[other]
            if isinstance(kind, int):
                values.append(self.layers[kind](one))
            else:
                values.append(
                    {
                        "relu": torch.relu,
                        "relu_": torch.relu_,
                        "sigmoid": torch.sigmoid,
                        "matmul": lambda value: value @ value.transpose(2, 3),
                        "add": lambda value, two=two: value + two,
                        "mul": lambda value, two=two: value * two,
                        "cat": lambda value, two=two: torch.cat([value, two], 1),
                    }[kind](one)
                )
        read = {place for _, *places in self.calls for place in places}
        ends = [value for place, value in enumerate(values) if place not in read and place]
        return torch.stack([end.mean() for end in ends]).sum(), *ends[:2]


def saved(path, network, *shape):
    """Export the network for an input of that shape into a file."""
    torch.export.save(torch.export.export(network.eval(), (torch.randn(shape),)), path)
    return path


def drawn_file(path, seed):
    """(the file of a random network, the shape of its input)."""
    torch.manual_seed(seed)
    network = Branches(seed)
    shape = (1, 3, network.side, network.side)
    return saved(path, network, *shape), shape


def profiled_peaks(files):
    """The most bytes that each (file, shape of its input) allocates at once."""
    given = json.dumps([(str(path), shape) for path, shape in files])
    done = subprocess.run(
        [sys.executable, "-c", PROFILE, given], capture_output=True, text=True, check=True, timeout=300
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("PEAKS "))
    return json.loads(line.removeprefix("PEAKS "))
