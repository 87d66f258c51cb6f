"""An example after the memory-management paper's, its tables, and the expectations of LiteRT's own unit tests."""

import json
from pathlib import Path

import pytest

from downset.arenas.constrained.textures import TEXTURES, Texture
from downset.arenas.from_objects import objects_to_offsets
from downset.arenas.gaps import height
from downset.arenas.objects_fit import assign_in_order, object_sizes, total_bytes
from downset.arenas.plan import plan_arena, plan_shared
from downset.arenas.planners import ARENAS, SHARED
from downset.formats.records_csv import read_records
from downset.memory.bounds import breadths, objects_bound, offsets_bound, positional_maxima
from downset.memory.records import Record
from experiments.frame import printed
from tests.clocks import unlimited
from tests.oracles_arena import least_height, least_total

HERE = Path(__file__).resolve().parent
MIB = 2**20

# After figures 1 and 2. The paper's text states operator 3's profile (36, 28, 16: breadth 80) and the third positional
# maximum, 16; the other sizes stand in for those of the figure, and what the strategies make of them is worked by hand.
EXAMPLE = [
    Record(str(index), first, last + 1, nbytes)
    for index, (first, last, nbytes) in enumerate(
        [(0, 1, 32), (1, 4, 28), (2, 5, 36), (3, 5, 16), (4, 5, 8), (5, 7, 64), (6, 8, 10), (7, 8, 40)]
    )
]


def test_the_example_has_the_profiles_that_the_text_tells():
    at = {step: [r.nbytes for r in EXAMPLE if r.start <= step < r.stop] for step in range(9)}
    assert sorted(at[3], reverse=True) == [36, 28, 16]
    assert dict(breadths(EXAMPLE))[3] == sum(at[3]) == 80
    thirds = [sorted(sizes, reverse=True)[2] for sizes in at.values() if len(sizes) > 2]
    assert thirds == [16, 16, 16, 10]
    assert positional_maxima(EXAMPLE)[2] == 16
    assert positional_maxima(EXAMPLE) == (64, 40, 16, 8)
    assert objects_bound(EXAMPLE) == 128
    assert offsets_bound(EXAMPLE) == max(sum(sizes) for sizes in at.values()) == 124


@pytest.mark.parametrize("ties", ["paper", "tflite"])
@pytest.mark.parametrize(
    ("strategy", "total"),
    [
        ("naive", 234),
        ("equality", 234),
        # {5: 64, 0: 32}, {7: 40, 2: 36}, {1: 28, 6: 10}, {3: 16}, {4: 8}
        ("greedy_by_size", 156),
        ("greedy_by_size_improved", 128),
        # operator 5 first: 64, 36, 16, 8; operator 7: 40 widens the 36, 10 goes to the 16; then 28 to 64 and 32 to 40
        ("greedy_by_breadth", 128),
        # {0, 2, 7}: 40, {1, 5}: 64, {3}: 16, {4, 6}: 10
        ("greedy_in_order", 130),
        # 32 grows to 36 to 40, 28 to 64; 16 hands on to 10, and 8 stays alone
        ("min_cost_flow", 128),
        ("exact", 128),
        ("best", 128),
    ],
)
def test_the_example_as_shared_objects(strategy, total, ties):
    found = SHARED[strategy](EXAMPLE, ties=ties)
    assert total_bytes(EXAMPLE, found.solution) == total
    assert found.bound <= least_total(EXAMPLE) == 128


@pytest.fixture(scope="module")
def least():
    """The oracle's answer, which takes a second."""
    return least_height(EXAMPLE)


@pytest.mark.parametrize("ties", ["paper", "tflite"])
@pytest.mark.parametrize(
    ("strategy", "total"),
    [
        ("naive", 234),
        # 5 at 0, 7 and 2 at 64, 0 at 0, 1 at 32, 3 at 100, 6 at 104, 4 at 116
        ("greedy_by_size", 124),
        ("greedy_by_breadth", 124),
        # 0 at 0, 1 at 32, 2 at 60; 3 at 0 and 4 at 16 under them; 5 at 96, above 2
        ("greedy_in_order", 160),
        ("strip_packing", 124),
        ("equality", 234),
        ("from_objects", 128),
        ("tflm_greedy", 124),
        ("local_search", 124),
        ("exact", 124),
        ("best", 124),
    ],
)
def test_the_example_as_offsets(strategy, total, ties, least):
    found = ARENAS[strategy](EXAMPLE, ties=ties)
    assert height(EXAMPLE, found.solution) == total
    assert found.bound == least == 124


RECORDS = {
    "MobileNet v1": "mobilenet_v1_1.0_224",
    "MobileNet v2": "mobilenet_v2_1.0_224",
    "DeepLab v3": "deeplabv3_257_mv_gpu",
}
"""By the paper's name of a network whose graph is public: the file of its records."""
TABLE_1, TABLE_2 = printed("memory_table1"), printed("memory_table2")
NOT_REPRODUCIBLE = {
    ("greedy_by_size_improved", "MobileNet v2"),
    ("min_cost_flow", "DeepLab v3"),
    ("strip_packing", "DeepLab v3"),
}
"""The strategies' docstrings say why."""


def paper_records(network):
    return read_records(HERE / "records" / f"{RECORDS[network]}.csv")


def strategies_of(table):
    return [row["strategy"] for row in table.rows if row["strategy"] != "lower bound"]


