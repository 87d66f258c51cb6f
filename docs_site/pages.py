"""The pages of the site that come from the code: options, public names, methods, JSON schemas, exit codes, decisions.

mkdocs calls these functions as hooks (mkdocs.yml).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

import downset
from docs_site.clusters import cluster_page
from docs_site.methods import methods_page, table_text
from docs_site.schemas import schemas_page
from downset import errors
from downset.commands.examples import EXAMPLES, UNITS
from downset.commands.group import COMMANDS
from downset.commands.options import BYTES

ROOT = Path(__file__).resolve().parents[1]
PAGE_OF = {
    ROOT / "docs" / "schemas": "reference/json.md",
    ROOT / "src" / "downset" / "clusters" / "toml_file.py": "reference/cluster-toml.md",
}
"""Files and folders of the repository that the site shows as a generated page."""
STYLE = "style.css"
"""The site's style in addition to the theme's, as mkdocs.yml names it."""


def on_files(files: Any, config: Any) -> Any:
    """The generated pages, added to those that are written by hand. Files that are not pages stay out."""
    from mkdocs.structure.files import File

    generated = {
        "reference/cli.md": options_page(),
        "reference/api.md": names_page(),
        "reference/methods.md": methods_page(),
        "reference/json.md": schemas_page(ROOT / "docs" / "schemas"),
        "reference/cluster-toml.md": cluster_page(),
        "reference/exit-codes.md": exit_codes_page(),
        "decisions/index.md": decisions_page(),
    }
    for path, text in generated.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, STYLE, content=(ROOT / "docs_site" / "style.css").read_text()))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """The reference's pages in an element whose first columns hold names, which style.css keeps whole."""
    return f'<div class="names">{html}</div>' if page.file.src_uri.startswith("reference/") else html


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Decisions are reached from their list."""
    for file in files.documentation_pages():
        if file.src_uri.startswith("decisions/"):
            file.inclusion = type(file.inclusion).NOT_IN_NAV if file.src_uri != "decisions/index.md" else file.inclusion
    return nav


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files of the repository that are not pages of the site become their names."""
    folder = (Path(config["docs_dir"]) / page.file.src_uri).parent
    docs = Path(config["docs_dir"]).resolve()

    def rewritten(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        path = (folder / target.partition("#")[0]).resolve()
        if target.startswith(("http", "#", "mailto")) or (path.is_relative_to(docs) and not path.is_dir()):
            return match[0]
        if path in PAGE_OF:
            return f"[{words}]({'../' * page.file.src_uri.count('/')}{PAGE_OF[path]})"
        return f"{words} (`{path.relative_to(ROOT)}`)" if path.is_relative_to(ROOT) else words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", rewritten, markdown)


def leaves() -> list[tuple[str, click.Command]]:
    """Every command by its full name, subcommands instead of their groups."""
    commands: list[tuple[str, click.Command]] = []
    for name in COMMANDS:
        module = importlib.import_module(f"downset.commands.{name.replace('-', '_')}")
        command = getattr(module, name.replace("-", "_"))
        if isinstance(command, click.Group):
            commands += [(f"{name} {sub}", one) for sub, one in sorted(command.commands.items())]
        else:
            commands.append((name, command))
    return commands


def options_page() -> str:
    """Every option of every command."""
    parts = [
        "# Every option",
        "",
        f"Generated from the code of downset {downset.__version__}. {UNITS}",
        "",
        *_console(EXAMPLES[""]),
    ]
    for name, command in leaves():
        arguments = " ".join(
            parameter.make_metavar(click.Context(command))
            for parameter in command.params
            if isinstance(parameter, click.Argument)
        )
        parts += [
            f"## downset {name}",
            "",
            (command.help or "").strip(),
            "",
            "```console",
            f"$ downset {name} {arguments} [OPTIONS]".replace("  ", " "),
            "```",
            "",
            "| option | what it does |",
            "|---|---|",
        ]
        parts += [_option_row(command, one) for one in command.params if isinstance(one, click.Option)]
        parts += ["", *_console(EXAMPLES[name])]
    return "\n".join(parts)


def _console(examples: Iterable[str]) -> list[str]:
    return ["```console", *(f"$ {example}" for example in examples), "```", ""]


def _option_row(command: click.Command, option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    shown = "" if option.is_flag else f" `{option.make_metavar(click.Context(command))}`"
    default = " KB = 1024 bytes." if option.type is BYTES else ""
    if option.show_default and not option.is_flag and option.default is not None:
        default += f" Default: `{option.default}`."
    return f"| {names}{shown} | {table_text(option.help or '')}{default} |"


def names_page() -> str:
    """Every public name, with its docstring."""
    parts = ["# Every public name", "", "`import downset as ds`; [From Python](../python.md) shows them at work.", ""]
    for heading, wanted in (("Functions", str.islower), ("Types", lambda name: not name.islower())):
        parts += [f"## {heading}", ""]
        for name in downset.__all__:
            home = downset._HOME[name]
            if wanted(name):
                parts += [
                    f"::: downset.{home}"
                    + ("" if home.rpartition(".")[2] == name and _is_module(home, name) else f".{name}"),
                    "",
                ]
    return "\n".join(parts)


def _is_module(home: str, name: str) -> bool:
    """Whether the public name is the module itself."""
    return getattr(downset, name).__class__.__name__ == "module" and home.endswith(name)


def exit_codes_page() -> str:
    """Every exit code, ascending, and the errors that have it."""
    rows: list[tuple[int, str]] = [(0, "| 0 | | | done |")]
    for name in errors.__all__:
        kind = getattr(errors, name)
        said = " ".join((kind.__doc__ or "").split()).partition(". ")[0].rstrip(".")
        if kind is errors.DownsetError:
            said = "An error of downset itself; `DownsetError` is also the base of all errors here"
        rows.append((kind.exit_code, f"| {kind.exit_code} | `{kind.code}` | `{name}` | {said} |"))
    parts = ["# Exit codes", "", "| code | JSON `code` | error | what it says |", "|---|---|---|---|"]
    parts += [row for _, row in sorted(rows)]
    parts += ["| 128 and a signal's number | `stopped` | | stopped by that signal; 130 by Ctrl-C |", ""]
    return "\n".join(parts)


def decisions_page() -> str:
    """The decisions, by number."""
    parts = ["# Decisions", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        parts += [f"- {path.name[:4]}: [{title}]({path.name})"]
    return "\n".join([*parts, ""])
