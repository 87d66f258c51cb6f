"""The site builds strictly, its generated pages say what the code says, and the guides' examples run."""

import html
import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import downset
from docs_site import pages
from docs_site.methods import FAMILIES, methods_page
from docs_site.schemas import schemas_page
from downset.clusters.toml_file import load_cluster
from downset.commands.examples import EXAMPLES
from tests.models import branchy_model, installed_model

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. Any warning, such as a link that leads nowhere, ends the build."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_page_is_in_the_site_and_names_every_public_function(site):
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert all((site / path).exists() for path in written)
    api = (site / "reference" / "api.html").read_text()
    missing = [name for name in downset.__all__ if f'.{name}"' not in api and f'"downset.{name}"' not in api]
    assert missing == []


def test_the_site_loads_nothing_from_elsewhere(site):
    page = (site / "index.html").read_text()
    assert re.findall(r'<(?:script|img|iframe)[^>]+src="(http[^"]+)"', page) == []
    assert re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(http[^"]+)"', page) == []


def test_every_option_of_every_command_is_in_the_reference():
    page = pages.options_page()
    for name, command in pages.leaves():
        section = page[page.index(f"\n## downset {name}\n") :].split("\n## ")[1]
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(f"`{option}`" in section for option in parameter.opts), (name, parameter.opts)
                assert not parameter.help or parameter.help.split("|")[0] in section
        assert all(f"$ {example}\n" in section for example in EXAMPLES[name])
    assert all(f"$ {example}\n" in page.split("\n## ")[0] for example in EXAMPLES[""])


def test_every_size_in_the_reference_has_its_unit():
    rows = [row for row in pages.options_page().splitlines() if re.match(r"\| `-.*`SIZE", row)]
    assert len(rows) > 5 and all("KB = 1024 bytes." in row for row in rows)


def shown(site, page):
    """The text of a built page, without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", (site / page).read_text()))


def test_no_page_shows_an_entity(site):
    """A bar in a table is shown as a bar, in code too."""
    assert "--form [offsets|objects]" in shown(site, "reference/cli.html").replace("\n", " ")
    for path in site.rglob("*.html"):
        assert "&#124;" not in html.unescape(path.read_text()), path


def test_fields_and_defaults_of_types_are_in_the_reference(site):
    text = re.sub(r"\s+", " ", shown(site, "reference/api.html"))
    for field in (
        "Record( id: str, start: int, stop: int, nbytes: int, alignment: int = 1, offset: int | None = None,",
        "Storage( nbytes: int, producers: tuple[int, ...], consumers: tuple[int, ...], kept: bool = False, )",
        "Evidence( method: str, value: int | float, bound: int | float, proven: bool, states: int = 0,",
        "Order( steps: tuple[int, ...], memory: str, evidence: Evidence",
        "peak_bytes: int",
    ):
        assert re.sub(r"([(,]) ", r"\1", field) in re.sub(r"([(,]) ", r"\1", text), field


def test_every_option_of_every_method_is_in_the_reference():
    page = methods_page()
    for family in FAMILIES:
        section = page[page.index(f"`{family.function}`\n") :].split("\n## ")[0]
        assert f"Default: `{family.default}`" in section
        for name, method in family.methods.items():
            (row,) = re.findall(rf"^\| `{name}` \|.*$", section, re.MULTILINE)
            own = {option for option in method.options if option not in family.contract.settings}
            assert set(re.findall(r"`(\w+):", row)) == own, row
            assert row.endswith("| yes |") == method.proves
    assert "`width: int = 300`" in page and "`seed: int = 0`" in page


def test_every_exit_code_is_in_the_reference():
    page = pages.exit_codes_page()
    for name in downset.errors.__all__:
        assert f"`{name}`" in page
    codes = [int(code) for code in re.findall(r"^\| (\d+) ", page, re.MULTILINE)]
    assert codes == sorted(codes) and set(codes) == {0, 2, 3, 4, 5, 6, 70, 128}
    (internal,) = re.findall(r"^\| 70 \| (.*) \|$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert internal in page.replace("An error", "an error")


def keys_of(schema):
    """The name of every key in a schema, nested ones too."""
    for name, value in schema.items() if isinstance(schema, dict) else ():
        if name == "properties":
            yield from value
        for one in value if isinstance(value, list) else [value]:
            for part in one.values() if name in ("properties", "$defs") else [one]:
                yield from keys_of(part)


def test_every_key_of_every_schema_is_in_the_reference():
    page = schemas_page(ROOT / "docs" / "schemas")
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    paths = {path.stem: path for path in (ROOT / "docs" / "schemas").glob("*.json")}
    assert sections.keys() == paths.keys()
    for name, path in paths.items():
        rows = dict(re.findall(r"^\| `([^`]+)` \| (.*?) \|", sections[name], re.MULTILINE))
        listed = {key.rpartition(".")[2].removesuffix("[]") for key in rows}
        schema = json.loads(path.read_text())
        of_errors = {"code", "exit_code", "message", "figures", "ok"} if name != "envelope" else set()
        assert set(keys_of(schema)) - listed <= of_errors, name
        assert all(rows.values()), (name, rows)
        for key in ("kind", "schema"):
            if "const" in schema["properties"].get(key, {}):
                assert rows[key] == f"`{json.dumps(schema['properties'][key]['const'])}`"
    assert {"tensors[].size", "ops[].ins", "ops[].outs"} <= set(re.findall(r"^\| `([^`]+)`", sections["graph"], re.M))


FEW = {"a", "an", "and", "are", "as", "by", "for", "in", "is", "it", "its", "of", "or", "that", "the", "this", "to"}


def tells(said, name):
    """Whether a description has words that the name does not have."""
    words, known = (set(re.findall(r"[a-z0-9]+", text.lower())) for text in (said, name))
    return len(words - known - FEW) >= 2


def test_every_row_of_the_reference_is_described():
    page = schemas_page(ROOT / "docs" / "schemas")
    rows = re.findall(r"^\| `([^`]+)` \| .*? \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| `", page, re.MULTILINE)) > 500
    assert [key for key, said in rows if not said.endswith((".", ".)")) or not tells(said, key)] == []


def test_every_document_describes_its_envelope_alike():
    schemas = {path.stem: json.loads(path.read_text()) for path in (ROOT / "docs" / "schemas").glob("*.json")}
    envelope = schemas["envelope"]["properties"]
    documents = [schema["properties"] for schema in schemas.values() if "ok" in schema["properties"]]
    assert len(documents) == len(envelope["kind"]["enum"])
    for properties in documents:
        for key in ("kind", "schema", "ok", "error"):
            assert properties[key]["description"] == envelope[key]["description"]
        assert properties["error"] == envelope["error"]


def test_names_in_tables_stay_whole(site):
    """The style is linked by each page, and the reference's tables are where it applies."""
    assert "white-space: nowrap" in (site / "style.css").read_text()
    page = (site / "reference" / "exit-codes.html").read_text()
    assert 'href="../style.css"' in page and '<div class="names">' in page


def commands(page):
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        yield from (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ downset "))


def test_commands_of_guides_run(run, tmp_path, monkeypatch):
    """In one folder, guide after guide, with small models of the names that they use, and files that a guide makes. The
    guide of several devices, and the command for a model of open sizes, are run as they stand by test_guides.py."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(installed_model("pymicro-wakeword", "okay_nabu.tflite"), "model.tflite")
    engine = next(page for page in GUIDES if page.name == "engine-authors.md").read_text()
    for name, content in re.findall(r"^\$ cat (records.csv|graph.json)\n(.*?)^\$ ", engine, re.DOTALL | re.MULTILINE):
        Path(name).write_text(content)
    pages_run = [page for page in GUIDES if page.name != "several-devices.md"]
    lines = [line for page in pages_run for line in commands(page) if "--dim samples=" not in line]
    assert len(lines) >= 5
    for line in lines:
        _, command, *arguments = shlex.split(line)
        branchy_model(Path("model.onnx"))
        limit = [] if "--time-limit" in line or command == "simulate" else ["--time-limit", "1s"]
        status, _, err = run(command, *arguments, *limit)
        assert status == 0, (line, err)
    written = {"report.html", "model.h", "open.py", "arena.html", "placed.csv"}
    assert written <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_clusters_of_guides_are_read(page, tmp_path):
    """Programs of guides are run by test_guides.py and test_docs_pytorch.py."""
    for text in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        (tmp_path / "cluster.toml").write_text(text)
        assert len(load_cluster(tmp_path / "cluster.toml").devices) == 2


def test_the_hook_knows_every_command():
    assert {name.split()[0] for name, _ in pages.leaves()} == set(
        importlib.import_module("downset.commands.group").COMMANDS
    )
