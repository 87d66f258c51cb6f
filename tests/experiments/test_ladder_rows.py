"""No rung of a training step without a limit takes more memory or time than the rung below it, as recorded."""

import pytest

from experiments.inductor.fresh_process import check_losses
from experiments.inductor.ladder import CASES, RUNGS, worse_than_below
from experiments.rows import load_rows


def row(rung, peak_bytes, of_below):
    return {"network": "guide", "rung": rung, "peak_bytes": peak_bytes, "of_below": of_below}


@pytest.mark.parametrize(
    ("peak_bytes", "of_below", "worse"), [(102, 1.05, False), (103, 1.0, True), (100, 1.06, True), (50, 0.5, False)]
)
def test_a_rung_is_worse_by_two_percent_of_memory_or_five_of_time(peak_bytes, of_below, worse):
    rows = [row("forward and backward", peak_bytes, of_below), row("torch.compile", 100, 1.2), row("eager", 1, None)]
    assert bool(worse_than_below(rows)) is worse


@pytest.mark.parametrize(("field", "way"), [("rung", "torch.compile"), ("way", "ours 0.2")])
def test_losses_that_differ_are_told_with_the_way_that_has_them(field, way):
    """A row of the ladder names its rung, one of the ways by hand its way."""
    eager = {"network": "guide", field: "eager", "losses": [1.0, 0.5]}
    check_losses({**eager, field: way, "losses": [1.0, 0.5004]}, eager)
    with pytest.raises(SystemExit, match=rf"guide: losses differ: {way} \[1.0, 0.51\], eager"):
        check_losses({**eager, field: way, "losses": [1.0, 0.51]}, eager)


def test_no_recorded_rung_takes_more_than_the_one_below():
    rows = load_rows("inductor_ladder")
    assert {one["network"] for one in rows} == {*CASES}
    assert not worse_than_below(rows)
    for one in rows:
        assert one["network"] in CASES
        assert one["rung"] in RUNGS
        eager = next(of for of in rows if (of["network"], of["rung"]) == (one["network"], "eager"))
        assert one["losses"] == pytest.approx(eager["losses"], rel=1e-3)
