"""Every figure in the tables of the README and of docs/results.md is the recorded one, as the page rounds it."""

import importlib
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from downset.arenas.planners import ARENAS, SHARED
from downset.commands.group import COMMANDS as _COMMANDS
from downset.orders.planners import ORDERS
from downset.pipelines.planners import PIPELINERS
from downset.stages.planners import STAGERS
from experiments.ios.cpu import verdict
from experiments.ios.networks import NETWORKS
from experiments.pico.figures12_16 import STATEMENTS, share
from experiments.serenity.subjects import geometric_mean

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()


def rows(name):
    return json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text())


def table(first_header, text=RESULTS):
    """The rows of the table whose header starts with these words, each a list of cells."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_header}"))
    found = []
    for line in [lines[at], *lines[at + 2 :]]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found[0], found[1:]


def numbers(text):
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


FITTED = {
    "openWakeWord embedding": "pyopen-wakeword: embedding_model.tflite",
    "basic-pitch, rewritten (TFLite": "basic-pitch: nmp.tflite",
    "MediaPipe hand_recrop": "mediapipe: hand_recrop.tflite",
    "SwiftNet cast to int8": "shared: swiftnet_as_int8.tflite",
    "NASNet-A Mobile int8": "shared: nasnet_mobile_keras_rand_int8.tflite",
    "okay_nabu streaming": "pymicro-wakeword: okay_nabu.tflite",
}


def test_fitted_models():
    recorded = {row["model"]: row for row in rows("fit_wheels")}
    _, lines = table("model | arena")
    assert len(lines) == len(FITTED)
    for name, arena, proven, measured in lines:
        (key,) = (model for start, model in FITTED.items() if name.startswith(start))
        row = recorded[key]
        assert numbers(arena) == [row["arena_bytes"]["before"], row["arena_bytes"]["after"]], name
        assert numbers(measured) == [row["measured"]["before"], row["measured"]["after"]], name
        assert (proven == "yes") == row["arena_bytes"]["proven"], name
        assert ("TFLite Micro" in name) == (row["target"] == "tflm"), name
        assert ("rewritten" in name) == bool(row.get("rewrites")), name


SESSIONS = {
    "swift-f0": ("swift-f0: model.onnx", ""),
    "basic-pitch": ("basic-pitch: nmp.onnx", ""),
    "PP-OCRv6 detector": ("rapidocr: PP-OCRv6_det_small.onnx", ""),
    "PP-OCRv6 recogniser": ("rapidocr: PP-OCRv6_rec_small.onnx", ""),
    "PP-OCR classifier": ("rapidocr: ch_ppocr_mobile_v2.0_cls_mobile.onnx", ""),
    "SwiftNet": ("zoo: swiftnet_hpd", ""),
    "SwiftNet, `--slower 1.1x`": ("zoo: swiftnet_hpd", "slower 1.1"),
    "MobileNet v2, `--max-recompute 10%`": ("zoo: mobilenet_v2", "max_recompute 0.1"),
    "MobileNet v2, `--max-recompute 10% --slower 1.1x`": ("zoo: mobilenet_v2", "max_recompute 0.1, slower 1.1"),
    "DenseNet-121": ("zoo: densenet121", ""),
    "DARTS": ("zoo: darts", ""),
    "SqueezeNet 1.0": ("zoo: squeezenet1_0", ""),
}


def sessions_row(row):
    """The cells of a recorded row as the README shows them, without its name; the shipped file is the last row."""
    first, alone, last = row["rows"][0], row["rows"][1], row["rows"][-1]
    assert last["settings"] == row["settings"]
    held = " → ".join(f"{one['held_bytes']:,}" for one in (first, alone, last))
    if row.get("loads") and row["loads"]["least_bytes"] < row["loads"]["most_bytes"]:
        held = held.replace(f"→ {last['held_bytes']:,}", f"→ {row['loads']['least_bytes']:,} to {last['held_bytes']:,}")
    used = " → ".join(f"{one['in_use_bytes']:,}" for one in (first, last))
    grown = " → ".join(f"{one['process_bytes'] / (1 << 20):.1f}" for one in (first, last))
    spent = " → ".join(f"{1000 * one['median_s']:.1f}" for one in (first, last))
    ratio = f"{last['ratio']:.2f}x, {last['ratio_low']:.2f} to {last['ratio_high']:.2f}"
    return [f"{row['shipped']}, {row['settings']}", held, used, grown, f"{spent} ({ratio})"]


def test_sessions_of_onnx_runtime():
    """Five of them are real models, and the program that was written for each gave the bytes of its claim, where the
    settings allow one."""
    recorded = {(row["model"], row["how"]): row for row in rows("ort_sessions")}
    _, lines = table("ONNX Runtime, one thread")
    assert [line[0] for line in lines] == list(SESSIONS)
    for name, *cells in lines:
        row = recorded[SESSIONS[name]]
        assert cells == sessions_row(row), name
        if row["settings"] != "file order":
            assert not row["loads"]["at_every_load"] and row["reproduced"] is None, name
            continue
        assert row["reproduced"], name
        assert all(row["printed"][figure] == row["rows"][-1][figure] for figure in ("in_use_bytes", "held_bytes")), name
    assert len([model for model, _ in recorded if not model.startswith("zoo")]) >= 5


def test_options_of_sessions():
    """Every option that is left out is a row, and every model a column."""
    recorded = {(row["model"], row["without"]): row for row in rows("ort_options")}
    header, lines = table("without | ", (ROOT / "docs" / "memory-models-ort.md").read_text())
    models = [SESSIONS[name][0] for name in header[1:]]
    assert {(model, line[0].strip("`")) for line in lines for model in models} == set(recorded)
    for without, *cells in lines:
        for model, cell in zip(models, cells, strict=True):
            row = recorded[model, without.strip("`")]
            assert cell == (
                f"{row['held_bytes']:,}, {row['ratio']:.2f}x ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
            ), (model, without)


ORDERED = {
    "SwiftNet": "swiftnet_hpd_vwwc224_uint8",
    "NASNet-A large": "nasnet_large",
    "RandWire fine": "randwire_fine_s0",
}


def test_orders():
    recorded = {row["graph"]: row for row in rows("speed_order")}
    assert f"prints {len(recorded)} graphs" in RESULTS
    header, lines = table("method | what it is | SwiftNet")
    assert [line[0].strip("`") for line in lines] == list(ORDERS)
    for method, what, *cells in lines:
        for graph, cell in zip(header[2:], cells, strict=True):
            row, name = recorded[ORDERED[graph]], method.strip("`")
            if name == "serenity" and not row["serenity_proven"]:
                assert cell.startswith("not finished"), graph
            elif name != "exhaustive":
                assert numbers(cell) == [row[name]], (name, graph)
        if "optimal" in method:
            assert all(recorded[graph]["proven"] for graph in ORDERED.values())
            spent_ms = [round(1000 * recorded[ORDERED[graph]]["cpu_s"]) for graph in header[2:]]
            assert "in {}, {} and {} ms of CPU".format(*spent_ms) in what


def test_whole_steps():
    recorded = {row["graph"]: row for row in rows("speed_order")}
    _, lines = table("step | operators | Inductor", (ROOT / "docs" / "pytorch.md").read_text())
    assert {f"step_{line[0].strip('`')}" for line in lines} == {name for name in recorded if name.startswith("step_")}
    for name, *cells in lines:
        row = recorded[f"step_{name.strip('`')}"]
        known = [row[column] for column in ("operators", "inductor", "optimal", "bound")]
        assert numbers(" ".join(cells)) == [*known, round(100 * row["gap"], 1), round(1000 * row["cpu_s"])], name


def test_methods_of_arenas_are_all_there_and_no_others():
    _, lines = table("method | offsets | objects")
    for form, known in ((1, ARENAS), (2, SHARED)):
        listed = {name for line in lines if line[form] == "yes" for name in re.findall(r"`(\w+)`", line[0])}
        assert listed == set(known)


def test_minimalloc():
    recorded = [row for row in rows("arenas_minimalloc") if row["capacity"] == 1 << 20]
    assert len(recorded) == 8
    assert all(row["placed"] for row in recorded)
    spent, longest = (f(row["cpu_s"] for row in recorded) for f in (sum, max))
    theirs = sum(row["minimalloc_cpu_s"] for row in recorded)
    sentence = " ".join(RESULTS[RESULTS.index("`exact` places all eight") :].split())
    assert f"in {spent:.1f} s of CPU together, {longest:.1f} s at most" in sentence
    assert f"published seconds add up to {theirs:.0f})" in sentence
    proven = next(row for row in rows("arenas_minimalloc") if row["instance"] == "C" and row["capacity"] < 1 << 20)
    assert f"proves C at its bound of {proven['capacity']:,}" in sentence


def test_peers_on_minimallocs_instances():
    _, lines = table("planner | bytes by the bound", (ROOT / "docs" / "arenas.md").read_text())
    for planner, mean, worst, seconds in lines:
        name = planner.removesuffix(", 500 rounds")
        recorded = [row for row in rows("speed_arena") if row["part"] == "peers" and row["planner"] == name]
        recorded = [row for row in recorded if row["records"].endswith(".1048576")]
        over = [row["over_bound"] for row in recorded if "over_bound" in row]
        assert len(recorded) == 8
        assert ("none found for one" in mean) == (len(over) == 7)
        assert numbers(mean)[:1] == [round(sum(over) / len(over), 3)], planner
        assert numbers(worst) == [round(max(over), 3)], planner
        assert numbers(seconds) == [round(sum(row["cpu_s"] for row in recorded), 2)], planner


REWRITTEN = {
    "SwiftNet, float .onnx": "zoo swiftnet_hpd (.onnx)",
    "DenseNet-121": "zoo densenet121 (.onnx)",
    "SqueezeNet 1.0": "zoo squeezenet1_0 (.onnx)",
    "SwiftNet cell A": "SwiftNet HPD cell A (float .tflite)",
}


def test_rewriting():
    recorded = {row["model"]: row for row in rows("serenity_rewriting")}
    _, lines = table("measured in the runtime")
    for name, *cells in lines:
        (key,) = (model for start, model in REWRITTEN.items() if name.startswith(start))
        row = recorded[key]
        assert [numbers(cell) for cell in cells] == [[row[k]] for k in ("file_order", "order", "rewritten")], name


def test_stages():
    networks = {title: name for name, title in NETWORKS.items()}
    simulated = {row["network"]: row["simulated_s"] for row in rows("ios_fig6")}
    searched = {
        row["network"]: row
        for row in rows("ios_search")
        if (row["max_ops"], row["max_groups"], row["strategy"]) == (3, 8, "both")
    }
    header, lines = table("method | what it is | Inception V3")
    assert [line[0].strip("`") for line in lines] == list(STAGERS)
    assert set(header[2:]) == set(networks)
    for method, _, *cells in lines:
        for network, cell in zip(header[2:], cells, strict=True):
            name, row = method.strip("`"), searched[networks[network]]
            if name in ("sequential", "greedy"):
                expected = [round(1000 * simulated[networks[network]][name], 3)]
            else:
                cost, timed = ("full_cost_s", "ios_timings") if name == "ios" else ("lazy_cost_s", "lazy_timings")
                expected = [round(1000 * row[cost], 3), row[timed]]
            assert numbers(cell) == expected, (name, network)


def test_cells_of_the_memory_paper_that_do_not_come_out():
    _, lines = table("cell | paper | ours | what was tried", (ROOT / "docs" / "arenas.md").read_text())
    names = {
        "Greedy by Size Improved": "greedy_by_size_improved",
        "min-cost flow": "min_cost_flow",
        "strip packing": "strip_packing",
    }
    recorded = rows("tflite_memory_tables")
    compared = [row for row in recorded if row["same"] is not None]
    assert f"{sum(row['same'] for row in compared)} of {len(compared)} cells are the same" in words_of("arenas.md")
    assert len(lines) == sum(not row["same"] for row in compared)
    for cell, paper, ours, _ in lines:
        strategy, _, network = cell.partition(", ")
        (row,) = (r for r in compared if (r["strategy"], r["network"]) == (names[strategy], network))
        assert not row["same"]
        assert numbers(paper) == [row["paper_mib"]]
        assert numbers(ours)[0] == row["ours_mib"]


def test_stages_on_a_cpu():
    """What the page counts are the verdicts of the recorded intervals, and it names the networks that stay as they
    are."""
    titles = NETWORKS | {"resnet50": "ResNet-50"}
    sentence = " ".join(RESULTS[RESULTS.index("Measured on two cores") :].split("No GPU")[0].split())
    recorded = {titles[row["network"]]: row for row in rows("ios_cpu")}
    (kept,) = re.findall(r"sequential is kept for ([^:]+):", sentence)
    assert sorted(re.split(r", | and ", kept)) == sorted(recorded) == sorted(titles.values())
    assert {row["chosen"] for row in recorded.values()} == {"sequential"}
    duels = [duel for row in recorded.values() for duel in row["duels"]]
    found = Counter(verdict(duel) for duel in duels)
    assert f"in {duels[0]['rounds']} interleaved rounds" in sentence
    assert found["faster"] == 0 and "no other schedule was faster" in sentence
    assert f"{found['slower']} were slower and {found['not told apart']} not told apart" in sentence


@pytest.mark.parametrize("page", ["README.md", "docs/guides/onnx-runtime.md"])
def test_what_is_expected_of_stages_where_they_are_offered(page):
    """The best other schedule of each recorded network, which the guide names, and that GPUs have no recorded rows."""
    said = " ".join((ROOT / page).read_text().split())
    recorded = rows("ios_cpu")
    best = [max(duel["ratio"] for duel in row["duels"]) for row in recorded]
    named = f"ran at {min(best):.2f}x to {max(best):.2f}x of one after another" in said
    assert named == (page != "README.md")
    assert "nothing was measured to be faster for any of five networks" in said and len(recorded) == 5
    assert all(row["device"].endswith("2 threads") and row["chosen"] == "sequential" for row in recorded)
    assert all(verdict(duel) != "faster" for row in recorded for duel in row["duels"])
    assert "no GPU was measured" in said and not (ROOT / "experiments" / "results" / "ios_gpu.json").exists()


def test_rounds_against_sequential_in_their_page():
    _, lines = table("network | schedule | against", (ROOT / "docs" / "stages.md").read_text())
    titles = NETWORKS | {"resnet50": "ResNet-50"}
    recorded = [(titles[row["network"]], duel) for row in rows("ios_cpu") for duel in row["duels"]]
    assert lines == [
        [
            title,
            duel["name"],
            f"{duel['ratio']:.2f}x",
            f"{duel['low']:.2f} to {duel['high']:.2f}",
            f"{duel['faster_rounds']} of {duel['rounds']}",
            verdict(duel),
        ]
        for title, duel in recorded
    ]


def test_peers_of_stages_in_their_page():
    _, lines = table("network | batch | downset", (ROOT / "docs" / "stages.md").read_text())
    recorded = {(NETWORKS[row["network"]], row["batch"]): row["p50_s"] for row in rows("ios_peers")}
    assert {(name, int(batch)) for name, batch, *_ in lines} == set(recorded)
    for name, batch, *cells in lines:
        times = recorded[name, int(batch)]
        found = [1000 * times[peer] for peer in ("downset", "onnxruntime", "openvino", "torch.compile")]
        assert [numbers(cell) for cell in cells[:4]] == [[round(taken, 1)] for taken in found], name
        assert numbers(cells[4]) == [round(min(found[1:]) / found[0], 2)], name
        fastest = list(times)[found.index(min(found))]
        assert cells[5] == fastest, name


def test_limits_of_stages_in_their_page():
    _, lines = table("network | full, ms", (ROOT / "docs" / "stages.md").read_text())
    recorded = {
        NETWORKS[row["network"]]: row
        for row in rows("ios_search")
        if (row["max_ops"], row["max_groups"], row["strategy"]) == (3, 8, "both")
    }
    assert {line[0] for line in lines} == set(NETWORKS.values())
    for name, *cells in lines:
        row = recorded[name]
        ratio = row["lazy_cost_s"] / row["full_cost_s"]
        expected = [1000 * row["full_cost_s"], row["ios_timings"], row["once"], 1000 * row["lazy_cost_s"]]
        found = [[round(figure, 3)] for figure in (*expected, row["lazy_timings"])]
        assert [numbers(cell) for cell in cells] == [*found, [round(ratio, 4)]], name


def test_every_experiment_of_stages_is_in_their_page():
    page = (ROOT / "docs" / "stages.md").read_text()
    scripts = [path for path in (ROOT / "experiments" / "ios").glob("*.py") if "__main__" in path.read_text()]
    assert len(scripts) > 10
    for path in scripts:
        assert f"| `{path.stem}` |" in page, path.stem


def test_pipelines():
    recorded = {(row["network"], row["cluster"], row["comm"]): row for row in rows("pico_numbers")}
    _, lines = table("| `pico` | `exact`")
    paper, cell = "paper cluster, 2 MAC/cycle", "shared cell, 2 MAC/cycle"
    keys = [(network, paper, comm) for comm in ("paper", "resources") for network in ("vgg16", "yolov2")]
    keys.append(("vgg16", cell, "resources"))
    assert len(lines) == len(keys)
    for (name, pico, exact, bound), key in zip(lines, keys, strict=True):
        row = recorded[key]
        digits = len(re.search(r"\((\d+\.(\d+))x\)", exact)[2])
        assert numbers(pico) == [round(row["pico_s"], 3)], name
        assert numbers(exact) == [round(row["exact_s"], 3), round(row["pico_s"] / row["exact_s"], digits)], name
        assert numbers(bound) == [round(row["bound_s"], 3)], name
        assert ("proven" in exact) == row["proven"], name
        assert ("resources" in name or "radio cell" in name) == (key[2] == "resources"), name
        if "one device alone" in name:
            assert numbers(name.split("alone")[1]) == [round(row["single_s"], 3)]


def test_pipelines_of_every_cluster():
    """Periods of `pico` and of one device over `exact`'s, by cluster and network."""
    recorded = {(re.sub(r"\W|_", "", row["network"]), row["cluster"]): row for row in rows("pico_compare")}
    header, lines = table("`pico` / one device")
    names = [re.sub(r"\W", "", name.lower()).replace("mobilenetv3", "mobilenetv3large") for name in header[1:]]
    shown = {
        (name, line[0]): cell for line in lines for name, cell in zip(names, line[1:], strict=True) if cell.strip()
    }
    assert {key for key in recorded if key[0] in names} == set(shown)
    for key, cell in shown.items():
        row = recorded[key]
        assert numbers(cell) == [round(row["over_pico"], 2), round(row["over_single"], 2)], key
        assert row["over_pico"] >= 1, key
        assert row["over_single"] >= 1, key


