"""`fit` to fast memory with slow memory behind it: the written file, what is said of it, and each bad input in a
line."""

import inspect
import json
from dataclasses import MISSING, fields, replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

import downset as ds
from downset.commands.fit import fit as command
from downset.errors import InfeasibleError, UnsupportedError, UsageError
from downset.fitting import memories as fitting
from downset.fitting import memories_networks
from downset.fitting import memories_result as fitting_result
from downset.fitting.memories_options import TwoMemoriesOptions
from downset.formats.firmware_memories import memories_firmware, note_bytes
from downset.formats.reading import load
from downset.formats.tflite.read import two_memories
from downset.memories.moves import implied
from downset.memories.of_graph import MemoriesRequest, memories_form
from downset.memory.liveness import lifetimes
from downset.memory.models import TFLM_WITHOUT_OFFSETS, memory_model
from downset.memory.reference_scratch import scratch_of_operators
from downset.reports.memories_document import memories_document
from downset.runtimes import tflm
from tests.command import completed, output_of
from tests.equivalence.tflite_pairs import loop
from tests.equivalence.tflite_tables import save
from tests.formats.test_int8_form import uint8_network
from tests.models import installed_model
from tests.oracles_memories import ran
from tests.tflite_net import TfliteNet

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/fit.json").read_text())
CHOSEN = {
    "fast_bytes": ("--fast", "3KB", 3072),
    "slow_bytes": ("--slow", "1MB", 1 << 20),
    "distance_bytes": ("--distance", "-0x3C88000", -0x3C88000),
    "output": ("--output", "o.tflite", "o.tflite"),
    "kernels": ("--kernels", "cmsis-nn-dsp", "cmsis-nn-dsp"),
    "persistent": ("--persistent", "slow", "slow"),
    "larger": ("--larger", "1.5x", 1.5),
    "prices": ("--prices", "load=2,read=3.5", {"load": 2.0, "read": 3.5}),
    "time_limit_s": ("--time-limit", "7s", 7.0),
    "work_limit": ("--work-limit", "9", 9),
    "seed": (None, None, 5),
    "inputs": ("--input", "x.npy", ("x.npy",)),
    "incumbent": ("--incumbent", "less.tflite", "less.tflite"),
}
"""By keyword: its option on the command line, the text there, and a value other than the default."""


@pytest.fixture
def branches(tmp_path):
    """An int8 network whose wide early tensor is read again at the end."""
    net = TfliteNet(3, size=16, dtype="int8")
    wide = net.conv(net.input(4), 16, 3)
    narrow = wide
    for _ in range(3):
        narrow = net.conv(narrow, 16, 3)
    return net.save(tmp_path / "branches.tflite", [net.op("ADD", (narrow, wide), 16, "AddOptions")])


def room(path, tensors):
    """--fast with so many bytes for tensors, and room for the persistent part of some moves."""
    return tensors + tflm.measure(path, steps=1).tail_bytes + 512


def test_the_options_are_the_keywords_with_their_defaults():
    keywords = {name: one.default for name, one in inspect.signature(fitting.fit_memories).parameters.items()}
    empty = {inspect.Parameter.empty: MISSING}
    assert {one.name: one.default for one in fields(TwoMemoriesOptions)} == {
        name: empty.get(default, default) for name, default in keywords.items()
    }


@pytest.mark.parametrize("name", [one.name for one in fields(TwoMemoriesOptions) if one.name != "model"])
def test_a_keyword_and_its_option_arrive(name, tmp_path, monkeypatch):
    arrived = []

    def begin(options, listener):
        arrived.append(options)
        raise SystemExit(0)

    monkeypatch.setattr(fitting, "fit_to_memories", begin)
    monkeypatch.chdir(tmp_path)
    option, text, value = CHOSEN[name]
    given = {"fast_bytes": 4096, "slow_bytes": 8192} | {name: value}
    with pytest.raises(SystemExit):
        fitting.fit_memories("m.tflite", **given)
    assert arrived == [TwoMemoriesOptions("m.tflite", **given)]
    if option is not None:
        Path("m.tflite").touch()
        typed = {"--fast": "4KB", "--slow": "8KB"} | {option: text}
        found = CliRunner().invoke(command, ["m.tflite", *(word for pair in typed.items() for word in pair)])
        assert found.exit_code == 0, found.output
        limited = {"time_limit_s": float("inf")} if name == "work_limit" else {}
        assert arrived[1:] == [TwoMemoriesOptions("m.tflite", **given | limited)]


