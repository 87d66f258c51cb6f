"""Damaged files: whatever is done to a model's bytes, only DownsetErrors come out, and soon."""

import json
import random

import pytest

from downset.errors import DownsetError
from downset.formats.reading import load
from downset.orders.plan import plan_order
from tests.effort import LONG
from tests.models import branchy_model, installed_model

pytestmark = pytest.mark.own_processes("parsers")

CASES = 1500 if LONG else 120


def mutated(data, generator):
    """One to eight bytes set at random, bits flipped, a piece cut out or doubled, or the end cut off."""
    data = bytearray(data)
    how = generator.randrange(6)
    if how == 0:
        del data[generator.randrange(len(data)) :]
    elif how == 1:
        start = generator.randrange(len(data))
        del data[start : start + generator.randrange(1, 64)]
    elif how == 2:
        start = generator.randrange(len(data))
        data[start:start] = data[start : start + generator.randrange(1, 64)]
    else:
        for _ in range(generator.randrange(1, 9)):
            at = generator.randrange(len(data))
            data[at] = generator.choice(
                [0, 0xFF, 0x7F, 0x80, data[at] ^ 1 << generator.randrange(8), generator.randrange(256)]
            )
    return bytes(data)


def attack(path, data, seed, cases):
    generator = random.Random(seed)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(cases):
        path.write_bytes(mutated(data, generator))
        try:
            graph = load(path)
            plan_order(graph, method="greedy", memory="tflm")
            outcomes["read"] += 1
        except DownsetError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    return outcomes


@pytest.mark.parametrize("seed", range(2))
def test_damaged_onnx(tmp_path, seed):
    data = branchy_model(tmp_path / "whole.onnx").read_bytes()
    outcomes = attack(tmp_path / "m.onnx", data, seed, CASES)
    assert min(outcomes.values()) > CASES // 50  # the attack reaches both sides of the reader


@pytest.mark.parametrize(
    ("package", "name", "cases"),
    [
        ("tflite-micro", "sine_float.tflite", CASES),
        ("pymicro-wakeword", "alexa.tflite", CASES // 5),
    ],
)
def test_damaged_tflite(tmp_path, package, name, cases):
    data = installed_model(package, name).read_bytes()
    outcomes = attack(tmp_path / "m.tflite", data, 0, cases)
    assert min(outcomes.values()) > cases // 50


def test_damaged_structure_of_a_tflite_file(tmp_path):
    """Most bytes of a model are weights; these cases hit its tables only."""
    data = installed_model("pymicro-wakeword", "okay_nabu.tflite").read_bytes()
    generator = random.Random(3)
    for _ in range(CASES // 5):
        damaged = bytearray(data)
        for _ in range(generator.randrange(1, 4)):
            at = len(data) - 1 - generator.randrange(14_000)  # tables of this file are at its end
            damaged[at] = generator.choice([0, 0xFF, 0x80, generator.randrange(256)])
        (tmp_path / "m.tflite").write_bytes(damaged)
        try:
            load(tmp_path / "m.tflite")
        except DownsetError as error:
            assert "\n" not in str(error)


def test_damaged_plain_graphs(tmp_path):
    plain = {
        "name": "g",
        "tensors": [{"size": 4}, {"size": 8}, {"size": 2}],
        "ops": [{"ins": [0], "outs": [1]}, {"ins": [1], "outs": [2]}],
        "inputs": [0],
        "outputs": [2],
    }
    data = json.dumps(plain).encode()
    outcomes = attack(tmp_path / "m.json", data, 0, CASES)
    assert min(outcomes.values()) > 0
