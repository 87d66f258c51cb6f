"""The examples of docs/pytorch.md and of its guide run, and print what is shown. No code is generated for them."""

import re
from pathlib import Path

import torch

from experiments.inductor.measure import peak_bytes
from tests.effort import LONG
from tests.fresh_graphs import fresh_graphs
from tests.ordered_only import order_only

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "pytorch.md").read_text()
GUIDE = (DOCS / "guides" / "pytorch-training.md").read_text()


def printed(shown, said):
    """Whether this line was printed, with any time of planning; the shown one has the time of some run, too."""
    before, time = shown.split("; planned in ")
    assert re.fullmatch(r"\d+\.\d{3} s", time)
    return re.search(re.escape(f" {before}; planned in ") + r"\d+\.\d{3} s$", said, re.MULTILINE) is not None


def test_the_examples(capsys, tmp_path, monkeypatch):
    """They print what the page shows, apart from Inductor's number of the graph and the time."""
    names = {}
    monkeypatch.chdir(tmp_path)
    order_only(monkeypatch.setattr)
    with fresh_graphs():
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
    """It prints what the guide shows, apart from Inductor's number of the graph and the time, and writes its page. With
    LONG=1 it is compiled, and its memory measured."""
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (shown,) = re.findall(r"```text\ngraph 0 (.*)\n```", GUIDE)
    names = {}
    monkeypatch.chdir(tmp_path)
    if not LONG:
        order_only(monkeypatch.setattr)
    with fresh_graphs():
        exec(example, names)
    out = capsys.readouterr().out
    assert printed(shown, out)
    assert re.search(r"\d buf\d+ a gradient$", out, re.MULTILINE), "no line of the model, but a name"
    assert torch.isfinite(names["loss"]) and names["step"].fallback == ""
    assert "training step" in (tmp_path / "training_0.html").read_text()
    gain = re.search(r"\(-([\d.]+)%\)", shown)
    assert float(gain[1]) > 10
    if LONG:
        holds_less_than_half(names)


def holds_less_than_half(names):
    model, optimizer, inputs, targets = (names[name] for name in ("model", "optimizer", "inputs", "targets"))
    compiled = torch.compile(model)

    def loop():
        torch.nn.functional.cross_entropy(compiled(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    loop()
    assert "this step holds less than half of what `torch.compile(model)`" in " ".join(GUIDE.split())
    assert 2 * peak_bytes(lambda: names["step"](inputs, targets)) < peak_bytes(loop)