def test_what_the_paper_says_of_figures_13_to_16():
    _, lines = table("figure | the paper says", (ROOT / "docs" / "pipelines.md").read_text())
    recorded = rows("pico_figures12_16")
    assert lines == [
        [said["figure"], said["says"], *(share(said["name"], comm, recorded) for comm in ("paper", "resources"))]
        for said in STATEMENTS.rows
    ]


def words_of(page):
    return " ".join((ROOT / "docs" / page).read_text().split())


def test_what_is_measured_beside_the_model_of_tflite_micro():
    (row,) = (row for row in rows("fit_wheels") if row["model"] == "pyopen-wakeword: hey_jarvis.tflite")
    measured, planned = row["measured_details"]["original"]["head_bytes"], row["arena_bytes"]["before"]
    assert f"{measured:,} B measured against {planned:,} planned" in words_of("memory-models.md")


def test_shares_of_orders_in_serenitys_evaluation():
    counted = {(row["memory"], row["nodes"][:2], row["drawn"]): row for row in rows("serenity_figure3")}
    all_orders, walks = (counted["serenity", "20", drawn] for drawn in ("all orders", "random walks"))
    said = words_of("serenity-evaluation.md")
    assert f"{100 * all_orders['under']:.2f} % with KB of 1,000 bytes" in said
    assert f"{100 * all_orders['under_1024']:.2f} % with KB of 1,024" in said
    assert f"and {100 * all_orders['optimal']:.3f} % of all" in said
    assert f"{all_orders['orders'] / 1e9:.1f} billion orders" in said
    assert f"{100 * walks['under']:.1f} % and {100 * walks['under_1024']:.1f} % of walks" in said


