"""A case of a kernel: what it is given, and how exactly its results must agree. And what cases are made from."""

from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto


@dataclass
class Case:
    """One operator: `inputs` in order (None: left out), of which `constants` are initializers."""

    inputs: list
    attrs: dict = field(default_factory=dict)
    constants: tuple = ()
    dtypes: tuple = (TensorProto.FLOAT,)
    opset: int = 18
    tolerance: float = 2e-5


def shape(r, low=1, high=4):
    return tuple(int(extent) for extent in r.integers(1, 6, r.integers(low, high + 1)))


def normal(r, *extents):
    return r.standard_normal(extents).astype(np.float32)


def positive(r, *extents):
    return (np.abs(r.standard_normal(extents)) + 0.1).astype(np.float32)


def broadcast(r, whole):
    """A shape that broadcasts to the whole: some extents 1, some leading ones left out."""
    part = [extent if r.random() < 0.6 else 1 for extent in whole]
    return tuple(part[int(r.integers(0, len(part) + 1)) if r.random() < 0.4 else 0 :])


def pick(r, *options):
    return options[int(r.integers(len(options)))]


def elementwise(make=normal, dtypes=(TensorProto.FLOAT,), **attrs):
    def case(r):
        drawn = {name: round(float(r.uniform(*bounds)), 3) for name, bounds in attrs.items() if r.random() < 0.7}
        return Case([make(r, *shape(r))], drawn, dtypes=dtypes)

    return case


def two(make=normal, second=None, dtypes=(TensorProto.FLOAT,)):
    def case(r):
        whole = shape(r)
        inputs = [make(r, *whole), (second or make)(r, *broadcast(r, whole))]
        return Case(inputs[::-1] if second is None and r.random() < 0.5 else inputs, dtypes=dtypes)

    return case


def small_integers(r, *extents):
    return r.integers(-3, 4, extents)


def divisors(r, *extents):
    return np.where(r.random(extents) < 0.5, 1, -1).astype(np.float32) * positive(r, *extents)


def truths(r, *extents):
    return r.random(extents) < 0.5


def arithmetic(r):
    return two()(r) if r.random() < 0.7 else two(small_integers, dtypes=(TensorProto.INT64,))(r)


def quotient(r):
    if r.random() < 0.7:
        return two(normal, divisors)(r)
    whole = shape(r)
    return Case([r.integers(-20, 21, whole), r.integers(1, 5, whole) * pick(r, 1, -1)], dtypes=(TensorProto.INT64,))


def comparison(r):
    make = pick(r, normal, small_integers)
    return two(make, dtypes=(TensorProto.BOOL,))(r)


def many(r):
    whole = shape(r)
    return Case([normal(r, *whole), *(normal(r, *broadcast(r, whole)) for _ in range(r.integers(0, 4)))])