@pytest.mark.parametrize("network", RECORDS)
@pytest.mark.parametrize("strategy", strategies_of(TABLE_1))
def test_table_1(strategy, network):
    plan = plan_shared(paper_records(network), method=strategy, ties="paper")
    same = round(plan.total_bytes / MIB, 3) == TABLE_1.figure(network, strategy=strategy)
    assert same == ((strategy, network) not in NOT_REPRODUCIBLE)
    assert plan.total_bytes >= plan.evidence.bound


@pytest.mark.parametrize("network", RECORDS)
@pytest.mark.parametrize("strategy", strategies_of(TABLE_2))
def test_table_2(strategy, network):
    arena = plan_arena(paper_records(network), method=strategy, ties="paper")
    mib = TABLE_2.figure(network, strategy=strategy)
    if (strategy, network) in NOT_REPRODUCIBLE:  # ours is the bound itself, below what the paper prints
        assert arena.arena_bytes == arena.evidence.bound and round(arena.arena_bytes / MIB, 3) < mib
    else:
        assert round(arena.arena_bytes / MIB, 3) == mib


@pytest.mark.parametrize("network", RECORDS)
def test_lower_bounds_of_both_tables(network):
    """And the row called naive, which the second table takes from the first."""
    records = paper_records(network)
    assert round(objects_bound(records) / MIB, 3) == TABLE_1.figure(network, strategy="lower bound")
    assert round(offsets_bound(records) / MIB, 3) == TABLE_2.figure(network, strategy="lower bound")
    naive = plan_arena(records, method="naive", ties="paper")
    assert round(naive.arena_bytes / MIB, 3) == TABLE_1.figure(network, strategy="naive")


@pytest.mark.parametrize(
    ("network", "least"), [("MobileNet v2", 6.6992), ("DeepLab v3", 6.4369), ("MobileNet v1", 4.5938)]
)
def test_exact_shared_objects_of_the_papers_networks(network, least):
    plan = plan_shared(paper_records(network), method="exact")
    assert round(plan.total_bytes / MIB, 4) == least
    assert plan.evidence.proven


@pytest.mark.parametrize("network", RECORDS)
def test_the_default_meets_the_bound_on_the_papers_networks(network):
    assert plan_arena(paper_records(network)).evidence.proven


CASES = {case["name"]: case for case in json.loads((HERE / "litert_memory_tests.json").read_text())["cases"]}
STRATEGIES = {
    "NAIVE": "naive",
    "EQUALITY": "equality",
    "GREEDY_IN_ORDER": "greedy_in_order",
    "MINCOSTFLOW": "min_cost_flow",
    "GREEDY_BY_BREADTH": "greedy_by_breadth",
    "GREEDY_BY_SIZE": "greedy_by_size_improved",
}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "steps" not in case])
def test_litert_expects(name):
    case = CASES[name]
    for expected in case["expect"]:
        strategy = expected["strategy"]
        if case["records"] and isinstance(case["records"][0]["size"], dict):
            textures = [
                Texture(str(i), r["first"], r["last"] + 1, tuple(r["size"]["dims"]))
                for i, r in enumerate(case["records"])
            ]
            found = TEXTURES[STRATEGIES[strategy]](textures)
            extents = [list(textures[found.index(held)].extent) for held in range(max(found) + 1)]
            assert (list(found), extents) == (expected["object_ids"], expected["object_sizes"]), strategy
            continue
        records = [
            Record(str(i), r["first"], r["last"] + 1, r["size"], expected.get("align", 1))
            for i, r in enumerate(case["records"])
        ]
        if expected["kind"] == "objects":
            found = SHARED[STRATEGIES[strategy]](records, ties="tflite").solution
            sizes = object_sizes(records, found)
            assert (list(found), sizes) == (expected["object_ids"], expected["object_sizes"]), strategy
        else:
            found = ARENAS[strategy.lower()](records, ties="tflite").solution
            assert list(found) == expected["offsets"]
            assert height(records, found) == expected["total_size"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "steps" in case])
def test_litert_expects_of_objects_laid_out_as_offsets(name):
    case = CASES[name]
    expected, sizes, held = iter(case["expect"]), [], []
    for step in case["steps"]:
        sizes = step.get("set_object_sizes", sizes)
        held = step.get("set_object_ids", held)
        if "call" in step:
            wanted = next(expected)
            assert list(objects_to_offsets(held, sizes)) == wanted["offsets"]
            assert sum(sizes) == wanted.get("total_size", sum(sizes))
    assert next(expected, None) is None


def test_the_letter_of_algorithm_2_does_not_give_the_table():
    """The smallest suitable object, as printed; docs/arenas.md has these figures."""
    found = {}
    for name in ("mobilenet_v1_1.0_224", "deeplabv3_257_mv_gpu"):
        records = read_records(HERE / "records" / f"{name}.csv")
        by_size = sorted(range(len(records)), key=lambda index: (-records[index].nbytes, index))
        assigned = [assign_in_order(records, by_size, clock=unlimited(), first=first) for first in (True, False)]
        found[name] = [round(total_bytes(records, objects.solution) / MIB, 3) for objects in assigned]
    assert found == {"mobilenet_v1_1.0_224": [4.594, 5.359], "deeplabv3_257_mv_gpu": [6.437, 7.102]}