def test_budgets_arenas_and_traffic_in_serenitys_evaluation():
    said = words_of("serenity-evaluation.md")
    at = {
        (row["rewritten"], row["of_hard"] == 1.0, row["budget"] == row["peak"]): row for row in rows("serenity_figure8")
    }
    for rewritten, text in ((False, "on cell A {} at the least peak, {} at the hard"), (True, "rewritten {} and {}")):
        least, hard = at[rewritten, False, True]["states"], at[rewritten, True, False]["states"]
        assert text.format(f"{least:,}", f"{hard:,}") in said
    cells = [row for row in rows("serenity_figure10") if not row["cell"].startswith("whole")]
    means = {
        column: geometric_mean(row["file"] / row[column] for row in cells if row["memory"] == "serenity")
        for column in ("dp", "rewriting")
    }
    assert len(cells) == 2 * 9
    assert f"{means['dp']:.2f}x and {means['rewriting']:.2f}x over the nine cells" in said
    darts = next(row for row in cells if row["cell"].startswith("DARTS") and row["memory"] == "serenity")
    assert f"({darts['dp_peak']:,} to {darts['rewriting_peak']:,} bytes" in said
    sums, traffic = [], [row for row in rows("serenity_figure11") if row["on_chip"] == 256 * 1024 and row["file"]]
    for unit, text in (
        ("256 B blocks", "{:.2f}x as the mean of the ratios of {} cells with blocks of 256 bytes"),
        ("whole tensors", "{:.2f}x with whole tensors"),
    ):
        both = [row for row in traffic if row["unit"] == unit]
        ratios = [row["file"] / row["dp"] for row in both if row["dp"]]
        assert text.format(geometric_mean(ratios), len(ratios)) in said
        sums.append(sum(row["file"] for row in both) / sum(row["dp"] for row in both))
    assert f"as the ratio of the sums {sums[0]:.2f} and {sums[1]:.2f}" in said
    more = sum(row["dp"] > row["file"] for row in traffic if row["unit"] == "256 B blocks")
    assert f"at 256 KB {more} of the cells move more bytes" in said


