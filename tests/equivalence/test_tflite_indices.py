"""Every index in a `.tflite` file is checked against what it counts: a file in which one points elsewhere, also in a
subgraph that nothing uses, is refused or read, and never an error of the program."""

import struct

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

from downset.equivalence.prove import prove
from downset.equivalence.tflite_file import subgraphs_of
from downset.equivalence.unshown import unshown_differences
from downset.errors import DownsetError, LoadError
from downset.formats.reading import load
from downset.formats.tflite.flatbuffer import read_flatbuffer
from tests.effort import cases
from tests.equivalence.mutants import copies
from tests.equivalence.test_mutations import STREAMING
from tests.equivalence.tflite_pairs import Build, looked_up, loop, unary
from tests.equivalence.tflite_tables import TABLES, base, filled, save, tables, types

INDICES = {
    ("Operator", "opcodeIndex"),
    ("Operator", "inputs"),
    ("Operator", "outputs"),
    ("Operator", "intermediates"),
    ("SubGraph", "inputs"),
    ("SubGraph", "outputs"),
    ("Tensor", "buffer"),
    ("Metadata", "buffer"),
    ("TensorMap", "tensorIndex"),
    ("SignatureDef", "subgraphIndex"),
    ("BlockwiseQuantization", "scales"),
    ("BlockwiseQuantization", "zeroPoints"),
    ("MultiAxisQuantization", "scales"),
    ("MultiAxisQuantization", "zeroPoints"),
}
BODIES = {
    ("CallOnceOptions", "initSubgraphIndex"),
    ("CallOptions", "subgraph"),
    ("IfOptions", "elseSubgraphIndex"),
    ("IfOptions", "thenSubgraphIndex"),
    ("StableHLOCompositeOptions", "decompositionSubgraphIndex"),
    ("StablehloCaseOptions", "branchSubgraphIndices"),
    ("StablehloCustomCallOptions", "calledComputations"),
    ("StablehloReduceOptions", "bodySubgraphIndex"),
    ("StablehloReduceWindowOptions", "bodySubgraphIndex"),
    ("StablehloScatterOptions", "updateComputationSubgraphIndex"),
    ("StablehloSortOptions", "comparatorSubgraphIndex"),
    ("StablehloWhileOptions", "bodySubgraphIndex"),
    ("StablehloWhileOptions", "condSubgraphIndex"),
    ("WhileOptions", "bodySubgraphIndex"),
    ("WhileOptions", "condSubgraphIndex"),
}


def test_the_options_that_call_subgraphs_are_these():
    """A newer schema that adds one is read, as long as the field's name says that it is a subgraph."""
    options = [name for name in TABLES if name.endswith("Options")]
    assert {(name, key) for name in options for key in subgraphs_of(filled(name))} == BODIES


@pytest.mark.parametrize(("table", "key"), sorted(BODIES))
def test_a_body_that_is_another_graph_is_another_network_and_one_that_does_not_exist_is_refused(table, key, tmp_path):
    first = hasattr(schema.BuiltinOptions, table)
    files = []
    for number in (1, 2, 3, 2**31 - 1):
        model = base(**{"first" if first else "second": table})
        held = getattr(model.subgraphs[0].operators[0], "builtinOptions" if first else "builtinOptions2")
        setattr(held, key, number if types(type(held))[key] == "int" else [number])
        files.append(save(model, tmp_path / f"{len(files)}.tflite"))
    one, two, *refused = files
    assert prove(one, one).proven and not prove(one, two).proven and not prove(two, one).proven
    for path in refused:
        with pytest.raises(LoadError, match=r"subgraph \d+ does not exist"):
            prove(one, path)


def with_unused_subgraph():
    build = Build()
    x = build.input((1,))
    graph = build.graph()
    build.outputs(unary(build, "NEG", build.input((1,), graph=graph), graph=graph), graph=graph)
    return build.outputs(unary(build, "ABS", x))


