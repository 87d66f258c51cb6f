"""IOS's Tables 1 and 2, to the digits shown."""

import pytest

from experiments.frame import printed
from experiments.ios import table3_simulated
from experiments.ios.against import against
from experiments.ios.networks import blocks_of, network, paper_units
from experiments.ios.table1 import BLOCKS, row_of, schedules

TABLE_1, TABLE_2 = printed("ios_table1"), printed("ios_table2")


@pytest.mark.parametrize(("name", "block"), [(name, block) for name, blocks in BLOCKS.items() for block in blocks])
def test_table_1(name, block):
    """Each of the blocks that may be the paper's widest has its counts, to the two digits that it prints."""
    row = row_of(name, block)
    assert (row["n"], row["width"]) == tuple(TABLE_1.figure(column, network=name) for column in ("n", "width"))
    for column in ("pairs", "schedules"):
        assert float(f"{row[f'{column}_ios']:.1e}") == TABLE_1.figure(column, network=name)
        assert row[f"{column}_all"] >= row[f"{column}_ios"]


@pytest.mark.parametrize(
    ("name", "blocks"), [("inception_v3", 13), ("randwire_large", 6), ("nasnet_large", 25), ("squeezenet", 12)]
)
def test_table_2(name, blocks):
    """The operators are the paper's. Our blocks are those that `ours` of the table names: stems and heads are some."""
    graph = network(name)
    units = paper_units(graph)
    assert len(units.units) == TABLE_2.figure("operators", network=name)
    assert len(blocks_of(graph, units)) == blocks > TABLE_2.figure("blocks", network=name)


def test_counts_beyond_64_bits_are_whole():
    class Wide:
        def schedules(self):
            return 2, 3

    assert schedules(Wide()) == (2 << 64) + 3


def test_the_paper_s_figures_stand_beside_ours():
    line = against("Figure 9", 1.59, 1.749, "simulated")
    assert line == "Figure 9: paper (V100, measured) 1.59 | ours (simulated) 1.75 | ratio 1.100"
    line = against("ResNet-50", (1.02, 1.05), 1.02, "measured, CPU")
    assert line == "ResNet-50: paper (V100, measured) 1.02 to 1.05 | ours (measured, CPU) 1.02 | ratio 0.971 to 1.000"


def test_a_plan_made_for_a_batch_is_the_cheapest_there():
    rows = list(table3_simulated.rows_of("squeezenet", (1, 8)))
    for row in rows:
        times = row["simulated_s"]
        assert times[row["on"]] <= min(times.values()) * (1 + 1e-6)
    assert rows[0]["simulated_s"]["batch 8"] > rows[0]["simulated_s"]["batch 1"] * 1.001, "one plan for all"
