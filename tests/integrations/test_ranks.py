"""Two ranks of one job, as two processes that meet through gloo: unlike conditions, one order of collectives."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]

PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.utils import is_collective, is_wait
from torch.distributed._functional_collectives import all_reduce
import downset as ds

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
widths = (512, 256, 128, 32) if rank == 0 else (32, 128, 256, 512)  # so the least peaks are of opposite orders
torch.manual_seed(rank)
x = torch.randn(64, 8)
halves = [(torch.randn(8, width), torch.randn(width, 8) / width**0.5) for width in widths]
reports = []
options, option = ds.inductor.options(report=reports.append), "_post_fusion_custom_pass"
ours = options[option]
orders = []


class Alone(CustomSchedulerPass):
    # Inductor chains collectives itself. Without its chain, our rule alone must keep their order.
    def uuid(self):
        return None

    def __call__(self, nodes):
        before = {node: node.unmet_dependencies for node in nodes}
        for node in nodes:
            node.unmet_dependencies = type(before[node])(
                dep for dep in before[node] if not (getattr(dep, "is_fake", False) and is_collective(node.node))
            )
        ordered = ours(list(nodes))
        for node in nodes:
            node.unmet_dependencies = before[node]
        meet = [node.get_name() for node in ordered if is_collective(node.node) or is_wait(node.node)]
        orders.append((meet, [nodes.index(node) for node in ordered]))
        return ordered


def function(x, halves):
    made = [all_reduce(x.mm(up).mm(down), "sum", dist.group.WORLD) for up, down in halves]
    return made[0].t().mm(made[1]).mm(made[2].t().mm(made[3]))  # each sum counts at its own place


expected = function(x, halves)
with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
    found = torch.compile(function, fullgraph=True, options={**options, option: Alone()})(x, halves)
close = torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
((meet, order),) = orders
print(json.dumps({"close": close, "meet": meet, "order": order, "chosen": reports[0].chosen}))
"""


def test_ranks_meet_in_one_order_whatever_their_own_peaks_ask_for(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONHASHSEED": str(rank + 1)},
        )
        for rank in range(2)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=600)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [of["chosen"] for of in said] == [False, True]  # each rank decides by its own bytes
    assert said[0]["order"] != said[1]["order"]
    assert said[0]["meet"] == said[1]["meet"]
    assert len(said[0]["meet"]) == 8
    assert all(of["close"] for of in said)
