"""The table of operator kinds against what runs: kernels, readers, memory models. And that it is the only one."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx.defs
import pytest

from downset.formats.tflite.kinds import RENAMED, TRANSLATED
from downset.graph.core import Op
from downset.graph.kinds import KINDS, kind_of
from downset.kernels.nn import activation
from downset.kernels.table import KERNELS
from downset.memory.models import MEMORY_MODELS
from tests.kernel_cases import KINDS as CASES

SOURCE = Path(__file__).resolve().parents[2] / "src" / "downset"
LISTS = {
    "graph/kinds.py": "the table",
    "kernels/table.py": "kind -> kernel",
    "kernels/nn.py": "fused activation -> kernel",
    "memory/overlaps.py": "read in the kernels of libraries: whose result may take the place of an input",
    "memory/models.py": "measured: which kinds a runtime runs in place",
    "memory/reference_scratch.py": "read in the reference kernels: how much scratch each asks for, a dispatch table",
    "memory/cmsis_nn.py": "read in CMSIS-NN: how much scratch a kernel asks for, a dispatch table",
    "partial/memory_form.py": "measured: what TFLite Micro keeps for an operator of each kind",
    "equivalence/meaning.py": "proofs keep a vocabulary of their own: a wrong row must not make a wrong rewrite proven",
    "equivalence/torch_meaning.py": "what PyTorch's operators mean, in the same vocabulary",
    "equivalence/parts.py": "kind -> the identity that proves a part of it: a dispatch table",
    "equivalence/layouts.py": "what ONNX Runtime fuses into a convolution, and the defaults that it writes",
    "equivalence/motion_rules.py": "kind -> how its rows move with the window: a dispatch table of the proof",
    "formats/tflite/kinds.py": "reader: TFLite's names -> ONNX's",
    "formats/torch/kinds.py": "reader: PyTorch's names -> ONNX's",
    "formats/onnx/shapes.py": "the three kinds with bodies, and how each body's shapes are found",
    "formats/onnx/values.py": "computes small constants with numpy: a dispatch table",
    "rewrites/folding.py": "evaluates sizes of which some are open: a dispatch table",
    "rewrites/concat/rules.py": "kinds that have a rule of their own in that file",
    "stages/unit_graph.py": "patterns: which kinds in a row are one unit is a choice of the search",
}
"""Files that may list operator kinds, and why."""


def constants(path):
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def listed(path):
    """The most kinds that one set, tuple, list or dict in a file names; names joined by other characters count too."""
    most = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Set, ast.Tuple, ast.List, ast.Dict)):
            words = {
                word
                for inner in ast.walk(node)
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
                for word in re.findall(r"(?:[\w.]+::)?\w+", inner.value)
            }
            most = max(most, words & set(KINDS), key=len)
    return most


def test_no_other_file_lists_kinds():
    found = {}
    for path in SOURCE.rglob("*.py"):
        kinds = listed(path)
        if len(kinds) > 2:
            found[path.relative_to(SOURCE).as_posix()] = sorted(kinds)
    assert {name: kinds for name, kinds in found.items() if name not in LISTS} == {}
    assert set(found) == set(LISTS), "an exception that is not needed"


def test_contributed_kinds_are_spelled_once():
    """Outside of the table and the kernels, a kind of ONNX Runtime is asked for by its meaning."""
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).as_posix() not in ("graph/kinds.py", "kernels/table.py"):
            assert not [text for text in constants(path) if re.match(r"com.microsoft::\w", text)], path


def test_exactly_the_executed_kinds_have_kernels():
    assert {name for name, row in KINDS.items() if row.executed} == set(KERNELS)


def test_every_executed_kind_has_known_rows():
    assert not [name for name in KERNELS if kind_of(name).rows == "unknown"]


def read_from_tflite():
    options = SimpleNamespace(
        **dict.fromkeys(
            (
                "strideH",
                "strideW",
                "dilationHFactor",
                "dilationWFactor",
                "padding",
                "filterHeight",
                "filterWidth",
                "axis",
                "keepNumDims",
                "keepDims",
                "beta",
                "alignCorners",
                "halfPixelCenters",
                "alpha",
                "blockSize",
                "adjX",
                "adjY",
                "mode",
                "beginMask",
                "endMask",
                "ellipsisMask",
                "newAxisMask",
                "shrinkAxisMask",
                "numSplits",
            ),
            1,
        )
    )
    made = {translate(options, [(1, 8, 8, 4), (4, 3, 3, 4)]).kind for translate in TRANSLATED.values()}
    opaque = "tflite::TRANSPOSE_CONV"  # read for its strides alone, on which CMSIS-NN's scratch depends
    assert opaque in made and not kind_of(opaque).executed
    return made - {opaque} | set(RENAMED.values())


def read_from_torch():
    """Every capitalised word in the reader's tables, but for the names of types."""
    words = constants(SOURCE / "formats/torch/kinds.py")
    return {word for word in words if re.fullmatch(r"[A-Z]+[a-z][A-Za-z]*", word)} - {"Kind", "TorchSetting"}


def read_from_onnx():
    standard = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    return standard | {"ai.onnx.12::Softmax", "ai.onnx.12::LogSoftmax"}