@pytest.mark.parametrize("command", [name for name in _COMMANDS if name not in ("profiles", "keys")])
def test_options_of_commands_exist(command):
    _, lines = table("command | what it does", COMMANDS)
    (usage,) = (line[0] for line in lines if line[0].startswith(f"`downset {command} "))
    made = getattr(importlib.import_module(f"downset.commands.{command.replace('-', '_')}"), command.replace("-", "_"))
    known = {option for parameter in made.params for option in parameter.opts}
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", usage))
    assert named <= known
    for choices in re.findall(r"(?:--[a-z-]+) ([a-z]+(?:\\\|[a-z]+)+)", usage):
        assert any(
            set(choices.split("\\|")) <= set(getattr(parameter.type, "choices", ())) for parameter in made.params
        ), choices


def test_planners_of_pipelines_are_in_their_page():
    page = (ROOT / "docs" / "pipelines.md").read_text()
    for name in PIPELINERS:
        assert f"| `{name}` |" in page


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_links_and_commands_of_pages_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for module in set(re.findall(r"python -m\s+(experiments\.[\w.]+\w)", text)):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists() or "NAME" in module, module
    for target in set(re.findall(r"make ([a-z-]+)", text)):
        if f"make {target}`" in text:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target
    for file in set(re.findall(r"\b((?:tests|experiments|src|docs)/[\w/.-]+\.(?:py|md|json))", text)):
        assert (ROOT / file).exists(), file


