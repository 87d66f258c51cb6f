"""Prices of segments in strips are those of the rewritten network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.graph.cost import macs, row_form
from downset.memory.liveness import order_problem, profile
from downset.memory.models import MEMORY_MODELS
from downset.partial.memory_form import Persistent
from downset.partial.price import Pricing
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segments import find_segment, find_segments
from downset.partial.strip_program import most_strips, strip_program
from tests.effort import cases
from tests.equivalence.tflite_pairs import Build, add
from tests.equivalence.tflite_tables import made, save
from tests.partial.oracles.price import counted, counts_of
from tests.spatial import in_int8, spatial_graphs

MODELS = [model for model in MEMORY_MODELS.values() if not model.concat_is_view]


@given(spatial_graphs(), st.data())
@settings(max_examples=cases(80))
def test_prices_are_those_of_the_rewritten_network(graph, data):
    if data.draw(st.booleans()):
        graph = in_int8(graph)
    form = row_form(graph)
    found = list(find_segments(graph, form, most_crossing=data.draw(st.integers(1, 3))))
    assume(found)
    segment = data.draw(st.sampled_from(found))
    even = data.draw(st.booleans())
    strips = data.draw(st.integers(1, most_strips(form, segment, even=even)))
    recomputed = frozenset(data.draw(st.sets(st.sampled_from(list(segment.operators)))))
    try:
        program = strip_program(graph, form, segment, strips, recomputed=recomputed, even=even)
        striped = in_strips(graph, [InStrips(segment.first, segment.stop, strips, recomputed, even)])
    except UnsupportedError:
        return
    persistent = Persistent(tuple(range(100, 100 + len(graph.ops))), 7, 3)
    for model in MODELS:
        pricing = Pricing(graph, form, model, persistent=persistent)
        price = pricing.strips(segment, strips, recomputed=recomputed, even=even)
        assert counted(price) == counts_of(pricing, program)
        live = profile(order_problem(striped, model), range(len(striped.ops)))
        inside = live[segment.first : segment.first + price.extra_operators + len(segment.operators)]
        assert len(striped.ops) == len(graph.ops) + price.extra_operators
        assert price.peak_bytes == max(inside), model.name
        problem = replace(order_problem(striped, model), in_place=(), in_place_bytes=())
        apart = profile(problem, range(len(striped.ops)))
        assert price.apart_bytes == max(apart[segment.first : segment.first + len(inside)]), model.name
        assert price.extra_macs == macs(striped) - macs(graph)
        assert price.narrow_bytes == price.persistent_bytes - 3 * price.extra_operators


def test_operators_that_read_constants_alone_have_a_price(tmp_path):
    """A segment with a window that no activation moves over is priced, as the network itself is in one strip."""
    build = Build()
    x = build.input((1, 8, 8, 2))
    held = build.tensor((1, 8, 8, 2), value=np.ones(128, np.float32))
    weights = [build.tensor(shape, value=np.ones(shape, np.float32)) for shape in ((2, 3, 3, 2), (2,))]

    def convolved(tensor):
        options = made(schema.Conv2DOptionsT, strideH=1, strideW=1)
        return build.op("CONV_2D", [tensor, *weights], [build.tensor((1, 8, 8, 2))], options)

    summed = add(build, convolved(x), convolved(held), shape=(1, 8, 8, 2))
    graph = load(save(build.outputs(convolved(summed)), tmp_path / "m.tflite"))
    form, segment = row_form(graph), find_segment(graph, 0, len(graph.ops))
    for model in MODELS:
        for strips in (1, 2, 4):
            pricing = Pricing(graph, form, model)
            price = pricing.strips(segment, strips)
            assert counted(price) == counts_of(pricing, strip_program(graph, form, segment, strips))
            if strips == 1:
                assert price.peak_bytes == max(profile(order_problem(graph, model), range(len(graph.ops))))
