"""Pairs of `.tflite` files that compute different results, which are never proven the same, and pairs that say the same
in two ways, which are; LiteRT judges both."""

import copy

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from downset.equivalence.prove import prove
from downset.equivalence.tflite_effects import LAST_KNOWN
from downset.errors import LoadError
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from tests.equivalence.test_same import any_order
from tests.equivalence.test_tflite_schema import proven
from tests.equivalence.tflite_pairs import (
    Build,
    add,
    added,
    cast,
    certified,
    densified,
    fed_constant,
    looked_up,
    loop,
    made_twice,
    numbered,
    outside,
    results,
    scaled_along,
    state_beside,
    unary,
    variable,
)
from tests.equivalence.tflite_tables import TAIL, i32, made, save


def both(value):
    return outside(3, data=np.array([value], np.uint8))


DIFFERENT = {
    "one of two tables of options": (loop((2, 2)), loop((3, 2))),
    "a constant that is also fed": (fed_constant(1), fed_constant(2)),
    "one byte behind the flatbuffer": (added(outside(3)), added(outside(5))),
    "bytes in the flatbuffer beside bytes behind it": (added(both(1)), added(both(2))),
    "a tensor that two operators make": (made_twice(False), made_twice(True)),
    "a variable without a container": (variable(None, b"v", late=False), variable(None, b"v", late=True)),
    "a variable's name behind a zero": (variable(b"", b"v\0x", late=False), variable(b"", b"v\0x", late=True)),
    "a state that is assigned": (
        state_beside("ASSIGN_VARIABLE", late=False),
        state_beside("ASSIGN_VARIABLE", late=True),
    ),
    "a state that is drawn from": (state_beside("MULTINOMIAL", late=False), state_beside("MULTINOMIAL", late=True)),
    "the numbers of variables": (numbered("ab", seen=True), numbered("ba", seen=True)),
    "scales in a tensor that nothing reads": (looked_up(1), looked_up(2)),
    "the axis of scales, certified": (scaled_along(0), certified(scaled_along(1))),
    "a sparse constant, certified": (densified((0, 1)), certified(densified((1, 0)))),
    "unsigned numbers, certified": (cast("int32"), certified(cast("uint32"))),
    "short numbers, certified": (cast("int32"), certified(cast("uint16"))),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_litert_computes_differently_is_not_proven(name, tmp_path):
    one, other = (save(model, tmp_path / f"{at}.tflite") for at, model in enumerate(DIFFERENT[name]))
    fed = name != "a constant that is also fed"
    assert results(one, feed=fed) != results(other, feed=fed)
    assert not proven(one, other) and not proven(other, one)


def renumbered():
    """The loop with its subgraphs in another sequence."""
    model = loop((2, 2))
    model.subgraphs = [model.subgraphs[at] for at in (0, 3, 2, 1)]
    for options in (model.subgraphs[0].operators[0].builtinOptions, model.subgraphs[0].operators[0].builtinOptions2):
        options.condSubgraphIndex = 3
    return model


def changed(model, change):
    other = copy.deepcopy(model)
    change(other)
    return other


def old_codes(model):
    for code in model.operatorCodes:
        code.builtinCode = 0


def unused(model):
    model.buffers = [*model.buffers, made(schema.BufferT, data=np.array([9], np.uint8))]


def ranges(model):
    model.subgraphs[0].tensors[0].quantization = made(schema.QuantizationParametersT, min=np.float32([1]))


def signatures(model):
    model.subgraphs[0].tensors[0].shapeSignature = i32()


SAME = {
    "subgraphs in another sequence": (loop((2, 2)), renumbered()),
    "bytes in and behind the flatbuffer": (added(outside(3)), added([made(schema.BufferT, data=np.uint8([3]))])),
    "the numbers of old operators": (cast("int32"), changed(cast("int32"), old_codes)),
    "a buffer that nothing uses": (cast("int32"), changed(cast("int32"), unused)),
    "quantization without scales": (cast("int32"), changed(cast("int32"), ranges)),
    "an empty signature of a shape": (cast("int32"), changed(cast("int32"), signatures)),
    "a certificate that states nothing": (cast("int32"), certified(cast("int32"))),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same_in_two_ways_is_proven(name, tmp_path):
    one, other = (save(model, tmp_path / f"{at}.tflite") for at, model in enumerate(SAME[name]))
    assert one.read_bytes() != other.read_bytes()
    assert results(one) == results(other)
    assert prove(one, other).proven and prove(other, one).proven


def signed(*signatures):
    """x -> |x|, with signatures (name, name of the input, name of the output)."""
    build = Build()
    x = build.input((1,))
    model = build.outputs(unary(build, "ABS", x))
    model.signatureDefs = [
        made(
            schema.SignatureDefT,
            signatureKey=key,
            inputs=[made(schema.TensorMapT, name=fed, tensorIndex=0)],
            outputs=[made(schema.TensorMapT, name=got, tensorIndex=1)],
        )
        for key, fed, got in signatures
    ]
    return model


def customs(*names, options=None, large=None):
    """Custom operators of these names on one input, each of which may keep something."""
    build = Build()
    x = build.input((1,))
    made_here = []
    for name in names:
        made_here.append(build.op("CUSTOM", [x], [build.tensor((1,))]))
        build.model.operatorCodes[-1].customCode = name
        entry = build.model.subgraphs[0].operators[-1]
        entry.customOptions = options
        entry.largeCustomOptionsOffset, entry.largeCustomOptionsSize = large or (0, 0)
    return build.outputs(*sorted(made_here, key=lambda tensor: build.model.subgraphs[0].tensors[tensor].name))


def swapped(model):
    """The last two operators in the other order."""
    other = copy.deepcopy(model)
    operators = other.subgraphs[0].operators
    operators[-2:] = operators[:-3:-1]
    return other


def ordered_by_metadata():
    build = Build()
    x = build.input((1,))
    model = build.outputs(unary(build, "ABS", x), unary(build, "NEG", x))
    model.buffers.append(made(schema.BufferT, data=np.uint8([1, 2])))
    model.metadata = [made(schema.MetadataT, name=b"model_control_dependencies", buffer=1)]
    return model


def table_of_hashes():
    build = Build()
    keys = build.input((1,))
    handle = build.op("HASHTABLE", [], [build.tensor((1,), "resource")], made(schema.HashtableOptionsT, tableId=1))
    found = build.tensor((1,))
    build.op("HASHTABLE_FIND", [handle, keys, build.tensor((1,), value=[0])], [found], schema.HashtableFindOptionsT())
    build.op("HASHTABLE_IMPORT", [handle, keys, keys], [], schema.HashtableImportOptionsT())
    return build.outputs(found)


def unknown_operator(number):
    build = Build()
    model = build.outputs(unary(build, "ABS", build.input((1,))))
    model.operatorCodes[0].builtinCode = number
    return model


def first_buffer(buffer):
    """A constant in the buffer 0, which LiteRT takes to be empty, or in another."""
    build = Build()
    x = build.input((1,))
    build.model.buffers[0].data = np.frombuffer(np.float32([3]).tobytes(), np.uint8)
    build.buffer(data=build.model.buffers[0].data)
    return build.outputs(add(build, x, build.tensor((1,), buffer=buffer)))


def composite(version, option):
    build = Build()
    x = build.input((1,))
    graph = build.graph()
    build.outputs(unary(build, "ABS", build.input((1,), graph=graph), graph=graph), graph=graph)
    options = made(schema.StableHLOCompositeOptionsT, name=b"n", decompositionSubgraphIndex=1, version=option)
    return build.outputs(build.op("STABLEHLO_COMPOSITE", [x], [build.tensor((1,))], options, version=version))


class LeakyReluOptionsT(schema.LeakyReluOptionsT):
    """The options with their value written even where it is equal to the default."""

    def Pack(self, builder):  # noqa: N802 (the schema's name)
        builder.ForceDefaults(True)
        made_here = super().Pack(builder)
        builder.ForceDefaults(False)
        return made_here


def floats(alpha):
    build = Build()
    x = build.input((1,))
    return build.outputs(build.op("LEAKY_RELU", [x], [build.tensor((1,))], LeakyReluOptionsT(alpha)))


UNEXECUTED = {
    "names of signatures that join alike": (
        signed((b"a', input 'b", b"c", b"o")),
        signed((b"a", b"b', input 'c", b"o")),
    ),
    "names that are no text": (signed((b"\xff", b"i", b"o")), signed((b"\xfe", b"i", b"o"))),
    "signatures in another sequence": (
        signed((b"a", b"i", b"o"), (b"b", b"i", b"o")),
        signed((b"b", b"i", b"o"), (b"a", b"i", b"o")),
    ),
    "custom operators whose names are no text": (customs(b"\xff"), customs(b"\xfe")),
    "custom operators in another order": (customs(b"a", b"b"), swapped(customs(b"a", b"b"))),
    "custom options behind the file": (customs(b"a", large=(TAIL, 2)), customs(b"a", large=(TAIL + 1, 2))),
    "custom options behind the file beside those in it": (
        customs(b"a", options=[1], large=(TAIL, 2)),
        customs(b"a", options=[1], large=(TAIL + 1, 2)),
    ),
    "operators that metadata names by place": (ordered_by_metadata(), swapped(ordered_by_metadata())),
    "a table of hashes read before it is filled": (table_of_hashes(), swapped(table_of_hashes())),
    "operators of newer schemas": (unknown_operator(300), unknown_operator(301)),
    "the first buffer": (first_buffer(0), first_buffer(1)),
    "the version of a composite and of its operator": (composite(1, 2), composite(2, 2)),
    "minus zero": (floats(0.0), floats(-0.0)),
    "not a number": (floats(float("nan")), floats(-float("nan"))),
}


@pytest.mark.parametrize("name", UNEXECUTED)
def test_what_no_runtime_here_tells_apart_is_not_proven_either(name, tmp_path):
    one, other = (save(model, tmp_path / f"{at}.tflite") for at, model in enumerate(UNEXECUTED[name]))
    assert proven(one, one) and proven(other, other)
    assert not proven(one, other) and not proven(other, one)


EFFECTS = {
    "custom operators": lambda: customs(b"a", b"b", b"c"),
    "tables of hashes": lambda: table_of_hashes(),
    "a state that is assigned": lambda: state_beside("ASSIGN_VARIABLE", late=False),
    "a state that is drawn from": lambda: state_beside("MULTINOMIAL", late=True),
    "a handle that is a number": lambda: numbered("ab", seen=True),
    "names of variables behind a zero": lambda: variable(None, b"v\0x", late=False),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_every_order_that_is_planned_keeps_the_effects(name, tmp_path):
    """The graph of planning orders operators whose effects are not known as the proof wants them."""
    path = save(EFFECTS[name](), tmp_path / "m.tflite")
    graph = load(path)
    for seed in range(16):
        other = tmp_path / "other.tflite"
        export_tflite(other, graph, any_order(graph, np.random.default_rng(seed)))
        assert prove(path, other).proven


def test_operators_of_a_newer_schema_have_every_effect(tmp_path):
    """All operators of the installed schema were looked through for effects; one that it adds later is not known."""
    assert max(number for name, number in vars(schema.BuiltinOperator).items() if name[0] != "_") == LAST_KNOWN
    build = Build()
    x = build.input((1,))
    model = build.outputs(unary(build, "ABS", x), unary(build, "NEG", x))
    one, other = save(model, tmp_path / "one.tflite"), save(swapped(model), tmp_path / "other.tflite")
    assert proven(one, other)
    for at, code in enumerate(model.operatorCodes):
        code.builtinCode = LAST_KNOWN + 1 + at
    one, other = save(model, tmp_path / "one.tflite"), save(swapped(model), tmp_path / "other.tflite")
    assert proven(one, one) and not proven(one, other)


def test_files_behind_the_model_are_those_of_its_folder(tmp_path):
    """Weights in files of their own are found by the folder of the model."""
    model = cast("int32")
    model.externalBufferGroups = [made(schema.ExternalBufferGroupT, name=b"weights.bin")]
    model.externalBuffers = [made(schema.ExternalBufferT, id=1, length=4)]
    (tmp_path / "there").mkdir()
    one, there = save(model, tmp_path / "one.tflite"), save(model, tmp_path / "there" / "one.tflite")
    assert proven(one, save(model, tmp_path / "other.tflite")) and not proven(one, there)


class NewerOptions(schema.AddOptionsT):
    """AddOptions with a field that the installed schema does not have."""

    def Pack(self, builder):  # noqa: N802 (the schema's name)
        builder.StartObject(3)
        builder.PrependInt8Slot(2, 7, 0)
        return builder.EndObject()


@pytest.mark.parametrize(("kind", "said"), [(11, "a field of AddOptions"), (250, "the builtinOptions 250 of Operator")])
def test_what_a_newer_schema_adds_is_refused(kind, said, tmp_path):
    build = Build()
    x = build.input((1,))
    model = build.outputs(add(build, x, x))
    operator = model.subgraphs[0].operators[0]
    operator.builtinOptions, operator.builtinOptionsType = NewerOptions(), kind
    path = save(model, tmp_path / "m.tflite")
    with pytest.raises(LoadError, match=said):
        prove(path, path)