@pytest.mark.parametrize("distance", [None, 1 << 22, -(1 << 23), 1 << 29, 0x60000000])
def test_the_file_does_what_the_plan_says(branches, tmp_path, distance):
    output = tmp_path / "moved.tflite"
    fast = room(branches, 10_000)
    fitted = ds.fit_memories(
        branches, fast_bytes=fast, slow_bytes=1 << 20, distance_bytes=distance, output=output, time_limit_s=2
    )
    found = ran(output)
    assert (found.moved, found.direct) == (fitted.plan.moved_bytes, fitted.plan.direct_bytes)
    assert found.moved + found.direct > 0
    assert found.moves == len(fitted.moves)
    assert fitted.outputs.proven and fitted.outputs.equal
    assert fitted.fast_taken_bytes <= fast
    assert fitted.tail_bytes <= fitted.memories.persistent_bytes
    assert fitted.ran_at == ((1 << 26) if distance == 0x60000000 else None)
    assert two_memories(output) == fitted.memories
    assert (fitted.memories.distance == distance) if distance else fitted.memories.distance >= fast
    ours = fitted.slow_traffic_bytes
    assert all(ours <= one.moved_bytes + one.direct_bytes for one in fitted.others)
    in_strips = fitted.original_operators > 0
    assert in_strips or any("persistent='slow' leaves them to tensors" in note for note in fitted.notes)


@pytest.fixture
def chain(tmp_path):
    """Five convolutions, no two wide tensors of which fit 20,000 bytes."""
    net = TfliteNet(4, size=32, dtype="int8")
    x = net.input(4)
    for _ in range(4):
        x = net.conv(x, 16, 3)
    return net.save(tmp_path / "chain.tflite", [net.conv(x, 2)])


def test_a_chain_of_wide_layers_is_computed_in_strips_where_that_moves_less(chain, tmp_path):
    output, fast = tmp_path / "moved.tflite", room(chain, 20_000)
    fitted = ds.fit_memories(chain, fast_bytes=fast, slow_bytes=1 << 20, output=output, time_limit_s=3)
    assert len(fitted.graph.ops) > fitted.original_operators == 5
    found = ran(output)
    assert (found.moved, found.direct) == (fitted.plan.moved_bytes, fitted.plan.direct_bytes)
    whole = min(one.moved_bytes + one.direct_bytes for one in fitted.others)
    assert found.moved + found.direct < 0.5 * whole
    assert fitted.outputs.proven and fitted.outputs.equal
    assert "in strips of rows" in " ".join(map(str, memories_document(fitted).sections[2].parts[0].lines))


@pytest.mark.parametrize("distance", [None, -(1 << 23)])
def test_the_persistent_part_may_lie_in_slow_memory(branches, tmp_path, distance, fails):
    """Then fast memory may be smaller than that part, and the file has another table of offsets."""
    output, tail = tmp_path / "moved.tflite", tflm.measure(branches, steps=1).tail_bytes
    given = {"fast_bytes": 10_000, "slow_bytes": 1 << 20, "distance_bytes": distance, "time_limit_s": 2}
    with pytest.raises(InfeasibleError, match="persistent='slow'"):
        ds.fit_memories(branches, **given | {"fast_bytes": tail - 64})
    fitted = ds.fit_memories(branches, **given, persistent="slow", output=output)
    found, memories = ran(output), two_memories(output)
    assert (found.moved, found.direct) == (fitted.plan.moved_bytes, fitted.plan.direct_bytes)
    assert fitted.outputs.equal and fitted.outputs.proven
    assert memories.persistent_in == "slow" and fitted.tail_bytes <= memories.persistent_bytes
    assert fitted.fast_taken_bytes <= 10_000 < fitted.fast_taken_bytes + memories.persistent_bytes
    assert fitted.slow_taken_bytes >= memories.persistent_bytes + found.tops[False]
    told = memories_document(fitted)
    assert not any("leaves them to tensors" in note for note in fitted.notes)
    assert "its accesses are not counted" in told.verdict.headline
    assert "at the end of slow memory" in str(told.sections[3])


