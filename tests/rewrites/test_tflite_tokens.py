"""Attention in strips of tokens, written as .tflite files: LiteRT computes what it did before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from downset.equivalence.prove import prove
from downset.formats.reading import load
from downset.formats.writing import export
from downset.graph.cost import row_form
from downset.orders.plan import plan_order
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segments import computed_whole
from downset.rewrites.tflite_form import tflite_form, writable_rows
from tests.effort import cases
from tests.rewrites.test_tflite_strips import in_litert
from tests.strip_networks import StripNet

TOKENS, WIDTH = 6, 4


class TokenNet(StripNet):
    def linear(self, x, width):
        *front, depth = self.shape(x)
        weights = self._weights(x, (width, depth), 0)
        return self.add_op("FULLY_CONNECTED", (x, *weights), (*front, width), "FullyConnectedOptions", keepNumDims=True)

    def product(self, one, two, shape, *, flipped=False):
        return self.add_op("BATCH_MATMUL", (one, two), shape, "BatchMatMulOptions", adjX=False, adjY=flipped)

    def heads(self, x):
        """1 x tokens x width as 1 x 2 x tokens x half."""
        shape = (1, TOKENS, 2, WIDTH // 2)
        x = self.add_op("RESHAPE", (x, self.constant(shape)), shape, "ReshapeOptions", like=x, newShape=shape)
        order = self.constant([0, 2, 1, 3])
        return self.add_op("TRANSPOSE", (x, order), (1, 2, TOKENS, WIDTH // 2), "TransposeOptions", like=x)

    def softmax(self, x):
        made = self.add_op("SOFTMAX", (x,), self.shape(x), "SoftmaxOptions", beta=1.0)
        if self.dtype == "int8":
            entry = self.main.tensors[made].quantization
            entry.scale, entry.zeroPoint = np.array([1 / 256], np.float32), np.array([-128], np.int64)
        return made

    def attention(self, x, *, several):
        queries, keys, values = (self.linear(x, WIDTH) for _ in range(3))
        front = (1, TOKENS)
        if several:
            queries, keys, values = map(self.heads, (queries, keys, values))
            front = (1, 2, TOKENS)
        scores = self.product(queries, keys, (*front, TOKENS), flipped=True)
        mixed = self.product(self.softmax(scores), values, (*front, self.shape(values)[-1]))
        if several:
            order = self.constant([0, 2, 1, 3])
            mixed = self.add_op("TRANSPOSE", (mixed, order), (1, TOKENS, 2, WIDTH // 2), "TransposeOptions", like=mixed)
            shape = (1, TOKENS, WIDTH)
            mixed = self.add_op(
                "RESHAPE", (mixed, self.constant(shape)), shape, "ReshapeOptions", like=mixed, newShape=shape
            )
        return self.residual(x, self.linear(mixed, WIDTH))


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@given(data=st.data())
@settings(max_examples=cases(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_attention_in_strips_computes_what_it_did(tmp_path_factory, dtype, data):
    folder = tmp_path_factory.mktemp("net")
    net = TokenNet(data.draw(st.integers(0, 99)), dtype=dtype)
    x = net.activation((1, TOKENS, WIDTH))
    net.main.inputs.append(x)
    result = net.attention(x, several=data.draw(st.booleans()))
    path = net.save(folder / "m.tflite", [result])
    graph = load(path)
    form = writable_rows(graph, row_form(graph, halos_required=False))
    assert not computed_whole(graph, form)
    part = InStrips(0, len(graph.ops), data.draw(st.integers(2, TOKENS)), frozenset(), data.draw(st.booleans()))
    striped = tflite_form(in_strips(graph, [part], form=form))
    export(folder / "strips.tflite", striped, plan_order(striped, method="file", memory="litert"))
    for one, other in zip(in_litert(path), in_litert(folder / "strips.tflite"), strict=True):
        if dtype == "int8":
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
    proof = prove(path, folder / "strips.tflite")
    assert proof.proven, proof.reason
    assert proof.exact == (dtype == "int8")
