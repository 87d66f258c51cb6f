"""SwiftNet for human presence detection (Zhang et al., 2019): three irregular cells, as in the published .tflite.

That file quantises the activations away (they are clamps of its uint8 ranges), so here each convolution of a cell has
its ReLU again; its input copy (a Split into one part) is left out.
"""

from __future__ import annotations

import onnx

from zoo.network import Network, Value

__all__ = ["build", "cell"]

# A cell in the file's order, one word an operator: its name, =, what it is, and the names that it reads. c: 1x1
# convolution, d: depthwise 3x3 convolution, j: concatenation; x is the cell's input, the last word its output before
# the projection.
_A = """a=c:x b=j:x,a c=c:a d=c:x e=j:x,d f=c:a g=c:b h=j:f,g i=j:x,d,f,g k=c:h l=j:a,k m=j:g,k n=c:l o=c:i p=j:c,g,n,o
q=d:g r=c:q s=d:n t=c:s u=d:m v=c:u w=d:e y=c:w z=c:p out=j:r,t,v,y,z"""
_B = """a=c:x b=c:x c=c:x d=c:x skip=p:x e=d:a f=d:a g=c:e h=j:a,g i=j:a,g k=c:h l=d:i m=c:f n=j:m,b o=c:n p=c:b
q=j:x,a,g,c r=c:q s=c:r t=c:l out=j:d,k,o,s,p,t"""
_C = """a=c:x skip=p:x b=d:a c=c:a d=d:a e=c:a f=d:a g=d:a h=c:b i=j:x,h k=j:a,h l=c:i m=d:k n=d:c o=d:c p=c:d q=c:n
r=c:o s=c:m t=c:f u=c:g out=j:l,p,q,e,r,s,t,u"""

_CELLS = {"a": (_A, 32, 48), "b": (_B, 48, 80), "c": (_C, 64, 76)}
"""Its operators, the channels of its convolutions, the channels of its output."""


def _cell(net: Network, x: Value, name: str) -> Value:
    words, channels, out = _CELLS[name]
    values = {"x": x}
    with net.scope(f"cell_{name}"):
        for word in words.split():
            result, kind, read = word.replace("=", ":").split(":")
            parts = [values[item] for item in read.split(",")]
            if kind == "j":
                values[result] = net.concat(*parts)
            elif kind == "p":
                values[result] = net.conv(parts[0], out, 1)
            elif kind == "d":
                values[result] = net.depthwise(parts[0], 3, act="relu")
            else:
                values[result] = net.conv(parts[0], channels, 1, act="relu")
        skip = values["skip"] if "skip" in values else net.conv(x, out, 1)
        return net.add(skip, net.conv(values["out"], out, 1))


def build(seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    """The whole network."""
    net = Network("swiftnet_hpd", seed, **options)
    x = net.conv(net.input(3, image), 16, 7, 4, "same", act="relu")
    x = net.conv(net.depthwise(x, 3, act="relu"), 32, 1, act="relu")
    for name in "abc":
        x = _cell(net, net.max_pool(x, 2, 2), name)
    x = net.flatten(net.avg_pool(x, x.shape[2], x.shape[2]))
    return net.model(net.softmax(net.linear(x, 2)))


def cell(name: str, seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    """Cell a, b or c alone, at its size in the network for that image."""
    net = Network(f"swiftnet_cell_{name}", seed, **options)
    channels, reduction = {"a": (32, 8), "b": (48, 16), "c": (80, 32)}[name]
    return net.model(_cell(net, net.input(channels, image // reduction), name))