def test_a_file_in_strips_is_no_larger_than_was_said(chain):
    given = {"fast_bytes": 20_000, "slow_bytes": 1 << 20, "persistent": "slow", "time_limit_s": 2}
    free = ds.fit_memories(chain, **given)
    before, after = free.disk_bytes
    assert free.original_operators and after > 1.2 * before
    held = ds.fit_memories(chain, **given, larger=1.2)
    assert not held.original_operators
    assert held.slow_traffic_bytes > free.slow_traffic_bytes


def test_more_fast_memory_costs_no_more_than_the_file_for_less(tmp_path):
    """Searches of larger memories are cut short at once; each has the file of the memory before as its incumbent."""
    net = TfliteNet(4, size=16, dtype="int8")
    wide = net.input(4)
    for _ in range(3):
        wide = net.conv(wide, 16, 3)
    path = net.save(tmp_path / "chain.tflite", [net.conv(wide, 2)])
    given = {"slow_bytes": 1 << 20, "persistent": "slow", "work_limit": 1}
    less = tmp_path / "less.tflite"
    first = ds.fit_memories(path, **given | {"work_limit": 100_000}, fast_bytes=4_000, output=less)
    assert first.original_operators == 4
    costs = [first.slow_traffic_bytes]
    for fast in (4_016, 4_600, 5_208):
        fitted = ds.fit_memories(path, **given, fast_bytes=fast, incumbent=less, output=less)
        counted = ran(less)
        assert (counted.moved, counted.direct) == (fitted.plan.moved_bytes, fitted.plan.direct_bytes)
        assert fitted.outputs.equal and fitted.outputs.proven and fitted.original_operators == 4
        costs.append(fitted.slow_traffic_bytes)
    assert costs == sorted(costs, reverse=True)
    alone = ds.fit_memories(path, **given, fast_bytes=fast).slow_traffic_bytes
    assert alone > costs[0], "without its incumbent the search finds less"


