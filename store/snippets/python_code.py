"""Write a request as Python with httpx, or as a test for pytest.

All that comes from the recording is written by `repr`, so that it cannot end a literal, whatever it holds. A JSON body is
written as a value only where that value serializes to the recorded bytes.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from store.snippets.secret_variables import Pieces, Variable
from store.snippets.sent_request import SentRequest

_LINE: Final = 100
_DEEPEST: Final = 40
_SEPARATORS: Final = ((",", ":"), (", ", ": "))
"""How JSON is written by most clients, and by `json.dumps` without options."""

TIMEOUT: Final = 600


def write_python(request: SentRequest) -> str:
    """Return a program that sends the request and prints the answer."""
    value = _json_value(request.body)
    imports = sorted({"import httpx", *_standard_imports(request, value is not None)})
    standard = [line for line in imports if line != "import httpx"]
    head = [*standard, *([""] if standard else []), "import httpx", ""]
    lines = [
        *head,
        *_request_lines(request, value, _environment),
        "print(response.status_code)",
        "print(response.text)",
    ]
    return "\n".join(lines) + "\n"


def write_pytest(request: SentRequest, *, name: str, recording: str, status: int | None) -> str:
    """Return a test that sends the request and is answered from the recording beside it."""
    value = _json_value(request.body)
    standard = _standard_imports(request, value is not None)
    body = [*_request_lines(request, value, _environment_or_dummy)]
    body += [f"assert response.status_code == {status}"] if status is not None else []
    lines = [
        *sorted(standard),
        *([""] if standard else []),
        "import httpx",
        "import pytest",
        "",
        "",
        f"@pytest.mark.playhead(file={recording!r})",
        f"def {name}():",
        *(f"    {line}" if line else "" for line in body),
    ]
    return "\n".join(lines) + "\n"


def _standard_imports(request: SentRequest, has_value: bool) -> set[str]:
    texts = (request.url, request.body, *(value for _, value in request.headers))
    uses_variables = any(isinstance(piece, Variable) for text in texts for piece in text)
    return ({"import os"} if uses_variables else set()) | ({"import json"} if has_value else set())


type Lookup = Callable[[Variable], str]
"""Returns the expression that reads a variable."""


def _environment(variable: Variable) -> str:
    return f'os.environ["{variable.name}"]'


def _environment_or_dummy(variable: Variable) -> str:
    """In replay no key is needed, and a recorded answer never depends on one."""
    return f'os.environ.get("{variable.name}", "not-needed-in-replay")'


def _request_lines(request: SentRequest, value: tuple[Any, tuple[str, str]] | None, look_up: Lookup) -> Iterator[str]:
    if value is not None:
        yield from _assignment("body", _literal(value[0]))
    yield "response = httpx.request("
    yield f"    {request.method!r},"
    yield f"    {_text(request.url, look_up)},"
    if request.headers:
        yield "    headers=["
        for name, pieces in request.headers:
            yield f"        ({name!r}, {_header(pieces, look_up)}),"
        yield "    ],"
    yield from _content_lines(request, value, look_up)
    yield f"    timeout={TIMEOUT},"
    yield ")"


def _content_lines(request: SentRequest, value: tuple[Any, tuple[str, str]] | None, look_up: Lookup) -> Iterator[str]:
    if value is not None:
        yield f"    content=json.dumps(body, separators={value[1]!r}, ensure_ascii=False).encode(),"
    elif request.has_body:
        lines = [line for piece in request.body for line in _bytes_lines(piece, look_up)] or ["b''"]
        if len(lines) == 1:
            yield f"    content={lines[0]},"
        else:
            yield "    content=("
            for number, line in enumerate(lines):
                yield f"        {'+ ' if number else ''}{line}"
            yield "    ),"


def _bytes_lines(piece: bytes | Variable, look_up: Lookup) -> Iterator[str]:
    """Yield expressions whose concatenation is the piece."""
    if isinstance(piece, Variable):
        yield f"{look_up(piece)}.encode()"
        return
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        text = None
    for start in range(0, len(piece if text is None else text), _LINE):
        part = piece[start : start + _LINE] if text is None else text[start : start + _LINE]
        if isinstance(part, str) and part.isascii():
            part = part.encode()
        yield repr(part) if isinstance(part, bytes) else f"{part!r}.encode()"


def _text(pieces: Pieces, look_up: Lookup) -> str:
    parts = (
        look_up(piece) if isinstance(piece, Variable) else repr(piece.decode("utf-8", "surrogateescape"))
        for piece in pieces
    )
    return " + ".join(parts) or "''"


def _header(pieces: Pieces, look_up: Lookup) -> str:
    """Return a header's value: as bytes if it is not ASCII, which httpx would refuse as text."""
    if all(isinstance(piece, Variable) or piece.isascii() for piece in pieces):
        return _text(pieces, look_up)
    parts = (f"{look_up(piece)}.encode()" if isinstance(piece, Variable) else repr(piece) for piece in pieces)
    return " + ".join(parts)


def _json_value(body: Pieces) -> tuple[Any, tuple[str, str]] | None:
    """Return the body's value and the separators with which it serializes to the same bytes; None if it does not."""
    if len(body) != 1 or not isinstance(body[0], bytes) or body[0][:1] not in b"{[":
        return None
    try:
        value = json.loads(body[0])
        spelled = [one for one in _SEPARATORS if _dump(value, one) == body[0]]
    except (ValueError, RecursionError):
        return None
    return (value, spelled[0]) if spelled and _depth_is_at_most(value, _DEEPEST) and value else None


def _dump(value: Any, separators: tuple[str, str]) -> bytes:
    return json.dumps(value, separators=separators, ensure_ascii=False, allow_nan=False).encode()


def _depth_is_at_most(value: Any, limit: int) -> bool:
    if limit < 0:
        return False
    inner: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return all(_depth_is_at_most(one, limit - 1) for one in inner)


def _assignment(name: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"{name} = {lines[0]}"
    yield from lines[1:]


def _literal(value: Any) -> list[str]:
    """Return a JSON value as a literal of Python, in lines."""
    short = repr(value)
    if len(short) <= _LINE - 20 or not isinstance(value, dict | list):
        return [short]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    items: Iterable[tuple[str, Any]]
    items = (
        ((f"{key!r}: ", one) for key, one in value.items()) if isinstance(value, dict) else (("", one) for one in value)
    )
    lines = [opening]
    for prefix, one in items:
        inner = _literal(one)
        inner[0] = prefix + inner[0]
        inner[-1] += ","
        lines += [f"    {line}" for line in inner]
    return [*lines, closing]
