"""Shapes as pages write them, and inputs in the line below a page's title."""

from dataclasses import replace

import downset as ds
from downset.graph.core import Tensor
from downset.reports.naming import shape_text
from downset.reports.page.fit_page import fit_page
from tests.models import branchy_model


def test_scalars_have_a_name_and_tensors_of_bytes_alone_have_no_shape():
    assert shape_text(Tensor("a", (1, 16000), "float32", 64000)) == "1x16000"
    assert shape_text(Tensor("a", (), "int64", 8)) == "scalar"
    assert shape_text(Tensor("a", (), "opaque", 8)) == ""


def test_the_line_below_the_title_names_inputs_with_their_shapes(tmp_path):
    fitted = ds.fit(branchy_model(tmp_path / "net.onnx"), target="torch", rewrite="off", time_limit_s=1)
    assert fit_page(fitted).subtitle.endswith("operators, inputs: x 1x3x8x8")
    graph = fitted.graph
    rates = [replace(graph.tensors[graph.inputs[0]], name=f"rate{at}", shape=()) for at in range(5)]
    added = tuple(range(len(graph.tensors), len(graph.tensors) + 5))
    wide = replace(graph, tensors=(*graph.tensors, *rates), inputs=(*graph.inputs, *added))
    said = fit_page(replace(fitted, graph=wide)).subtitle
    assert said.endswith("inputs: x 1x3x8x8, rate0 scalar, rate1 scalar, rate2 scalar, 2 more")