def test_an_index_in_a_deprecated_list_that_no_runtime_reads_is_not_checked(tmp_path):
    """MediaPipe's hand landmarks have a list of buffers that their file does not have; LiteRT runs it."""
    model = base()
    model.metadataBuffer = np.asarray([len(model.buffers) + 70], np.int32)
    path = save(model, tmp_path / "m.tflite")
    assert prove(path, path).proven


FILES = {
    "every table": base,
    "both details": lambda: base(details="MultiAxisQuantization"),
    "loop": loop,
    "unused": with_unused_subgraph,
    "blockwise": lambda: looked_up(1),
    "streaming": lambda: flatbuffer_utils.read_model(str(STREAMING)),
}


def sites(model):
    """(place of the table, field, place in the field or None) of every index in a file."""
    for at, entry in enumerate(tables(model)):
        name = type(entry).__name__[:-1]
        for key, value in vars(entry).items():
            if ((name, key) in INDICES or (name, key) in BODIES) and value is not None:
                yield from ((at, key, place) for place in (range(len(value)) if np.ndim(value) else (None,)))


def mutants(model, random, count):
    places, again = list(sites(model)), copies(model)
    for _ in range(count):
        at, key, place = places[int(random.integers(len(places)))]
        number = int(random.choice([-1, -2, 0, 1, 2, 5, 6, 7, 8, 100, 2**31 - 1, 2**32 - 1, -(2**31)]))
        mutant = again()
        entry = tables(mutant)[at]
        if place is None:
            setattr(entry, key, number)
        else:
            changed = [int(one) for one in getattr(entry, key)]
            changed[place] = number
            setattr(entry, key, changed)
        yield (type(entry).__name__, key, place, number), mutant


@pytest.mark.parametrize("name", FILES)
def test_no_index_that_points_elsewhere_is_an_error_of_the_program(name, tmp_path):
    model = FILES[name]()
    path = tmp_path / "m.tflite"
    path.write_bytes(bytes(flatbuffer_utils.convert_object_to_bytearray(model)).ljust(8192 + 64, b"\0"))
    tried = refused = 0
    count = cases(60 if name == "streaming" else 200)  # of a whole network, which takes longer to read
    for what, mutant in mutants(model, np.random.default_rng(7), count):
        try:
            data = bytes(flatbuffer_utils.convert_object_to_bytearray(mutant))
        except (struct.error, TypeError, OverflowError, ValueError):  # the format has no such number
            continue
        other = tmp_path / "other.tflite"
        other.write_bytes(data.ljust(8192 + 64, b"\0"))
        tried += 1
        for read in (prove, unshown_differences):
            for pair in ((path, other), (other, path), (other, other)):
                refused += outcome(what, read, *pair)
        outcome(what, load, other)
        outcome(what, read_flatbuffer, other)
    assert tried > count // 3 and refused


def outcome(what, read, *files):
    """Whether files are refused; any error but a refusal fails."""
    try:
        read(*files)
    except DownsetError:
        return 1
    except Exception as error:
        raise AssertionError(f"{what}: {read.__name__} raised {error!r}") from error
    return 0


@pytest.mark.parametrize("command", ["verify", "inspect", "fit"])
def test_an_index_of_an_unused_subgraph_is_refused_in_one_line(command, tmp_path, run):
    """Such a file ended `verify` with an error of the program."""
    model = with_unused_subgraph()
    path = save(model, tmp_path / "m.tflite")
    model.subgraphs[1].operators[0].inputs = [9]
    other = save(model, tmp_path / "other.tflite")
    arguments = {"verify": (path, other), "inspect": (other,), "fit": (other, "-o", tmp_path / "out.tflite")}
    status, _, err = run(command, *arguments[command])
    assert status != 70 and "Traceback" not in err
    if command == "verify":
        assert status == 5 and "in subgraph 1 tensor 9 does not exist" in err
