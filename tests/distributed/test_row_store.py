"""Rows in and out of a device's store, against slices of the whole tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.distributed.serving.device_program import RowStore, TensorForm
from downset.errors import InvalidPlan
from downset.results.pipelines import Rows

SHAPE = (1, 2, 7, 5)
WHOLE = np.arange(70, dtype=np.float32).reshape(SHAPE)
FORM = TensorForm("t", SHAPE, "float32", 2, 3)


def _span(most):
    return st.tuples(st.integers(0, most), st.integers(0, most)).filter(lambda s: s[0] < s[1])


def _cut(rows):
    low, high = rows.columns or (0, 5)
    return WHOLE[:, :, rows.start : rows.stop, low:high]


@given(st.lists(st.tuples(_span(7), st.none() | _span(5)), max_size=6), _span(7), st.none() | _span(5))
def test_what_is_asked_for_is_put_together_or_known_to_be_missing(held, wanted, columns):
    store = RowStore({0: FORM}, {0: 1})
    known = np.zeros((7, 5), bool)
    for (start, stop), side in held:
        rows = Rows(0, start, stop, side)
        store.put(rows, _cut(rows))
        known[start:stop, slice(*(side or (0, 5)))] = True
    asked = Rows(0, *wanted, columns)
    if known[slice(*wanted), slice(*(columns or (0, 5)))].all():
        found = store.rows(asked)
        assert found.flags["C_CONTIGUOUS"]
        np.testing.assert_array_equal(found, _cut(asked))
    else:
        with pytest.raises(InvalidPlan, match="only a part of rows"):
            store.rows(asked)


def test_rows_are_dropped_after_the_last_read():
    store = RowStore({0: FORM, 1: TensorForm("u", (3,), "float32", None, None)}, {0: 2})
    store.put(Rows(0, 0, 7), WHOLE)
    store.put(Rows(1, 0, 1), np.zeros(3, np.float32))  # nobody reads it
    assert store.nbytes == WHOLE.nbytes
    store.read([0])
    assert store.nbytes == WHOLE.nbytes
    store.read([0])
    assert store.nbytes == 0


@pytest.mark.parametrize("array", [WHOLE[:, :, :3], WHOLE.astype(np.float64), WHOLE[0]])
def test_other_arrays_than_the_plan_says_are_refused(array):
    with pytest.raises(InvalidPlan, match="expected float32"):
        RowStore({0: FORM}, {0: 1}).put(Rows(0, 0, 7), array)
