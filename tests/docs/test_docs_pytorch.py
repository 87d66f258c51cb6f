"""docs/pytorch.md: its table is the recorded rows, and its examples compile."""

import re
from pathlib import Path

import pytest

from experiments.inductor.__main__ import MEASURED
from experiments.inductor.measure import WAYS, WITHIN, peak_bytes
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
        of = [rows[network, way] for way in (*WAYS, WITHIN)]
        assert [*cells[:4], cells[5]] == [f"{row['peak_bytes']:,}" for row in of]
        assert cells[4] == ("yes" if of[3]["proven"] else "no")
        assert cells[6] == " / ".join(f"{1000 * row['step_s']:.1f}" for row in of)
        assert cells[7] == " / ".join(f"{row['first_step_cpu_s']:.0f}" for row in of[2:])


def test_steps_within_a_limit():
    rows = {(row["network"], row["way"]): row for row in load_rows("inductor")}
    table, words = PAGE[PAGE.index("| network | without | limit") :].split("\n\n")[:2]
    words = " ".join(words.split())
    of = {network: row for (network, way), row in rows.items() if way == WITHIN}
    for line in table.splitlines()[2:]:
        network, *cells = (cell.strip(" `") for cell in line.split("|")[1:-1])
        row = of[network]
        keys = ("none_estimate", "limit", "estimate", "peak_bytes")
        assert cells == [f"{row[key]:,}" for key in keys]
    assert len(table.splitlines()) == 2 + len(of) == 2 + len(MEASURED)
    above = [100 * (row["peak_bytes"] / row["estimate"] - 1) for row in of.values()]
    assert f"the steps hold from {-min(above):.0f} % less to {max(above):.0f} % more" in words
    outside = {network for network, row in of.items() if row["estimate"] > row["limit"]}
    assert outside == set(re.findall(r"`(\w+)`", words[words.index("the limits of") : words.index("; there")]))
    more = {
        network
        for network, row in of.items()
        if row["peak_bytes"] >= min(rows[network, way]["peak_bytes"] for way in ("inductor", "ordered"))
    }
    assert more == {"dlrm"}
    assert "holds less than both on all networks but `dlrm`" in " ".join(PAGE.split())
    shares = [100 * row["planning_cpu_s"] / row["first_step_cpu_s"] for row in of.values()]
    assert f"and within a limit {min(shares):.1f} to {max(shares):.1f} %" in " ".join(PAGE.split())
    assert max(shares) < 5


def test_planning_of_whole_steps():
    ordered = [row for row in load_rows("inductor") if row["way"] == "ordered" and "planning_cpu_s" in row]
    shares = [100 * row["planning_cpu_s"] / row["first_step_cpu_s"] for row in ordered]
    assert len(shares) == len(MEASURED)
    assert f"takes {min(shares):.1f} to {max(shares):.1f} % of the CPU seconds of a first step" in " ".join(
        PAGE.split()
    )
    assert max(shares) < 5


def test_recomputation():
    rows = {(row["network"], row["way"], row["setting"]): row for row in load_rows("inductor_recompute")}
    ways = {"PyTorch's budget": "pytorch", "our limit": "downset"}
    shown = PAGE[PAGE.index("| network | setting") :].split("\n\n")
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown[0].splitlines()[2:]]
    assert len(found) == len(rows)
    for network, setting, *cells in found:
        name, share = setting.rsplit(" ", 1)
        row = rows[network.strip("`"), ways[name], float(share)]
        said = [f"{row[name]:,}" if name in row else "-" for name in ("peak_bytes", "estimate", "again")]
        assert cells == [*said, f"{row['of_first']:.2f}"]
    words = " ".join(shown[1].split())
    theirs = {setting: row for (network, way, setting), row in rows.items() if (network, way) == ("gpt", "pytorch")}
    mine = [row for (network, way, _), row in rows.items() if (network, way) == ("gpt", "downset")]
    least = min(row["peak_bytes"] for row in mine)
    lowest = min(theirs, key=lambda budget: theirs[budget]["peak_bytes"])
    below = 100 * (1 - least / theirs[lowest]["peak_bytes"])
    assert f"Our least peak is {below:.0f} % below that of its budget of {lowest}, the least of its own" in words
    assert theirs[0.8]["peak_bytes"] < theirs[0.5]["peak_bytes"]
    dlrm = {(way, setting): row for (network, way, setting), row in rows.items() if network == "dlrm"}
    (taken,) = {row["peak_bytes"] for (way, _), row in dlrm.items() if way == "pytorch"}
    assert f"alone takes {100 * (1 - dlrm['downset', 1.0]['peak_bytes'] / taken):.0f} % less" in words
    above = {key: row["peak_bytes"] - row["estimate"] for key, row in rows.items() if "estimate" in row}
    (scalars,) = {nbytes for (network, _, _), nbytes in above.items() if network == "dlrm"}
    assert f"holds its estimate and the two numbers that autograd begins with, {scalars} B" in words
    for name in ("gpt", "unet"):
        share = max(nbytes / rows[key]["estimate"] for key, nbytes in above.items() if key[0] == name)
        said = words[words.index(f"- `{name}`:") :].split(" - `")[0]
        assert f"holds up to {100 * share:.0f} % more than its estimate" in said
    planned = {key: row for key, row in rows.items() if "planning_s" in row}
    spent = [
        [row["planning_s"] for (of, _, _), row in planned.items() if of == network]
        for network in ("gpt", "dlrm", "unet")
    ]
    shares = [100 * row["planning_s"] / row["first_step_cpu_s"] for row in planned.values()]
    assert f"takes {min(spent[0]):.1f} to {max(spent[0]):.1f} s on `gpt`, " in words
    assert f"up to {max(spent[1]):.1f} s on `dlrm` and up to {max(spent[2]):.1f} s on `unet`" in words
    assert f"{min(shares):.0f} to {max(shares):.0f} % of the CPU seconds" in words
    assert max(shares) < 5


