"""docs/pytorch.md: its examples compile, and those of the guide."""

import re
from pathlib import Path

import pytest

from experiments.inductor.measure import peak_bytes

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pytorch.md").read_text()


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
