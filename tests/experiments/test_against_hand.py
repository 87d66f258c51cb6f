"""The table against what is written by hand: what is one row, and where the hand is not beaten."""

import pytest
import torch

from experiments.inductor.against_hand import lost_to_hand, of_rounds
from experiments.inductor.by_hand import WAYS
from experiments.inductor.networks import NETWORKS, blocks_of
from experiments.rows import load_rows


def row(way, peak_bytes, step_cpu_s, losses=(1.0, 0.5)):
    return {
        "network": "n", "way": way, "peak_bytes": peak_bytes, "step_cpu_s": step_cpu_s, "losses": list(losses)
    }  # fmt: skip


def test_rounds_become_a_row():
    made = of_rounds([row("ours", 5, 0.3), row("ours", 7, 0.1), row("ours", 6, 0.2)])
    assert made == row("ours", 7, 0.2)
    with pytest.raises(SystemExit, match="losses differ"):
        of_rounds([row("ours", 5, 0.3), row("ours", 5, 0.3, losses=(1.0, 0.6))])


def test_the_hand_is_beaten_only_in_both():
    hand = row("both", 10, 1.0)
    for ours, better in (((9, 0.9), True), ((10, 1.0), True), ((9, 1.1), False), ((11, 0.9), False)):
        (pair,) = lost_to_hand([hand, row("ours 0.6", *ours), row("eager", 1, 0.1)])
        assert pair == (hand, [row("ours 0.6", *ours)] if better else [])


def test_a_block_is_part_of_its_model_and_none_is_inside_another():
    for name, make in NETWORKS.items():
        if name == "gpt2_small":  # as `gpt`, and 500 MB of weights
            continue
        model = make().model
        blocks = blocks_of(model)
        inside = [id(module) for block in blocks for module in block.modules()]
        assert blocks and len(inside) == len(set(inside)) <= len(list(model.modules())), name


def test_the_committed_rows_agree_with_one_another():
    rows = load_rows("inductor_by_hand")
    assert rows
    for one in rows:
        assert one["way"] in WAYS
        eager = next(other for other in rows if (other["network"], other["way"]) == (one["network"], "eager"))
        assert one["losses"] == pytest.approx(eager["losses"], rel=1e-3)


def test_recorded_steps_within_a_limit_hold_what_their_reports_say():
    """Within 2 %, and 10 % with convolutions."""
    rows = [row for row in load_rows("inductor_by_hand") if row["way"].startswith("ours ") and "planned_bytes" in row]
    assert rows
    for row in rows:
        layers = NETWORKS[row["network"]]().model.modules()
        share = 1.10 if any(isinstance(layer, torch.nn.Conv2d) for layer in layers) else 1.02
        assert row["peak_bytes"] <= share * row["planned_bytes"], row["network"]