@pytest.mark.parametrize("reader", [read_from_tflite, read_from_torch, read_from_onnx])
def test_every_kind_that_a_reader_makes_has_a_row(reader):
    found = reader()
    assert {"Conv", "Relu", "Concat", "Split"} <= found
    assert found - set(KINDS) == set()


def test_a_kind_without_a_row_is_opaque():
    row = kind_of("acme::Blur")
    assert (row.name, row.category, row.rows, row.macs, row.executed) == (
        "acme::Blur",
        "other",
        "unknown",
        "none",
        False,
    )


def test_rows_agree_with_their_twins():
    for row in KINDS.values():
        twin = kind_of(row.standard)
        same = [(each.category, each.rows, each.further, each.macs, each.draws) for each in (row, twin)]
        assert same[0] == same[1], row.name


def test_memory_models_name_kinds_of_the_table():
    for model in MEMORY_MODELS.values():
        assert (model.views | model.in_place | set(model.in_place_input)) <= set(KINDS)
        assert {kind_of(kind).adds for kind in model.in_place_input} <= set(model.in_place_input.values())
        for kind in model.views:
            assert kind_of(kind).category in ("shape-only", "movement") or kind == "Identity"


def draw(kind, seed):
    """(operator, inputs, shapes of its results): a case of the kind whose first input is not empty."""
    import torch

    case = CASES[kind](np.random.default_rng(seed))
    inputs = [None if value is None else torch.from_numpy(np.array(value)) for value in case.inputs]
    op = Op("it", kind, tuple(range(len(inputs))), (0,), case.attrs)
    return op, inputs


def compute(op, inputs):
    return KERNELS[op.kind](op, inputs, [tuple(inputs[0].shape)])[0]


def same(one, other):
    np.testing.assert_allclose(one.double().numpy(), other.double().numpy(), 1e-5, 1e-6, equal_nan=True)


def executed(question):
    return sorted(kind for kind in CASES if question(kind_of(kind)))


@pytest.mark.parametrize("kind", executed(lambda row: row.unary))
def test_unary_kinds_compute_each_element_from_its_own(kind):
    """A kernel of shuffled elements makes the shuffled results."""
    import torch

    op, (values, *rest) = draw(kind, 1)
    shuffled = torch.from_numpy(np.random.default_rng(2).permutation(values.numel()))
    whole = compute(op, [values, *rest])
    assert whole.shape == values.shape
    same(whole.reshape(-1)[shuffled], compute(op, [values.reshape(-1)[shuffled], *rest]))


@pytest.mark.parametrize("kind", executed(lambda row: row.broadcasts))
def test_broadcasting_kinds_compute_each_element_from_its_own(kind):
    import torch

    op, inputs = draw(kind, 1)
    inputs = [value.clone() for value in torch.broadcast_tensors(*inputs)]
    shuffled = torch.from_numpy(np.random.default_rng(2).permutation(inputs[0].numel()))
    whole = compute(op, inputs)
    same(whole.reshape(-1)[shuffled], compute(op, [value.reshape(-1)[shuffled] for value in inputs]))


@pytest.mark.parametrize("kind", executed(lambda row: row.pools))
def test_pools_compute_each_channel_by_itself(kind):
    import torch

    attrs = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}
    op, values = Op("it", kind, (0,), (1,), attrs), torch.randn(1, 5, 7, 6, generator=torch.Generator().manual_seed(0))
    whole = KERNELS[kind](op, [values], [(1, 5, 7, 6)])[0]
    assert whole.shape[1] == 5
    for channel in range(5):
        part = slice(channel, channel + 1)
        same(whole[:, part], KERNELS[kind](op, [values[:, part]], [(1, 1, 7, 6)])[0])


@pytest.mark.parametrize("kind", sorted(name for name, row in KINDS.items() if row.fused is not None))
def test_fused_activations_are_the_operators_of_their_name(kind):
    import torch

    values = torch.linspace(-3, 3, 61)
    parameters = [0.3, 0.7][: len(kind_of(kind).fused)]
    op = Op("it", kind, (0,), (1,), dict(zip(kind_of(kind).fused, parameters, strict=True)))
    same(activation(kind, parameters, values), KERNELS[kind](op, [values], [(61,)])[0])


@pytest.mark.parametrize("kind", sorted(name for name, row in KINDS.items() if row.adds is not None))
def test_what_is_added_is_added(kind):
    import torch

    generator = torch.Generator().manual_seed(0)
    if kind_of(kind).category == "convolution":
        op = Op("it", kind, (0, 1, 2, 3), (4,))
        inputs = [torch.randn(shape, generator=generator) for shape in ((1, 2, 3, 3), (4, 2, 1, 1), (4,), (1, 4, 3, 3))]
    else:
        op = Op("it", kind, (0, 1, 2), (3,))
        inputs = [torch.randn(shape, generator=generator) for shape in ((2, 3), (3, 4), (2, 4))]
    at, shape = kind_of(kind).adds, tuple(inputs[-1].shape)
    assert at == len(inputs) - 1
    without = KERNELS[kind](op, inputs[:at], [shape])[0]
    same(KERNELS[kind](op, inputs, [shape])[0], without + inputs[at])