def test_partial_execution():
    found = {(row["model"], row["plan"]): row for row in rows("partial") if "total_bytes" in row}
    _, lines = table("measured in TFLite Micro, bytes | total", (ROOT / "docs" / "partial.md").read_text())
    assert {line[0] for line in lines} == {model for model, plan in found if plan != "the file as it is"}
    for model, as_it_is, least, more, operators, head, overlapping in lines:
        total, deep, over = (
            found[model, f"least {plan}"]
            for plan in (
                "total, at most 1 % recomputed",
                "head, nothing recomputed",
                "total, results over inputs (reference kernels)",
            )
        )
        assert numbers(as_it_is) == [found[model, "the file as it is"]["total_bytes"]], model
        parts = ("total_bytes", "head_bytes", "tail_bytes", "cortex_m_tail_bytes")
        assert numbers(least) == [total[part] for part in parts], model
        assert numbers(more) == [round(100 * total["extra_macs"] / total["macs"], 2)], model
        assert numbers(operators) == total["operators"], model
        assert numbers(head) == [deep["head_bytes"], deep["total_bytes"]], model
        assert numbers(overlapping) == [over["total_bytes"], over["head_bytes"]], model
        assert total["differs"] == deep["differs"] == over["differs"] == 0, model
        assert total["total_bytes"] < numbers(as_it_is)[0], model


