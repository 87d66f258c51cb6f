"""Memory grows with the operators of a network, not with their square."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from onnx import TensorProto, helper, save

from tests.command import output_of

PEAK = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "downset", *sys.argv[1:]], stdout=subprocess.PIPE)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""
COUNT = 30_000


def chain_of(count, path):
    names = ["x", *(f"t{step}" for step in range(count))]
    nodes = [helper.make_node("Relu", [one], [two]) for one, two in pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in (names[0], names[-1])]
    save(helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:])), path)
    return path


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return chain_of(COUNT, tmp_path_factory.mktemp("large") / "chain.onnx")


@pytest.mark.parametrize("command", ["order", "inspect"])
def test_a_long_network_takes_memory_by_operators(chain, command):
    """Masks of all operators would take 350 MB here; what is held is a few kilobytes an operator."""
    done = subprocess.run([sys.executable, "-c", PEAK, command, str(chain)], capture_output=True, text=True, check=True)
    code, peak_mib = map(int, done.stdout.split())
    assert code == 0
    assert peak_mib < 250


def test_the_screen_shows_the_operators_around_the_peak_and_json_all(tmp_path):
    count = 3000
    path = chain_of(count, tmp_path / "chain.onnx")
    screen = output_of("inspect", path)
    assert f"{count - 1000:,} more operators are not shown, and JSON has them" in screen
    result = json.loads(output_of("inspect", path, "--json"))
    assert len(result["steps"]) == count
    marked = re.findall(r"^│ +([\d,]+) \* │", screen, re.MULTILINE)
    assert marked
    assert all(result["steps"][int(step.replace(",", ""))]["live_bytes"] == result["peak_bytes"] for step in marked)