def test_recomputation_of_the_unet():
    rows = {(r["way"], r["setting"]): r for r in load_rows("inductor_recompute") if r["network"] == "unet"}
    words = " ".join(PAGE.split())
    theirs = min(row["peak_bytes"] for (way, _), row in rows.items() if way == "pytorch")
    (peak,) = {rows["downset", share]["peak_bytes"] for share in (0.75, 0.6, 0.45)}
    assert f"whose peak is {100 * (1 - peak / theirs):.0f} % below the least of PyTorch's budgets" in words
    more = rows["downset", 1.0]["peak_bytes"] / rows["pytorch", 1.0]["peak_bytes"] - 1
    assert f"holds {100 * more:.0f} % more than PyTorch's own choice" in words
    times = [rows["downset", share]["of_first"] for share in (0.75, 0.6, 0.45)]
    assert f"one set took {min(times):.2f} to {max(times):.2f} of the first row" in words


def printed(shown, said):
    """Whether this line was printed, with any time of planning; the shown one has the time of some run, too."""
    before, time = shown.split("; planned in ")
    assert re.fullmatch(r"\d+\.\d{3} s", time)
    return re.search(re.escape(f" {before}; planned in ") + r"\d+\.\d{3} s$", said, re.MULTILINE) is not None


def test_the_examples(capsys, tmp_path, monkeypatch):
    """They print what the page shows, apart from Inductor's number of the graph and the time."""
    torch = pytest.importorskip("torch")
    names = {}
    monkeypatch.chdir(tmp_path)
    with torch._inductor.config.patch(force_disable_caches=True):
        for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(example, names)
    (shown,) = re.findall(r"```text\ngraph 1 (.*)\n```", PAGE)
    said = capsys.readouterr().out
    assert printed(shown, said)
    (recomputed,) = re.findall(r"```text\n(recomputation.*)\n```", PAGE)
    assert recomputed in said
    assert "Memory against what runs again" in (tmp_path / "step_0.html").read_text()
    assert torch.isfinite(names["loss"])
    assert names["step"].fallback == ""


def test_the_example_of_the_guide(capsys, tmp_path, monkeypatch):
    """It prints what the guide shows, apart from Inductor's number of the graph and the time, and writes its page."""
    torch = pytest.importorskip("torch")
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "pytorch-training.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (shown,) = re.findall(r"```text\ngraph 0 (.*)\n```", guide)
    names = {}
    monkeypatch.chdir(tmp_path)
    with torch._inductor.config.patch(force_disable_caches=True):
        exec(example, names)
    out = capsys.readouterr().out
    assert printed(shown, out)
    assert re.search(r"\d buf\d+ a gradient$", out, re.MULTILINE), "no line of the model, but a name"
    assert torch.isfinite(names["loss"]) and names["step"].fallback == ""
    assert "training step" in (tmp_path / "training_0.html").read_text()
    gain = re.search(r"\(-([\d.]+)%\)", shown)
    assert float(gain[1]) > 10
    model, optimizer, inputs, targets = (names[name] for name in ("model", "optimizer", "inputs", "targets"))
    compiled = torch.compile(model)

    def loop():
        torch.nn.functional.cross_entropy(compiled(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    loop()
    assert "this step holds less than half of what `torch.compile(model)`" in " ".join(guide.split())
    assert 2 * peak_bytes(lambda: names["step"](inputs, targets)) < peak_bytes(loop)