def test_the_plan_of_a_whole_network_is_an_incumbent_too(branches, tmp_path, fails):
    """Its moves count by other prices, and in other memories."""
    less, more = tmp_path / "less.tflite", tmp_path / "more.tflite"
    fast = room(branches, 10_000)
    first = ds.fit_memories(branches, fast_bytes=fast, slow_bytes=1 << 20, output=less)
    given = {"fast_bytes": fast + 24, "slow_bytes": 1 << 21, "distance_bytes": -(1 << 22), "work_limit": 1}
    prices = {"load": 2, "read": 5, "store": 0.5}
    again = ds.fit_memories(branches, **given, prices=prices, incumbent=less, output=more, larger=10.0)
    found = ran(more)
    assert (found.moved, found.direct) == (again.plan.moved_bytes, again.plan.direct_bytes)
    form = memories_form(load(branches), MemoriesRequest(fast, memory_model("tflm"), prices=ds.Prices(**prices)))
    assert again.cost <= implied(form.problem, first.plan.order, first.plan.residences).cost / form.scale
    assert not again.original_operators and again.plan.evidence.bound <= again.cost
    typed = ("fit", branches, "--slow", "1MB", "--incumbent")
    fails(2, *typed, less, "--fast", str(fast // 2), says="give a file that was fitted to less memory")
    fails(5, *typed, branches, "--fast", str(fast), says="was not fitted to two memories")
    other = TfliteNet(9, size=16, dtype="int8")
    path = other.save(tmp_path / "other.tflite", [other.conv(other.input(4), 16, 3)])
    fails(2, "fit", path, "--slow", "1MB", "--fast", "1MB", "--incumbent", less, says="is not proven to compute what")


def test_all_of_it_in_fast_memory_moves_nothing(branches, tmp_path):
    fitted = ds.fit_memories(branches, fast_bytes=1 << 20, slow_bytes=1 << 20, output=tmp_path / "o.tflite")
    assert (fitted.slow_traffic_bytes, fitted.moves) == (0, ())
    assert fitted.plan.evidence.proven
    assert "two memories" in str(ds.report(fitted))
    assert "no byte goes" in memories_document(fitted).verdict.headline


def test_verify_proves_it_and_runs_it_with_the_hole(branches, tmp_path):
    output = tmp_path / "moved.tflite"
    ds.fit_memories(
        branches, fast_bytes=room(branches, 10_000), slow_bytes=1 << 20, distance_bytes=1 << 28, output=output
    )
    compared = ds.compare(branches, output)
    assert compared.verdict() == "proven" and compared.placed
    done = completed("verify", branches, output)
    assert done.returncode == 0 and "proven" in done.stdout


def test_the_command_says_what_is_where_and_json_keeps_its_schema(branches, tmp_path):
    output, page = tmp_path / "moved.tflite", tmp_path / "page.html"
    fast = str(room(branches, 10_000))
    words = ("fit", branches, "--fast", fast, "--slow", "1MB", "--distance", "64MB", "-o", output, "--time-limit", "2s")
    done = completed(*words, "--json", "--report", page)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    jsonschema.validate(said, SCHEMA)
    found = ran(output)
    assert (said["memories"]["moved_bytes"], said["memories"]["direct_bytes"]) == (found.moved, found.direct)
    assert [row["memory"] for row in said["memories"]["places"]] == ["fast", "slow"]
    methods = [row["method"] for row in said["memories"]["plans"]]
    assert methods[0] == "written" and set(methods[1:]) == {"file_order", "least_peak", "belady"}
    assert len(said["memories"]["moves"]) == found.moves
    text = page.read_text()
    assert "Fast memory" in text and "Slow memory" in text and "Moves" in text
    shown = completed(*words).stdout
    assert "to and from slow memory" in shown and "nothing of this ran on a board" in shown
    assert "written:" in shown and f"{found.moved:,}" in shown


def test_a_work_limit_alone_ends_every_search(branches, monkeypatch):
    """Without a limit of time, the work limits each plan that the file is compared with."""
    limits, plan = [], fitting_result.plan_memories

    def told(graph, **given):
        limits.append((given["method"], given["time_limit_s"], given["work_limit"]))
        return plan(graph, **given)

    monkeypatch.setattr(fitting_result, "plan_memories", told)
    ds.fit_memories(
        branches, fast_bytes=room(branches, 10_000), slow_bytes=1 << 20, time_limit_s=float("inf"), work_limit=1_000
    )
    assert limits == [(method, float("inf"), 1_000) for method in ("file_order", "least_peak", "belady")]


def test_prices_change_the_plan_and_its_cost_is_said(branches):
    given = {"fast_bytes": room(branches, 10_000), "slow_bytes": 1 << 20}
    dear = {"load": 1, "store": 1, "read": 1000, "write": 1000}
    plain, priced = ds.fit_memories(branches, **given), ds.fit_memories(branches, **given, prices=dear)
    assert plain.cost is None and "costs" not in memories_document(plain).verdict.detail
    moved = sum(one.nbytes for one in priced.moves)
    assert priced.cost == pytest.approx(moved + 1000 * priced.plan.direct_bytes)
    assert "By the prices given a run costs" in memories_document(priced).verdict.detail
    assert priced.plan.direct_bytes <= plain.plan.direct_bytes


def test_a_plan_by_time_and_one_by_energy_are_each_the_cheaper_in_its_own_unit(branches):
    """Nanoseconds and picojoules of a byte: exact plans of the file's order, each counted in both units."""
    graph, fast = load(branches), 10_000
    tables = {
        "ns": ds.Prices(load=10, store=12.5, read=40, write=40),
        "pJ": ds.Prices(load=640, store=900, read=320, write=700),
    }
    forms = {
        unit: memories_form(graph, MemoriesRequest(fast, memory_model("tflm"), prices=prices))
        for unit, prices in tables.items()
    }
    given = {"fast": fast, "slow": 1 << 20, "memory": "tflm", "work_limit": 50_000}
    plans = {unit: ds.plan_memories(graph, **given, prices=prices) for unit, prices in tables.items()}
    for unit, form in forms.items():
        costs = {
            other: implied(form.problem, plan.order, plan.residences).cost / form.scale for other, plan in plans.items()
        }
        assert costs[unit] == plans[unit].evidence.value == min(costs.values())
    assert [form.scale for form in forms.values()] == [2, 1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--fast", "256KB"), "give both"),
        (("--slow", "8MB"), "give both"),
        (("--prices", "load=1"), "give both"),
        (("--fast", "0", "--slow", "8MB"), "is not a size"),
        (("--fast", "1", "--slow", "8MB"), "--fast 1: a memory has at least 16 bytes"),
        (("--fast", "256KB", "--slow", "15"), "--slow 15: a memory has at least 16 bytes"),
        (("--fast", "1000GB", "--slow", "8MB"), "--fast 1000GB and --slow 8MB: offsets in a .tflite file end at"),
        (("--fast", "1GB", "--slow", "1GB"), "give smaller memories"),
        (("--fast", "256KB", "--slow", "8MB", "--kernels", "magic"), "--kernels must be one of"),
        (("--target", "tflm", "--session", "s.py"), "--session is for ONNX Runtime"),
        (("--fast", "256KB", "--slow", "8MB", "--session", "s.py"), "--session has no meaning with --fast"),
        (("--fast", "256KB", "--slow", "8MB", "--distance", "8"), "is not a multiple of 16"),
        (("--fast", "256KB", "--slow", "8MB", "--distance", "4KB"), "the memories overlap"),
        (("--fast", "256KB", "--slow", "8MB", "--distance", "-4MB"), "the memories overlap"),
        (("--fast", "256KB", "--slow", "8MB", "--distance", "0xA0000000"), "lie nearer to each other"),
        (("--fast", "256KB", "--slow", "8MB", "--distance", "0x7FFFFFF0"), "lie nearer to each other"),
        (("--fast", "256KB", "--slow", "8MB", "--distance", "far"), "is not a distance"),
        (("--fast", "256KB", "--slow", "8MB", "--prices", "load=0"), "price of a load is 0"),
        (("--fast", "256KB", "--slow", "8MB", "--prices", "read=-1"), "price of a read is -1"),
        (("--fast", "256KB", "--slow", "8MB", "--prices", "read=nan"), "price of a read is nan"),
        (("--fast", "256KB", "--slow", "8MB", "--prices", "walk=1"), "it takes load, store, read, write"),
        (("--fast", "256KB", "--slow", "8MB", "--prices", "load"), "is not a price"),
        (("--fast", "256KB", "--slow", "8MB", "--stream", "8"), "--stream has no meaning with --fast"),
        (("--fast", "256KB", "--slow", "8MB", "--strips", "8"), "--strips has no meaning with --fast"),
        (("--fast", "256KB", "--slow", "8MB", "--target", "litert"), "is for TFLite Micro"),
        (("--fast", "256KB", "--slow", "8MB", "-o", "m.onnx"), "must end in .tflite"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(given, says, branches, fails):
    fails(2, "fit", branches, *given, says=says)


def test_a_header_needs_the_firmwares_kernels(branches, fails, tmp_path):
    written = ("-o", tmp_path / "o.tflite", "--header", tmp_path / "o.h")
    fails(2, "fit", branches, "--fast", "256KB", "--slow", "8MB", *written, says="needs --kernels")
    assert not (tmp_path / "o.tflite").exists()


def test_other_files_are_refused(tmp_path, fails):
    (tmp_path / "m.onnx").write_bytes(b"")
    fails(2, "fit", tmp_path / "m.onnx", "--fast", "256KB", "--slow", "8MB", says="is for .tflite files")
    fails(5, "fit", tmp_path / "none.tflite", "--fast", "256KB", "--slow", "8MB", says="none.tflite")


def test_fast_memory_below_what_an_operator_needs_is_named_with_the_least(branches, fails):
    taken = tflm.measure(branches, steps=1).tail_bytes
    with pytest.raises(InfeasibleError, match="leaves no room for tensors") as said:
        ds.fit_memories(branches, fast_bytes=1024, slow_bytes=1 << 20)
    assert said.value.figures["least_bytes"] >= taken
    fails(3, "fit", branches, "--fast", "1KB", "--slow", "1MB", says="--fast 1KB leaves no room")


def test_the_least_that_would_do_does(tmp_path):
    """SOFTMAX reads a tensor many times by a kernel of unknown loops: its operands have to lie in fast memory. Strips,
    which need less, make the file larger."""
    path = softmaxed(tmp_path / "m.tflite")
    taken = tflm.measure(path, steps=1).tail_bytes
    with pytest.raises(InfeasibleError, match="is enough") as said:
        ds.fit_memories(path, fast_bytes=taken + 2048, slow_bytes=1 << 20, larger=1.0)
    least = said.value.figures["least_bytes"]
    assert ds.fit_memories(path, fast_bytes=least + 512, slow_bytes=1 << 20, larger=1.0).outputs.proven
    with pytest.raises(InfeasibleError):
        ds.fit_memories(path, fast_bytes=least - 64, slow_bytes=1 << 20, larger=1.0)


def test_strips_are_named_where_they_need_less():
    whole, more, less = (InfeasibleError(f"{size} are enough", figures={"least_bytes": size}) for size in (20, 30, 10))
    other = UnsupportedError("no form of a file")
    assert (
        fitting._refusal([whole]) is fitting._refusal([whole, more]) is fitting._refusal([whole, less, more]) is whole
    )
    assert str(fitting._refusal([whole, less])) == "20 are enough; in strips: 10 are enough"
    assert "no form" in str(fitting._refusal([whole, other]))


def softmaxed(path):
    net = TfliteNet(5, size=16, dtype="float32")
    x = net.conv(net.input(4), 8, 3)
    return net.save(path, [net.op("SOFTMAX", (x,), 8, "SoftmaxOptions", beta=1.0)])


def test_what_strips_need_is_told_where_an_operator_does_not_fit(tmp_path):
    """The least of the network as it is, and what strips take: the first is enough with the second's file left out."""
    path = softmaxed(tmp_path / "m.tflite")
    given = {"slow_bytes": 1 << 20, "distance_bytes": -(1 << 20), "persistent": "slow", "work_limit": 300_000}
    with pytest.raises(InfeasibleError, match="in strips about") as said:
        ds.fit_memories(path, fast_bytes=800, **given)
    whole, strips = said.value.figures["least_bytes"], said.value.figures["in_strips_bytes"]
    assert 800 < strips < whole
    fitted = ds.fit_memories(path, fast_bytes=strips, **given)
    assert fitted.original_operators and fitted.outputs.proven


def test_slow_memory_that_is_too_small_is_infeasible(branches):
    with pytest.raises(InfeasibleError, match="slow memory"):
        ds.fit_memories(branches, fast_bytes=room(branches, 4_096), slow_bytes=64)


def test_files_with_variables_and_bodies_are_refused(fails):
    for name in ("okay_nabu.tflite",):
        path = installed_model("pymicro-wakeword", name)
        fails(5, "fit", path, "--fast", "256KB", "--slow", "8MB", says="with variables are not fitted")


def test_files_with_bodies_are_refused(tmp_path, fails):
    save(loop(), tmp_path / "loop.tflite")
    for path in (tmp_path / "loop.tflite", installed_model("pyopen-wakeword", "hey_jarvis.tflite")):
        fails(5, "fit", path, "--fast", "256KB", "--slow", "8MB", says="runs bodies (If, While, CallOnce)")


def test_a_file_that_computes_on_uint8_is_told_of_its_int8_form(tmp_path, fails):
    says = "the file has an exact int8 form, which --int8 fits; write that file first, without --fast"
    fails(5, "fit", uint8_network(tmp_path / "m.tflite"), "--fast", "256KB", "--slow", "8MB", says=says)


def test_kernels_of_unknown_scratch_are_refused(branches, monkeypatch):
    monkeypatch.setattr(memories_networks, "scratch_of_operators", lambda graph, kernels: ({}, ("CUSTOM 'x'",)))
    with pytest.raises(UnsupportedError, match="the scratch of CUSTOM 'x' is not known for reference kernels"):
        ds.fit_memories(branches, fast_bytes=1 << 18, slow_bytes=1 << 20)


def test_a_file_with_moves_is_not_fitted_again(branches, tmp_path, fails):
    output = tmp_path / "moved.tflite"
    fitted = ds.fit_memories(branches, fast_bytes=room(branches, 10_000), slow_bytes=1 << 20, output=output)
    says = f"has moves between two memories ({len(fitted.moves)}), which follow its own order and offsets"
    fails(5, "fit", output, "--fast", "256KB", "--slow", "8MB", says=says)
    fails(5, "fit", output, says="fit the original")


def test_a_file_for_two_memories_without_moves_is_fitted_as_any_other(branches, tmp_path):
    whole, again, plain = (tmp_path / f"{name}.tflite" for name in ("whole", "again", "plain"))
    fast = room(branches, 1 << 16)
    assert not ds.fit_memories(branches, fast_bytes=fast, slow_bytes=1 << 20, output=whole).moves
    tight = room(branches, 10_000)
    fitted = ds.fit_memories(whole, fast_bytes=tight, slow_bytes=1 << 20, output=again)
    assert fitted.moves and ran(again).moves == len(fitted.moves)
    assert two_memories(again).fast_bytes == tight // 16 * 16
    ds.fit(whole, output=plain, target="tflm", time_limit_s=2.0)
    assert plain.exists()


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("kind", ["MEAN", "SUM", "REDUCE_MAX", "ADD_N", "MIRROR_PAD", "TRANSPOSE_CONV", "CONV_2D"])
def test_what_the_reference_kernels_ask_for_is_what_tflite_micro_takes(kind, dtype, tmp_path):
    """Without offsets TFLite Micro places tensors and scratch by one rule, so its head shows the scratch."""
    path = with_scratch(tmp_path / "m.tflite", kind, dtype)
    graph = load(path)
    scratch, unknown = scratch_of_operators(graph, "reference")
    assert not unknown
    living = lifetimes(graph, range(len(graph.ops)), TFLM_WITHOUT_OFFSETS)
    tensors = sum(one.nbytes for one in living.records)
    asked = tflm.measure(path, steps=1).head_bytes - tensors
    exact = kind not in ("MEAN", "SUM") or dtype == "int8"
    assert asked == sum(scratch.values()) if exact else asked <= sum(scratch.values())


def with_scratch(path, kind, dtype):
    """A network of one operator, all of whose tensors live while it runs: scratch finds no gap."""
    net = TfliteNet(7, size=6, dtype=dtype)
    x = net.input(16)

    def numbers(value):
        tensor = net.tensor(np.shape(value), "int32", value)
        net.main.tensors[tensor].quantization = None
        return tensor

    def shaped(tensor, *shape):
        net.main.tensors[tensor].shape = np.asarray(shape, np.int32)
        return tensor

    match kind:
        case "MEAN" | "SUM" | "REDUCE_MAX":
            made = shaped(net.op(kind, (x, numbers([1, 2])), 16, "ReducerOptions", keepDims=True), 1, 1, 1, 16)
        case "ADD_N":
            made = net.op(kind, (x, net.input(16), net.input(16)), 16, "AddNOptions")
        case "MIRROR_PAD":
            pads = numbers([[0, 0], [1, 1], [1, 1], [0, 0]])
            made = shaped(net.op(kind, (x, pads), 16, "MirrorPadOptions", mode=0), 1, 8, 8, 16)
        case "TRANSPOSE_CONV":
            weights, _ = net.weights((8, 3, 3, 16), 0)
            made = net.op(kind, (numbers([1, 6, 6, 8]), weights, x), 8, "TransposeConvOptions", strideH=1, strideW=1)
        case _:
            made = net.conv(x, 8, 3)
    return net.save(path, [made])


def test_the_header_states_what_the_plan_left_room_for(branches, tmp_path):
    output = tmp_path / "moved.tflite"
    given = {"fast_bytes": room(branches, 10_000), "slow_bytes": 1 << 20, "distance_bytes": 0xC40000}
    fitted = ds.fit_memories(branches, **given, output=output, kernels="reference")
    text = memories_firmware(fitted).header
    for line in (
        "constexpr intptr_t kDistance = 12845056;",
        f"constexpr size_t kPersistentBytes = {fitted.memories.persistent_bytes};",
        f"constexpr int kNoteBytes = {note_bytes(output, fitted.graph, 'reference')};",
        "constexpr bool kPersistentInSlow = false;",
        "class BoundedPlanner",
        "bool MemoriesHold",
        "resolver.AddReshape()",
    ):
        assert line in text
    with pytest.raises(UsageError, match="give an output"):
        memories_firmware(replace(fitted, output_path=None))


@pytest.mark.parametrize(("distance", "persistent"), [("16MB", "fast"), ("-16MB", "slow")])
def test_the_header_compiles_as_cxx_11(branches, tmp_path, distance, persistent):
    """Its planner keeps its notes in slow memory; what TFLite Micro keeps lies at the end of the stated memory."""
    import shutil
    import subprocess

    if shutil.which("g++") is None:
        pytest.skip("no g++")
    output, header = tmp_path / "moved.tflite", tmp_path / "moved.h"
    written = ("-o", output, "--header", header, "--kernels", "reference", "--time-limit", "2s")
    sizes = ("--fast", str(room(branches, 10_000)), "--slow", "1MB", "--distance", distance, "--persistent", persistent)
    output_of("fit", branches, *sizes, *written)
    side, size = ("slow", "kSlowBytes") if persistent == "slow" else ("fast", "kFastBytes")
    lower = "slow" if distance[0] == "-" else "fast"
    (tmp_path / "main.cc").write_text(
        '#include "moved.h"\n'
        "struct Planner { unsigned char* at;\n"
        " virtual int Init(unsigned char* notes, int bytes) { at = notes; return bytes; }\n"
        " virtual ~Planner() {} void operator delete(void*) {} };\n"
        "struct Allocator { protected: Allocator(int*, int*, Planner*) {} };\n"
        "int main() { namespace m = downset_moved; auto* fast = reinterpret_cast<unsigned char*>(0x10000000);\n"
        " auto* slow = fast + m::kDistance; auto* given = fast + 4096;\n"
        " static m::BoundedPlanner<Planner> planner(slow);\n"
        " static int one, two; static m::TwoMemoriesAllocator<Allocator> allocator(&one, &two, &planner);\n"
        " return m::MemoriesHold(fast, slow) && !m::MemoriesHold(fast, slow + 16) && planner.Init(given, 1 << 30) == "
        f"m::kNoteBytes && planner.at == {'given' if lower == 'slow' else 'slow'}\n"
        f" && m::PersistentBase(fast, slow) + m::kPersistentBytes == {side} + m::{size}"
        f" && m::ArenaBase(fast, slow) == {lower} ? 0 : 1; }}\n"
    )
    program = tmp_path / "main"
    subprocess.run(
        [
            "g++",
            "-std=c++11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-variable",
            "-o",
            program,
            tmp_path / "main.cc",
        ],
        check=True,
    )
    assert subprocess.run([program]).returncode == 0
