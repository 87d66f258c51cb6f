"""Shapes and long names as reports write them, and inputs in the line below a page's title."""

import random
from dataclasses import replace

import downset as ds
from downset.graph.core import Tensor
from downset.reports.fit_document import fit_document
from downset.reports.naming import shape_text
from tests.models import branchy_model
from tests.plain_graphs import random_graph


def test_scalars_have_a_name_and_tensors_of_bytes_alone_have_no_shape():
    assert shape_text(Tensor("a", (1, 16000), "float32", 64000)) == "1x16000"
    assert shape_text(Tensor("a", (), "int64", 8)) == "scalar"
    assert shape_text(Tensor("a", (), "opaque", 8)) == ""


def test_the_line_below_the_title_names_inputs_with_their_shapes(tmp_path):
    fitted = ds.fit(branchy_model(tmp_path / "net.onnx"), target="torch", rewrite="off", time_limit_s=1)
    assert fit_document(fitted).subtitle.endswith("operators, inputs: x 1x3x8x8")
    graph = fitted.graph
    rates = [replace(graph.tensors[graph.inputs[0]], name=f"rate{at}", shape=()) for at in range(5)]
    added = tuple(range(len(graph.tensors), len(graph.tensors) + 5))
    wide = replace(graph, tensors=(*graph.tensors, *rates), inputs=(*graph.inputs, *added))
    said = fit_document(replace(fitted, graph=wide)).subtitle
    assert said.endswith("inputs: x 1x3x8x8, rate0 scalar, rate1 scalar, rate2 scalar, 2 more")


def test_no_line_about_an_order_is_wider_than_a_screen_however_long_the_names():
    short = random_graph(random.Random(3), 12)
    path = "model/" + "block_of_a_long_name/" * 20
    tensors = tuple(replace(tensor, name=f"{path}{tensor.name}") for tensor in short.tensors)
    ops = tuple(replace(op, name=f"{path}\t{op.name}") for op in short.ops)
    graph = replace(short, name=f"{path}net", tensors=tensors, ops=ops)
    order = ds.plan_order(graph, method="kahn")
    for report in (ds.report(graph, order), ds.report(graph, order, ds.plan_arena(graph, order))):
        lines = report.partition("\nnext, the best first:")[0].split("\n")
        assert max(map(len, lines)) <= 120
        live = next(line for line in lines if line.startswith("│ model"))
        head, peak = lines[2], next(line for line in lines if "the peak is at step" in line)
        assert all(line.count("…") == 1 and "model/block" in line for line in (head, peak, live))
        page = report.page()
        assert f">{path}net</h1>" in page
        assert all(f"<td>{path}?{op.name}" in page for op in short.ops)
