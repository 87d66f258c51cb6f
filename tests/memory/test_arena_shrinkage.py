"""What the guide says of `memory.enable_memory_arena_shrinkage`: less is held at rest, and the peak stays."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

RUN = """
import sys
import numpy, onnxruntime as ort
from downset.results.sessions import TRIMMED
from downset.runtimes.ort_settings import open_session
def now():
    parts = (line.split() for line in open("/proc/self/status") if line[:5] in ("VmHWM", "VmRSS"))
    return {part[0]: 1024 * int(part[1]) for part in parts}
x = numpy.ones((1 << 21,), numpy.float32)
options = ort.RunOptions()
if sys.argv[2] == "shrinks":
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
before, session = now(), open_session(ort, sys.argv[1], TRIMMED[0])
for _ in range(4):
    session.run(None, {"x": x}, options)
after = now()
print(after["VmHWM:"] - before["VmRSS:"], after["VmRSS:"] - before["VmRSS:"])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports resident memory so")
def test_an_arena_that_shrinks_holds_less_at_rest_and_no_less_at_the_peak(tmp_path):
    names = ["x", "a", "b", "c"]
    nodes = [helper.make_node("Exp", [one], [other]) for one, other in pairwise(names)]
    nodes += [helper.make_node("Add", ["a", "c"], ["d"]), helper.make_node("ReduceSum", ["d"], ["y"], keepdims=0)]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1 << 21])]
    graph = helper.make_graph(nodes, "shrinks", ends, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    grown = {}
    for way in ("keeps", "shrinks"):
        command = [sys.executable, "-c", RUN, str(tmp_path / "m.onnx"), way]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        grown[way] = [int(figure) for figure in done.stdout.split()]
    (peak, rest), (other_peak, other_rest) = grown["keeps"], grown["shrinks"]
    assert other_rest < rest - (8 << 20)
    assert other_peak > 0.95 * peak
