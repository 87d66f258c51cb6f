"""What the arena experiments claim: optima by an independent solver, and that every planner in them is checked."""

import pytest

from downset.arenas.check_records import check_placement
from downset.memory.bounds import offsets_bound
from experiments.arenas import objects
from experiments.speed import arena, arena_peers
from experiments.tflite_memory.networks import usage_records


@pytest.mark.parametrize(("network", "least"), [("MobileNet v2", 6.6992), ("DeepLab v3", 6.4369)])
def test_an_integer_program_finds_no_less_than_the_exact_objects(network, least):
    row = objects.row_of(network, usage_records(network), 30.0)
    assert row["proven"]
    assert row["cp_sat_proven"]
    assert row["cp_sat"] == row["exact"] <= row["best"] <= min(row["litert"], row["paper"])
    assert round(row["exact"] / objects.MIB, 4) == least


def test_exact_objects_of_a_network_that_no_heuristic_solves():
    row = objects.row_of("Inception v3", usage_records("Inception v3"), None)
    assert row["proven"]
    assert round(row["exact"] / objects.MIB, 4) == 9.9845
    assert row["exact"] < row["best"]


def test_peers_that_are_installed_place_what_ours_places():
    records = arena.made(40, 10)
    assert "CP-SAT" in arena_peers.installed()
    for name, planner in arena_peers.installed().items():
        offsets = planner(records, 2.0)
        check_placement(records, offsets)
        assert max(at + r.nbytes for at, r in zip(offsets, records, strict=True)) >= offsets_bound(records), name
    rows = list(arena.peer_rows("made", records, 1.0))
    assert rows[0]["ratio"] == 1.0
    assert all(row["over_bound"] >= 1.0 for row in rows)
