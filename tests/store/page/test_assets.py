"""The files of the page: what others wrote, what is forbidden, and how large it is."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from store.page.addresses import ADDRESSES, is_page_path, twin_address
from store.page.assets import DIRECTORY, load_assets
from store.page.script_tokens import read_tokens

OWN: Final = sorted(path for path in DIRECTORY.rglob("*.js") if path.parent.name != "vendor")
VENDOR: Final = (DIRECTORY / "vendor", Path(__file__).with_name("vendor"))

FORBIDDEN: Final = {
    r"\b(inner|outer)HTML\b": "it parses HTML",
    r"insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTMLUnsafe|srcdoc": "it parses HTML",
    r"dangerouslySetInnerHTML": "it parses HTML",
    r"\beval\s*\(|\bFunction\s*\(": "it makes code from text",
    r"set(Timeout|Interval)\s*\(\s*[\"'`]": "it makes code from text",
    r"\bstyle=(?!\$\{\{|\$\{\w+\})": "the policy allows no inline style: use a class, or an object",
    r"\bon(?!e=)[a-z]+=": "the policy allows no inline script: use onClick and so on",
    r"javascript:": "it makes code from text",
    r"[\"'`](https?:)?//(?!www\.w3\.org)": "the page loads nothing from elsewhere",
}
"""Patterns that no file of ours may have, with the reason."""

SERVED_LIMIT: Final = 150_000
"""Bytes of all scripts of the page as they are served, uncompressed."""

LONGEST_LINE: Final = 200
"""Characters of a line of our scripts, so that they can be read."""


@pytest.mark.parametrize("directory", VENDOR, ids=["served", "tests"])
def test_what_others_wrote_is_listed_with_its_digest(directory: Path) -> None:
    listed = json.loads((directory / "vendored.json").read_text())
    for one in listed:
        assert hashlib.sha256((directory / one["file"]).read_bytes()).hexdigest() == one["sha256"]
        assert one["version"] in one["source"]
        assert one["licence"]
    assert {one["file"] for one in listed} == {path.name for path in directory.glob("*.js")}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_file_parses_html_or_makes_code_from_text(path: Path) -> None:
    text = path.read_text()
    found = [(pattern, match[0]) for pattern in FORBIDDEN for match in re.finditer(pattern, text)]
    assert found == [], {pattern: FORBIDDEN[pattern] for pattern, _ in found}


@pytest.mark.parametrize(
    "line",
    [
        "element.innerHTML = text",
        'html`<p style="color: red">`',
        'html`<a href="javascript:x">`',
        "eval(text)",
        "new Function('a')",
        'import "https://cdn.example/x.js"',
        "html`<p onclick=${run}>`",
    ],
)
def test_what_is_forbidden_is_found(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in FORBIDDEN)


def test_all_scripts_together_are_small() -> None:
    sizes = {name: len(asset.content) for name, asset in load_assets().files.items() if name.endswith(".js")}
    assert sum(sizes.values()) < SERVED_LIMIT, sizes


def words_before_line_ends(script: str) -> list[str]:
    """Return the texts of templates of HTML that end with a line end: htm drops it, and what follows is joined to the last word."""
    tokens = read_tokens(script)
    found = []
    templates: list[bool] = []
    for place, token in enumerate(tokens):
        if token.kind == "template":
            templates.append(place > 0 and tokens[place - 1].text == "html")
        elif token.kind == "template-end":
            templates.pop()
        elif token.kind == "text" and templates[-1]:
            texts = re.split(r"<[^>]*(?:>|$)", token.text)
            found += [text for text in texts if text.strip() and ">" not in text and re.search(r"\n\s*$", text)]
    return found


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_space_is_lost_at_the_end_of_a_line(path: Path) -> None:
    assert words_before_line_ends(path.read_text()) == []


def test_a_space_that_is_lost_is_found() -> None:
    assert words_before_line_ends("html`<p>of a run:\n  ${count} calls</p>`") == ["of a run:\n  "]
    assert words_before_line_ends("html`<p\n  class=a>${count}\n  </p>`") == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_scripts_are_written_to_be_read(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if len(line) > LONGEST_LINE] == []


def test_the_document_names_files_that_exist_and_has_no_inline_script_or_style() -> None:
    index = load_assets().index.decode()
    names = re.findall(r'(?:href|src)="/assets/([^"]+)"', index)
    assert len(names) > 5
    version = load_assets().version
    assert [name for name in names if name.removeprefix(f"{version}/") not in load_assets().files] == []
    assert all(name.startswith(f"{version}/") for name in names)
    assert not re.search(r"<style|<script(?![^>]*src=)|\sstyle=|\son\w+=", index)


def test_every_address_has_a_twin_with_the_same_names() -> None:
    for address in ADDRESSES:
        names = re.findall(r"\{(\w+)\}", address.template)
        assert set(re.findall(r"\{(\w+)\}", address.twin)) <= set(names)
        path = re.sub(r"\{\w+\}", "a b", address.template)
        assert is_page_path(path)
        assert "a%20b" in twin_address(path, []) or not names
    assert not is_page_path("/runs")
    assert not is_page_path("/runs/a/b")
    assert not is_page_path("/v1/runs")


def test_only_filters_are_taken_over_by_a_twin() -> None:
    given = [("model", "a&b"), ("model", "c"), ("view", "x"), ("project", "north")]
    assert twin_address("/", given) == "/v1/runs?model=a%26b&model=c&project=north"
    assert twin_address("/runs/r", given) == "/v1/runs/r?project=north"
    assert twin_address("/costs", given).startswith("/v1/stats?group_by=day&group_by=model&model=a%26b")


def find_malformed(paths: Sequence[Path]) -> list[str]:
    """Return the names of the modules that node cannot read; one process reads them all."""
    if shutil.which("node") is None:
        pytest.skip("there is no node: the browser tests load the modules")
    line = ["node", "--no-warnings", "--experimental-vm-modules", "-e", READ_MODULES, "--", *map(str, paths)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()


READ_MODULES: Final = """
for (const path of process.argv.slice(1)) {
  try { new vm.SourceTextModule(fs.readFileSync(path, "utf8")) } catch { console.log(require("path").basename(path)) }
}
"""


def test_every_module_is_well_formed(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.js"
    wrong.write_text("export const one = 1;\nimport { two from './two.js';\n")
    assert find_malformed([*OWN, wrong]) == ["wrong.js"]
