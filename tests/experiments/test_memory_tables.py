"""The memory paper's tables from networks built here, and the addresses that its remark on speed is measured at."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.rows import load_rows
from experiments.tflite_memory import litert, shares, tables
from experiments.tflite_memory.networks import NETWORKS, REBUILT, network

ROOT = Path(__file__).resolve().parents[2]
OTHER = {
    ("MobileNet v2", "greedy_by_size_improved"): 6.6992,
    ("DeepLab v3", "min_cost_flow"): 8.7273,
    ("DeepLab v3", "strip_packing"): 4.3204,
}
"""Cells that the paper prints differently, and ours."""


@pytest.mark.parametrize("column", range(3))
def test_cells_of_the_papers_own_graphs_are_the_papers(column):
    name = list(NETWORKS)[column]
    rows = list(tables.rows_of(name, exact=True))
    compared = [row for row in rows if row["same"] is not None]
    assert len(compared) == 12
    differing = {(name, row["strategy"]): row["ours_mib"] for row in compared if not row["same"]}
    assert differing == {key: mib for key, mib in OTHER.items() if key[0] == name}
    assert all(row["proven"] for row in rows if row["strategy"] == "exact")


def test_reconstructions_are_never_compared_as_if_they_were_the_papers():
    assert {row["same"] for row in tables.rows_of("BlazeFace", exact=False)} == {None}
    assert set(REBUILT) == set(list(NETWORKS)[3:])


def test_a_runtime_computes_the_same_at_the_arenas_addresses():
    """And not where tensors overlap: so the comparison that the measurement makes can fail."""
    graph = network("BlazeFace")
    arena, apart = shares.placed(graph, "best"), shares.placed(graph, "naive")
    assert arena.arena_bytes * 4 < apart.arena_bytes
    heap = replace(arena, tensor_offsets=dict.fromkeys(arena.tensor_offsets, 0))
    session = shares.session_with_all_outputs("BlazeFace", graph, list(arena.tensor_offsets))
    feed = np.random.default_rng(1).standard_normal(graph.tensors[graph.inputs[0]].shape, dtype=np.float32)
    expected, ours, wrong = (shares.bound_run(session, graph, plan, feed)() for plan in (apart, arena, heap))
    assert all(np.array_equal(one, other) for one, other in zip(expected, ours, strict=True))
    assert not all(np.array_equal(one, other) for one, other in zip(expected, wrong, strict=True))


def test_the_share_of_intermediates_is_near_the_papers():
    for paper in shares.PAPER.rows:
        graph = network(paper["network"])
        row = shares.share_row(paper["network"], graph, shares.placed(graph, "best"))
        assert row["share"] == pytest.approx(paper["share"], abs=0.03)


def test_litert_takes_what_the_model_says_or_more():
    recorded = load_rows(litert.EXPERIMENT.name)
    rows = [row for row in recorded if "error" not in row]
    assert len(rows) > 30
    assert all(row["measured"] + litert.ROUNDING >= row["modelled"] for row in rows)
    as_modelled = [row for row in rows if litert.beside(row) == "as modelled"]
    files = "all files" if as_modelled == rows else f"{len(as_modelled)} of {len(rows)} files"
    page = " ".join((ROOT / "docs" / "memory-models.md").read_text().split())
    assert f"on {files} that LiteRT runs ({len(rows)} of {len(recorded)} rows) the arena is the model's" in page
