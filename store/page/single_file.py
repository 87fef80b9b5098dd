"""Write the page with its documents as one file that needs no server: scripts, styles and data are in it, and it fetches nothing.

A browser loads no modules from a file, so the modules become functions of one script. They are written in the few forms of
`import` and `export` that this module knows; any other form is refused, and a test writes all of them.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from store.page.assets import Assets

ENTRY: Final = "app.js"
VIEWS: Final = ("views/run.js", "views/call.js")
"""The views of a file: it has one run."""

_FROM: Final = re.compile(r'^(import|export)\s*\{([^}]*)\}\s*from\s*"([^"]+)";?[ \t]*', re.MULTILINE)
_NAMED: Final = re.compile(r"^export (const|let|function|async function|class) ([A-Za-z_$][\w$]*)", re.MULTILINE)
_DEFAULT: Final = re.compile(r"^export default (function|async function|class) ([A-Za-z_$][\w$]*)", re.MULTILINE)
_LIST: Final = re.compile(r"export\s*\{([^}]*)\};?\s*$")
_LAZY: Final = re.compile(r'import\("([^"]+)"\)')
_OTHER: Final = re.compile(r"^\s*(import|export)\b(?!\.)", re.MULTILINE)


class UnknownModuleForm(ValueError):
    """A module has a form of `import` or `export` that this module cannot write as a function."""


def write_single_file(assets: Assets, documents: Mapping[str, str], title: str) -> bytes:
    """Return the page as one HTML file that answers from `documents`, JSON texts of the REST API by their addresses."""
    styles = _text(assets, "app.css")
    scripts = [_text(assets, "core/theme.js"), join_modules(assets)]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_source, scripts))}",
            f"style-src {_source(styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    data = _data_block(documents)
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{_escape(title)}</title>\n<style>{styles}</style>\n<script>{scripts[0]}</script>\n</head>\n<body>\n"
        '<div id="app"><noscript>This page needs JavaScript.</noscript></div>\n'
        f'<script type="application/json" id="document">{data}</script>\n<script>{scripts[1]}</script>\n</body>\n</html>\n'
    )
    return html.encode("utf-8", "replace")


def write_index(assets: Assets) -> bytes:
    """Return the page as it is served for a file: it asks the same server for the documents of the one run."""
    element = f'<script type="application/json" id="document">{_data_block({"*": json.dumps("fetch")})}</script>\n'
    return assets.index.replace(b"</body>", element.encode() + b"</body>")


def _data_block(documents: Mapping[str, str]) -> str:
    """Return JSON that cannot end the element it is in: `<` could, or begin a comment, and nothing else."""
    members = (f"{json.dumps(address)}:{text}" for address, text in documents.items())
    return f"{{{','.join(members)}}}".replace("<", "\\u003c")


def join_modules(assets: Assets, views: Sequence[str] = VIEWS) -> str:
    """Return a script with the entry, these views, and all modules that they import."""
    order = list(dict.fromkeys(name for start in (*views, ENTRY) for name in _dependencies(assets, start, ())))
    parts = ['"use strict";\nconst __modules = Object.create(null);\n']
    parts += [f'__modules["{name}"] = (() => {{\n{_as_function(assets, name, order)}\n}})();\n' for name in order]
    script = f"(() => {{\n{''.join(parts)}}})();\n"
    if re.search(r"</script|<!--", script, re.IGNORECASE):
        raise UnknownModuleForm("a module holds the end of a script element, or the beginning of a comment of HTML")
    return script


def _dependencies(assets: Assets, name: str, above: tuple[str, ...]) -> Iterator[str]:
    """Yield what a module imports, each before those that import it, and the module itself."""
    if name in above:
        raise UnknownModuleForm(f"{name} imports itself, through {above[-1]}")
    for found in _FROM.finditer(_text(assets, name)):
        yield from _dependencies(assets, _resolve(name, found[3]), (*above, name))
    yield name


def _resolve(name: str, address: str) -> str:
    parts: list[str] = []
    for part in (*PurePosixPath(name).parent.parts, *address.split("/")):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _as_function(assets: Assets, name: str, order: Sequence[str]) -> str:
    """Return the body of a function that returns what the module exports."""
    exported: dict[str, str] = {}
    text = _text(assets, name)

    def replace_from(found: re.Match[str]) -> str:
        source = f'__modules["{_resolve(name, found[3])}"]'
        pairs = _pairs(found[2])
        if found[1] == "import":
            return f"const {{ {', '.join(f'{one}: {other}' for one, other in pairs)} }} = {source};"
        exported.update({other: f"{source}.{one}" for one, other in pairs})
        return ""

    def replace_named(found: re.Match[str]) -> str:
        exported[found[2]] = found[2]
        return f"{found[1]} {found[2]}"

    def replace_default(found: re.Match[str]) -> str:
        exported["default"] = found[2]
        return f"{found[1]} {found[2]}"

    def replace_list(found: re.Match[str]) -> str:
        exported.update({other: one for one, other in _pairs(found[1])})
        return ""

    def replace_lazy(found: re.Match[str]) -> str:
        target = _resolve(name, found[1])
        if target in order:
            return f'Promise.resolve(__modules["{target}"])'
        return 'Promise.reject(new Error("This file holds one run. Other pages are on its store server."))'

    for pattern, replacement in (
        (_FROM, replace_from),
        (_DEFAULT, replace_default),
        (_NAMED, replace_named),
        (_LIST, replace_list),
        (_LAZY, replace_lazy),
    ):
        text = pattern.sub(replacement, text)
    if other := _OTHER.search(text):
        raise UnknownModuleForm(f"{name}: `{text[other.start() : other.start() + 60].strip()}…` is not a known form")
    returned = ", ".join(f'"{one}": {expression}' for one, expression in exported.items())
    return f"{text}\nreturn {{ {returned} }};"


def _pairs(names: str) -> list[tuple[str, str]]:
    """Return the names of a list in braces, each with the name that it gets."""
    found = []
    for part in filter(None, (one.strip() for one in names.split(","))):
        one, _, other = part.partition(" as ")
        found.append((one.strip(), other.strip() or one.strip()))
    return found


def _text(assets: Assets, name: str) -> str:
    return assets.files[name].content.decode()


def _source(text: str) -> str:
    """Return the source expression of a policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escape(text: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain.replace("&", "&amp;").replace("<", "&lt;")
