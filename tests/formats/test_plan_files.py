"""Plans as files: JSON there and back, and a C header."""

import re

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.arenas.plan import plan_arena, plan_shared
from downset.errors import LoadError
from downset.formats.c_header import c_header
from downset.formats.plan_json import decode_plan, encode_plan, read_plan
from downset.formats.writing import export
from downset.joint.check import verify
from downset.memory.liveness import OrderProblem, Storage
from downset.memory.records import Record
from downset.orders.plan import plan_order
from downset.reports.text import report
from downset.results.plans import Arena, Order, Together
from tests.strategies import graphs


@given(graph=graphs(), memory=st.sampled_from(["live", "tflm", "serenity", "ort"]))
def test_json_round_trips_and_keeps_its_schema(graph, memory):
    order = plan_order(graph, memory=memory, method="greedy")
    arena = plan_arena(graph, order)
    _, parts = msgspec.json.schema_components([Order, Arena, Together])
    for plan, name in ((order, "Order"), (arena, "Arena"), (Together(order, arena), "Together")):
        data = encode_plan(plan)
        assert decode_plan(data) == plan
        raw = msgspec.json.decode(data)
        assert raw["schema"] == 1
        jsonschema.validate(raw, {"$defs": parts, "$ref": f"#/$defs/{name}"})
    assert f"{arena.arena_bytes:,}" in report(graph, order, arena)


@pytest.mark.parametrize("nbytes", [2**53 - 1, 2**53 + 1, 2**58 + 3])
def test_bytes_above_what_floats_hold_come_back_the_same(nbytes):
    arena = plan_arena([Record("a", 0, 2, nbytes), Record("b", 1, 3, 2)], method="best")
    shared = plan_shared(arena.records)
    chain = OrderProblem(((),), (Storage(nbytes, (0,), (0,), kept=True),))
    for plan in (arena, shared, plan_order(chain)):
        again = decode_plan(encode_plan(plan))
        assert again == plan
        assert again.evidence.value == plan.evidence.value >= nbytes
        if isinstance(plan, Order):
            verify(chain, again)
        else:
            verify(again)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kind":"order"}',
        b'{"kind":"order","schema":9}',
        b'{"kind":"order","schema":1,"steps":"x"}',
        b'{"kind":"order","schema":1,"ok":true,"error":null,"peak_bytes":14}',
    ],
)
def test_what_is_no_plan_is_refused(data, tmp_path):
    (tmp_path / "plan.json").write_bytes(data)
    with pytest.raises(LoadError, match=r"plan\.json"):
        read_plan(tmp_path / "plan.json")


@given(graph=graphs())
def test_the_header_states_the_plan_in_numbers(graph):
    order = plan_order(graph, memory="live", method="greedy")
    arena = plan_arena(graph, order)
    text = c_header(graph, order, arena)
    assert f"_ARENA_BYTES {arena.arena_bytes}u" in text
    rows = re.findall(r"\{(\d+)u, (\d+)u, (\d+)u\},  //", text)
    assert {int(t): int(at) for t, at, _ in rows} == dict(arena.tensor_offsets)
    assert all(graph.tensors[int(t)].nbytes == int(n) for t, _, n in rows)


def test_export_writes_plans_by_suffix(tmp_path):
    from downset.graph.core import Graph, Op, Tensor

    tensors = (Tensor("x", (4,), "uint8", 4), Tensor("y\\\nz", (4,), "uint8", 4))
    graph = Graph("1 model", tensors, (Op("op", "Relu", (0,), (1,)),), (0,), (1,)).check()
    order = plan_order(graph)
    arena = plan_arena(graph, order)
    export(tmp_path / "order.json", graph, order)
    export(tmp_path / "arena.json", graph, order, arena)
    export(tmp_path / "plan.h", graph, order, arena)
    assert read_plan(tmp_path / "order.json") == order
    assert read_plan(tmp_path / "arena.json") == arena
    assert "y/?z" in (tmp_path / "plan.h").read_text()


@pytest.mark.parametrize("name", ["t\\", "t??/", "t???/", "t\x1b\x1b\\", "t?\n/", "t" * 77 + "??/", "t" * 78 + "\\\n"])
def test_no_name_takes_the_next_line_of_a_header(name, tmp_path):
    """In strict ISO C ??/ is a backslash: at its end a comment takes the next tensor."""
    from downset.graph.core import Graph, Op, Tensor

    tensors = (Tensor(name, (4,), "uint8", 4), Tensor("y", (4,), "uint8", 4))
    graph = Graph(name, tensors, (Op("op", "Relu", (0,), (1,)),), (0,), (1,)).check()
    order = plan_order(graph)
    lines = c_header(graph, order, plan_arena(graph, order)).splitlines()
    assert sum(line.startswith("    {") for line in lines) == 2
    assert not [line for line in lines if line.replace("??/", "\\").endswith("\\")]