def test_a_detector_in_strips():
    _, lines = table("detector, measured in LiteRT", (ROOT / "docs" / "partial.md").read_text())
    found = [row for row in rows("partial") if "face_detection_back" in row["model"]]
    assert [numbers(cell) for line in lines for cell in line[1:]] == [
        figure for row in found for figure in ([row["arena_bytes"]], row["operators"][1:])
    ]
    assert not any(row.get("differs", 0) or row.get("extra_macs", 0) for row in found)


def test_what_was_wanted_of_strips():
    """Every goal is printed with what was reached."""
    goals = {(row["model"], row["plan"]): row for row in rows("partial") if "goal" in row}
    _, lines = table("model | plan | wanted", (ROOT / "docs" / "partial.md").read_text())
    assert len(lines) == len(goals)
    for model, plan, wanted, reached in lines:
        row = goals[model, plan]
        figure, most, met = row["goal"]
        assert numbers(wanted) == [most], (model, plan)
        assert numbers(reached) == [row[figure]] and met, (model, plan)


def test_strips_beside_msf_cnn():
    _, lines = table("more MACs at most | ours", (ROOT / "docs" / "partial.md").read_text())
    for line, row in zip(lines, rows("partial_peers"), strict=True):
        shown = [round(100 * row["more_macs"], 2), row["planned_bytes"], round(100 * row["our_more_macs"], 2)]
        shown += [row["theirs_bytes"], row["theirs_measured_bytes"]]
        assert [number for cell in line for number in numbers(cell)] == shown


