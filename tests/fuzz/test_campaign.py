"""The campaign of damaged files (campaign.py), in short and at fixed seeds, and that it finds what it is for."""

import pytest

from tests.effort import LONG
from tests.fuzz import campaign

pytestmark = pytest.mark.own_processes("parsers")

SEEDS, PART = (90, 30) if LONG else (15, 15)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return campaign.corpus(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("part", range(SEEDS // PART))
def test_damaged_files_of_every_format(files, tmp_path, part):
    """Nothing but a result or a DownsetError in one clean line; a third of the files get past the parsers."""
    seeds = range(part * PART, (part + 1) * PART)
    counts = campaign.cycle(files, seeds, tmp_path)
    parsed = sum(number for (_, outcome), number in counts.items() if outcome == "parsed")
    assert sum(counts.values()) == (len(files) - 3) * len(seeds) + 3 * len(seeds) // 3
    assert parsed * 3 >= sum(counts.values())
    assert all(counts[form, "parsed"] and counts[form, "refused"] for form in (".onnx", ".tflite", ".pt2", "plan"))


@pytest.mark.parametrize(
    ("raised", "says"), [(ValueError("bug"), "bug"), (campaign.DownsetError("two\nlines"), "raw characters")]
)
def test_a_traceback_or_an_unclean_line_fails(files, tmp_path, monkeypatch, raised, says):
    def load(path):
        raise raised

    monkeypatch.setattr(campaign, "load", load)
    with pytest.raises(campaign.Failed, match=says):
        campaign.cycle(files, range(1), tmp_path)
    assert campaign.cycle(files, range(1), tmp_path, tmp_path)[".onnx", "failed"] == 2
    assert list(tmp_path.glob("0-branchy.onnx.txt"))


def test_a_file_left_behind_fails(files, tmp_path):
    (tmp_path / "x.part").write_bytes(b"")
    with pytest.raises(campaign.Failed, match="left behind"):
        campaign.cycle(files, range(1), tmp_path)


def test_a_case_is_the_same_again(files):
    assert all(campaign.case(path, 7) == campaign.case(path, 7) for path in files)
