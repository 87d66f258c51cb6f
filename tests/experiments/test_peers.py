"""Other programs leave the models that they are compared on as they are."""

from argparse import Namespace

from experiments.fit.models import SHAPES, Model
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
