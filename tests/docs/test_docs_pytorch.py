"""docs/pytorch.md: its table is the recorded rows, and its examples compile."""

import re
from pathlib import Path

import pytest

from experiments.inductor.measure import WAYS
from experiments.rows import load_rows

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pytorch.md").read_text()


def test_training_steps():
    rows = {(row["network"], row["way"]): row for row in load_rows("inductor")}
    shown = PAGE[PAGE.index("| network | eager") :].split("\n\n")[0]
    lines = shown.splitlines()[2:]
    assert {line.split("`")[1] for line in lines} == {network for network, _ in rows}
    for line in lines:
        network = line.split("`")[1]
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        of = [rows[network, way] for way in WAYS]
        assert cells[:4] == [f"{row['peak_bytes']:,}" for row in of]
        assert cells[4] == ("yes" if of[3]["proven"] else "no")
        assert cells[5] == " / ".join(f"{1000 * row['step_s']:.1f}" for row in of)
        assert cells[6] == f"{of[2]['first_step_cpu_s']:.0f} / {of[3]['first_step_cpu_s']:.0f}"


def test_recomputation():
    rows = {(row["way"], row["setting"]): row for row in load_rows("inductor_recompute")}
    ways = {"PyTorch's budget": "pytorch", "our limit": "downset"}
    found = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith(("| PyTorch's", "| our limit"))]
    assert len(found) == len(rows)
    for cells in found:
        (way,) = (short for name, short in ways.items() if cells[0].strip().startswith(name))
        row = rows[way, float(cells[0].split()[-1])]
        said = [f"{row[name]:,}" if name in row else "-" for name in ("peak_bytes", "estimate", "again")]
        assert [cell.strip() for cell in cells[1:]] == said
        assert row["peak_bytes"] <= row.get("estimate", row["peak_bytes"])
    theirs = {setting: row["peak_bytes"] for (way, setting), row in rows.items() if way == "pytorch"}
    assert theirs[0.8] < theirs[0.5]
    least = min(row["peak_bytes"] for (way, _), row in rows.items() if way == "downset")
    assert theirs[0.1] < least


def test_the_examples():
    torch = pytest.importorskip("torch")
    names = {}
    with torch._inductor.config.patch(force_disable_caches=True):
        for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(example, names)
    assert torch.isfinite(names["loss"])
    assert names["step"].fallback == ""
