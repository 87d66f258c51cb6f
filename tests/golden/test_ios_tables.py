"""IOS's Tables 1 and 2, to the digits shown."""

import pytest

from experiments.ios import table3_simulated
from experiments.ios.against import against
from experiments.ios.networks import blocks_of, network, paper_units
from experiments.ios.table1 import row_of, schedules

TABLE = {
    ("inception_v3", 10): (11, 6, 4871, 5040, "3.757e+06", "4.410e+06"),
    ("inception_v3", 11): (11, 6, 4871, 5040, "3.757e+06", "4.410e+06"),
    ("randwire_large", 3): (33, 8, 1_170_663, 3_560_808, "9.197e+22", "1.185e+23"),
    ("nasnet_large", 3): (18, 8, 307_841, 335_331, "7.151e+12", "8.839e+12"),
    ("nasnet_large", 10): (18, 8, 307_841, 335_331, "7.151e+12", "8.839e+12"),
    ("nasnet_large", 17): (18, 8, 307_841, 335_331, "7.151e+12", "8.839e+12"),
    ("squeezenet", 1): (6, 3, 51, 60, "1.310e+02", "1.520e+02"),
    ("squeezenet", 3): (6, 3, 51, 60, "1.310e+02", "1.520e+02"),
    ("squeezenet", 6): (6, 3, 51, 60, "1.310e+02", "1.520e+02"),
    ("squeezenet", 8): (6, 3, 51, 60, "1.310e+02", "1.520e+02"),
}


@pytest.mark.parametrize("name, block", TABLE)
def test_table_1(name, block):
    row = row_of(name, block)
    found = (row["n"], row["width"], row["pairs_ios"], row["pairs_all"])
    assert found == TABLE[name, block][:4]
    assert (f"{row['schedules_ios']:.3e}", f"{row['schedules_all']:.3e}") == TABLE[name, block][4:]
    if name == "inception_v3":
        assert row["schedules_ios"] == 3_757_392


@pytest.mark.parametrize(
    ("name", "blocks", "operators"),
    [("inception_v3", 13, 119), ("randwire_large", 6, 120), ("nasnet_large", 25, 374), ("squeezenet", 12, 50)],
)
def test_table_2(name, blocks, operators):
    graph = network(name)
    units = paper_units(graph)
    assert (len(blocks_of(graph, units)), len(units.units)) == (blocks, operators)


def test_counts_beyond_64_bits_are_whole():
    class Wide:
        def schedules(self):
            return 2, 3

    assert schedules(Wide()) == (2 << 64) + 3


def test_the_paper_s_figures_stand_beside_ours():
    line = against("Figure 9", 1.59, 1.749, "simulated")
    assert line == "Figure 9: paper (V100, measured) 1.59 | ours (simulated) 1.75 | ratio 1.10"
    line = against("ResNet-50", (1.02, 1.05), 1.02, "measured, CPU")
    assert line == "ResNet-50: paper (V100, measured) 1.02 to 1.05 | ours (measured, CPU) 1.02 | ratio 0.97 to 1.00"


def test_a_plan_made_for_a_batch_is_the_cheapest_there():
    rows = list(table3_simulated.rows_of("squeezenet", (1, 8)))
    for row in rows:
        times = row["simulated_s"]
        assert times[row["on"]] <= min(times.values()) * (1 + 1e-6)
    assert rows[0]["simulated_s"]["batch 8"] > rows[0]["simulated_s"]["batch 1"] * 1.001, "one plan for all"
