"""Write a request as a curl command for any POSIX shell.

Nothing of the request is ever outside of single quotes, octal escapes or base64, and curl is told to interpret nothing: no
globs in the URL (`--globoff`), no file names in the body (`--data-raw`, or the body on its standard input).
"""

import re
from base64 import b64encode
from collections.abc import Iterator
from shlex import quote
from textwrap import wrap
from typing import Final

from store.snippets.secret_variables import Pieces, Variable
from store.snippets.sent_request import SentRequest

LONGEST_WORD: Final = 64 << 10
"""Bytes of a body in an argument of curl: Linux allows 128 KiB for each."""

_MOST_ESCAPED: Final = 0.1
"""The part of a text that may be escapes; one with more is written as base64."""

_BARE: Final = re.compile(r"[A-Za-z0-9 :/._=,-]*")
_ADDED_BY_CURL: Final = ("user-agent", "accept", "content-type")


def write_curl(request: SentRequest) -> str:
    """Return the command."""
    clean = _clean_body(request.body)
    pipe = "" if clean is not None or not request.body else f"{_print_body(request.body)} |\n"
    options = [_command(request), *(f"-H {_header(name, value)}" for name, value in request.headers)]
    options += [f"-H '{name}:'" for name in _headers_to_remove(request)]
    if request.has_body:
        options.append(f"--data-raw {clean or quote('')}" if not pipe else "--data-binary @-")
    return pipe + " \\\n  ".join(options) + "\n"


def _command(request: SentRequest) -> str:
    flags = ["curl", "--globoff", "--path-as-is", *(["--no-buffer"] if request.is_streamed else [])]
    # Only `--head` makes curl expect an answer without a body.
    flags += ["--head"] if request.method == "HEAD" and not request.has_body else ["-X", quote(request.method)]
    return " ".join([*flags, "--url", _word(request.url)])


def _headers_to_remove(request: SentRequest) -> Iterator[str]:
    """Yield the headers that curl would add although the request had none."""
    names = {name.lower() for name, _ in request.headers}
    for name in _ADDED_BY_CURL:
        if name not in names and (name != "content-type" or request.has_body):
            yield name
    if request.has_body:
        yield "expect"


def _header(name: str, value: Pieces) -> str:
    # curl leaves out a header that ends with a colon, and sends one that ends with a semicolon without a value.
    if not value:
        return quote(f"{name};")
    start = f"{name}: ".encode()
    return _word((start + value[0], *value[1:]) if isinstance(value[0], bytes) else (start, *value))


def _word(pieces: Pieces) -> str:
    """Return pieces as one word of the shell."""
    texts = [piece if isinstance(piece, Variable) else _text(piece) for piece in pieces]
    if any(isinstance(one, Variable) for one in texts) and all(
        isinstance(one, Variable) or (one is not None and _BARE.fullmatch(one)) for one in texts
    ):
        return '"' + "".join(f"${{{one.name}}}" if isinstance(one, Variable) else str(one) for one in texts) + '"'
    return "".join(map(_word_part, pieces)) or "''"


def _word_part(piece: bytes | Variable) -> str:
    if isinstance(piece, Variable):
        return f'"${piece.name}"'
    text = _text(piece)
    if text is not None:
        return quote(text)
    return "".join(quote(run) if is_clean else f"\"$(printf '{run}')\"" for is_clean, run in _runs(piece))


def _text(data: bytes) -> str | None:
    """Return bytes as text if a terminal shows, and a shell keeps, every character."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(map(_is_visible, text)) else None


def _is_visible(char: str) -> bool:
    return char.isprintable() or char in "\n\t"


def _runs(data: bytes) -> Iterator[tuple[bool, str]]:
    """Yield visible runs as text, and the others as octal escapes for the format of printf."""
    for run in re.findall(r"[\udc80-\udcff]|[^\udc80-\udcff]", data.decode("utf-8", "surrogateescape")):
        if _is_visible(run):
            yield True, run
        else:
            yield False, "".join(f"\\{byte:03o}" for byte in run.encode("utf-8", "surrogateescape"))


def _clean_body(body: Pieces) -> str | None:
    """Return the body as one word; None if it must be printed into curl."""
    if sum(len(piece) for piece in body if isinstance(piece, bytes)) > LONGEST_WORD:
        return None
    if any(isinstance(piece, bytes) and _text(piece) is None for piece in body):
        return None
    return "".join(map(_word_part, body))


def _print_body(body: Pieces) -> str:
    commands = [_print_piece(piece) for piece in body]
    return commands[0] if len(commands) == 1 else "{ " + "; ".join(commands) + "; }"


def _print_piece(piece: bytes | Variable) -> str:
    if isinstance(piece, Variable):
        return f"printf '%s' \"${piece.name}\""
    text = _text(piece)
    if text is not None:
        return f"printf '%s' {quote(text)}"
    escaped = "".join(map(_escape, piece.decode("utf-8", "surrogateescape")))
    if len(escaped) - len(piece) <= len(piece) * _MOST_ESCAPED * 4:
        return f"printf '%b' {quote(escaped)}"
    lines = "\n".join(wrap(b64encode(piece).decode(), 120))
    return f"printf '%s' '{lines}' | base64 -d"


def _escape(char: str) -> str:
    """Return a character in the notation of `printf %b`."""
    if char == "\\":
        return "\\\\"
    if _is_visible(char):
        return char
    return "".join(f"\\0{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
