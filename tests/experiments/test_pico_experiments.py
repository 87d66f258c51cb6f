"""Experiments on PICO's evaluation: quick runs write nothing, and what is recorded is whole and in order."""

from itertools import product

import pytest

from downset.pipelines.accounting import COMM
from downset.pipelines.planners import PIPELINERS
from experiments import rows as committed
from experiments.frame import run
from experiments.pico import compare, figures12_16, hand_over, tables6_7

pytestmark = pytest.mark.native


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [(tables6_7, ["--limit", "0.2"], "Figures 17 and 18"), (hand_over, ["--seconds", "0.5"], "recorded")],
    ids=lambda one: one.EXPERIMENT.name if hasattr(one, "EXPERIMENT") else "",
)
def test_quick_runs_print_the_recorded_rows_and_write_nothing(module, arguments, said, capsys):
    before = committed.load_rows(module.EXPERIMENT.name)
    run(module.EXPERIMENT, ["--quick", *arguments])
    assert said in capsys.readouterr().out
    assert committed.load_rows(module.EXPERIMENT.name) == before


def test_direct_hand_over_is_never_recorded_above_leaders_or_those_above_a_baseline():
    rows = committed.load_rows(hand_over.EXPERIMENT.name)
    assert {(row["network"], row["cluster"]) for row in rows} == set(product(compare.NETWORKS, compare.CLUSTERS))
    for row in rows:
        assert row["direct_bound_s"] <= row["direct_s"] <= row["leader_s"] * (1 + 1e-9), row
        assert row["leader_s"] <= row["least_baseline_s"] * (1 + 1e-9), row


def test_no_method_is_recorded_below_exact_on_any_network_and_cluster():
    rows = committed.load_rows(compare.EXPERIMENT.name)
    assert {(row["network"], row["cluster"]) for row in rows} >= set(product(compare.NETWORKS, compare.CLUSTERS))
    for row in rows:
        assert row["bound_s"] <= row["exact"] * 1.001, row  # `exact` has five decimals
        assert row["exact"] <= min(row[method] for method in PIPELINERS), row


def test_figures_12_to_16_are_recorded_in_both_models_of_time():
    rows = committed.load_rows(figures12_16.EXPERIMENT.name)
    made = {comm: {tuple(row.get(k) for k in POINT) for row in rows if row["comm"] == comm} for comm in COMM}
    assert made["paper"] == made["resources"]
    assert {figure for figure, *_ in made["paper"]} == {12, 13, 14, 15, 16}


POINT = [column for column in figures12_16.KEY if column != "comm"]


def test_tables_6_and_7_have_a_row_for_every_case_and_model_of_time():
    rows = committed.load_rows("pico_tables6_7")
    cases = [paper["case"] for paper in (*tables6_7.GRAPHS.rows, *tables6_7.CHAINS.rows)]
    assert {(row["case"], row["comm"]) for row in rows} == set(product(cases, COMM))
    for row in rows:
        assert row["exact"]["period_s"] <= min(row["pico"]["period_s"], row["exhaustive"]["period_s"]) * (1 + 1e-9), row