def test_tiles_that_keep_nothing():
    page = ROOT / "docs" / "decisions" / "0016-strips-of-rows-not-tiles.md"
    _, lines = table("keeping nothing, analytic", page.read_text())
    labels = ("head, keeping nothing, 10 % more MACs at most", "head, keeping nothing")
    for model, *cells in lines:
        for cell, (least, how) in zip(cells, itertools.product(labels, ("strips", "tiles")), strict=True):
            found = [row for row in rows("partial_tiles") if (row["model"], row["least"]) == (model, least)]
            found = [row for row in found if how in row]  # no tiles within the tenth
            parts = [
                (row[f"{how}_head_bytes"], row[f"{how}_persistent_bytes"], row[f"{how}_more_macs"]) for row in found
            ]
            head, kept, more = min(parts)
            assert numbers(cell) == [head, kept, round(100 * more, 1)], (model, cell)


def test_tiles_beside_strips():
    page = ROOT / "docs" / "decisions" / "0016-strips-of-rows-not-tiles.md"
    _, lines = table("analytic, bytes", page.read_text())
    recorded = rows("partial_tiles")
    assert {line[0] for line in lines} == {row["model"] for row in recorded}
    for model, *cells in lines:
        for cell, (least, how) in zip(cells, itertools.product(("head", "total"), ("strips", "tiles")), strict=True):
            found = [row for row in recorded if (row["model"], row["least"]) == (model, least)]
            pairs = [(row[f"{how}_head_bytes"], row[f"{how}_persistent_bytes"]) for row in found]
            assert numbers(cell) == (list(min(pairs)) if least == "head" else [min(map(sum, pairs))]), (model, cell)


def test_what_the_readme_says_came_out():
    """A line of result for each kind of user, from rows that pages on results show too."""
    _, lines = table("guide for | what came out", README)
    said = {re.match(r"\[(.*?)\]", guide)[1]: came for guide, came in lines}
    fitted = {row["model"]: row for row in rows("fit_wheels")}["pyopen-wakeword: embedding_model.tflite"]
    assert numbers(said["a microcontroller"]) == [fitted["measured"]["before"], fitted["measured"]["after"]]
    assert fitted["arena_bytes"]["proven"] and "proven least" in said["a microcontroller"]
    session = {(row["model"], row["how"]): row for row in rows("ort_sessions")}["basic-pitch: nmp.onnx", ""]
    assert numbers(said["ONNX Runtime"]) == [session["rows"][0]["held_bytes"], session["rows"][-1]["held_bytes"]]
    step = {(row["network"], row["way"]): row["peak_bytes"] for row in rows("inductor")}
    gains = [
        ("gpt_wide", "inductor"),
        ("gpt_wide", "ordered"),
        ("resnet50_last", "inductor"),
        ("resnet50_last", "ordered"),
    ]
    assert numbers(said["a training run"].replace("ResNet-50", "")) == [step[gain] for gain in gains]
    everywhere = {(one["network"], one["cluster"]): one for one in rows("pico_compare")}
    ratio = everywhere["yolov2", "pico_2mac"]["over_single"]
    assert re.findall(r"(\d\.\d+)x", said["several devices"]) == [f"{ratio:.2f}"]
    assert "without its passthrough" in said["several devices"] and "(analytic)" in said["several devices"]
    assert [*said] == ["a microcontroller", "ONNX Runtime", "several devices", "a training run", "an engine"]
