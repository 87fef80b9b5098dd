"""Read VCR cassettes of Python's VCR.py, its relatives, and Ruby's VCR.

What is read: YAML and JSON; `interactions`, `http_interactions`, split lists of `requests` and `responses`, and a single
request with its response; bodies as text, `!!binary`, `{string}`, `{base64_string}`, `{encoding, string}`, pieces of an
iterator, the `{type, content}` of cassetter, and the `parsed_body` of serializers that keep JSON apart; headers as
mappings or as pairs. ExVCR writes a list of interactions that have the same members under names of its own.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

from calls.codec.json import NotLossless, lenient
from calls.model import Headers, Request, Response, header
from store.foreign import proxies
from store.foreign.cassetter import conversation, is_typed, typed
from store.foreign.contents import (
    RESERIALIZED,
    UNCHUNKED,
    UNTIMED,
    UNVERSIONED,
    Broken,
    Found,
    Interaction,
    NotReadable,
    SkippedEntry,
)
from store.foreign.others import as_vcr
from store.foreign.parts import body, dated, field, json_bytes, mended, moment, url, version
from store.foreign.yamlvalues import LISTED, BadYaml, UnknownTag, members

type Member = tuple[str, Any]

_GRPC: Final = "it is a call of gRPC, whose HTTP was not kept"


def from_yaml(stream: IO[bytes] | bytes) -> Iterator[Found]:
    """The interactions of a YAML cassette, in their order. Raises NotReadable where there are none to be seen."""
    return _paired(_until_broken(members(stream)))


def from_json(data: bytes) -> Iterator[Found]:
    """The same of a JSON cassette."""
    try:
        value: Any = lenient(data)
    except NotLossless as error:
        raise NotReadable(f"it is not JSON: {error}") from None
    if isinstance(value, list):
        return _paired(("interactions", item) for item in value)
    if not isinstance(value, dict):
        raise NotReadable("it holds no cassette")
    return _paired(
        _opened(value["data"] if isinstance(value.get("data"), dict) and "pairs" in value["data"] else value)
    )


def _opened(value: Mapping[str, Any]) -> Iterator[Member]:
    for name, found in value.items():
        if name in LISTED and isinstance(found, list):
            yield from ((name, item) for item in found)
        else:
            yield name, found


def _until_broken(found: Iterator[Member]) -> Iterator[Member]:
    """The members, and in the place of what cannot be parsed the reason."""
    try:
        yield from found
    except BadYaml as error:
        yield "broken", str(error)


def _paired(found: Iterator[Member]) -> Iterator[Found]:
    number = 0
    halves: dict[str, deque[Any]] = {"request": deque(), "response": deque()}
    for name, value in found:
        match name:
            case "interactions" | "http_interactions" | "Entries" | "pairs":
                number += 1
                yield _interaction(number, value)
            case "request" | "response" | "requests" | "responses":
                halves[name.removesuffix("s")].append(value)
                if all(halves.values()):
                    number += 1
                    yield _interaction(number, {half: waiting.popleft() for half, waiting in halves.items()})
            case "ws_interactions":
                number += 1
                yield _conversation(number, value)
            case "grpc_interactions":
                number += 1
                yield SkippedEntry(place=f"interaction {number}", reason=_GRPC)
            case "broken":
                if not number:
                    raise NotReadable(str(value))
                yield SkippedEntry(place=f"all after interaction {number}", reason=str(value))
            case _:
                pass
    for half, waiting in halves.items():
        for _ in waiting:
            number += 1
            yield SkippedEntry(place=f"interaction {number}", reason=f"it is a {half} without its other half")
    if not number:
        raise NotReadable("it holds no interactions")


def _interaction(number: int, value: Any) -> Found:
    place = f"interaction {number}"
    try:
        return _read(place, value)
    except Broken as error:
        return SkippedEntry(place=place, reason=str(error))


def _conversation(number: int, value: Any) -> Found:
    place = f"interaction {number}"
    try:
        told = _mapping(value, "it")
        return conversation(place, told, _headers(told.get("headers")), moment(told.get("recorded_at"), dated))
    except Broken as error:
        return SkippedEntry(place=place, reason=str(error))


def _read(place: str, value: Any) -> Interaction:
    told = _mapping(as_vcr(proxies.as_vcr(value)), "it")
    if "request" not in told and "request_sample" in told:
        raise Broken(_GRPC)
    if "request" not in told and told.get("kind") is not None:
        raise Broken(f"it is a {_words(told['kind'])} of a connection whose address the cassette does not hold")
    asked, answered = _mapping(told.get("request"), "its request"), _mapping(told.get("response"), "its response")
    request, request_notes = _request(asked)
    response, response_notes = _response(answered)
    started_at = moment(told.get("recorded_at") or asked.get("recorded_at"), dated)
    notes = (*request_notes, *response_notes, UNTIMED, UNCHUNKED, *(() if request.http_version else (UNVERSIONED,)))
    return Interaction(
        place=place,
        request=request,
        response=response,
        started_at=started_at or moment(header(response.headers, "date"), dated),
        notes=notes,
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, UnknownTag):
        raise Broken(f"{what} is an object of its recorder ({_tag(value)}), which is not made; record it again")
    if not isinstance(value, Mapping):
        raise Broken(f"{what} is missing or no mapping")
    return value


def _tag(value: UnknownTag) -> str:
    return value.tag.removeprefix("tag:yaml.org,2002:")


def _request(told: Mapping[str, Any]) -> tuple[Request, tuple[str, ...]]:
    method = told.get("method")
    if not isinstance(method, str) or not method.isascii() or not method.isalpha():
        raise Broken(f"its method is {_words(method)}")
    headers = _headers(told.get("headers"))
    data, parsed = _body(told, "request")
    headers, data, notes = mended(headers, _sent(headers, data))
    made = Request(
        method=method.upper(),
        url=url(told.get("uri") or told.get("url")),
        http_version=version(told.get("http_version") or told.get("proto")),
        headers=headers,
        body=body(data),
    )
    return made, (*notes, *parsed)


def _response(told: Mapping[str, Any]) -> tuple[Response, tuple[str, ...]]:
    headers = _headers(told.get("headers"))
    data, parsed = _body(told, "response")
    headers, data, notes = mended(headers, data)
    status, reason = _status(told)
    made = Response(
        status=status,
        reason=reason,
        http_version=version(told.get("http_version") or told.get("protocol") or told.get("proto") or _inner(told)),
        headers=headers,
        body=body(data),
    )
    return made, (*notes, *parsed)


def _inner(told: Mapping[str, Any]) -> Any:
    """The version beside the status, where PHP's VCR has it."""
    status = told.get("status")
    return status.get("http_version") if isinstance(status, Mapping) else None


def _status(told: Mapping[str, Any]) -> tuple[int, str]:
    status = told.get("status")
    code, reason = (status.get("code"), status.get("message")) if isinstance(status, Mapping) else (status, "")
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        code = int(code)  # PHP's VCR
    first = [code, told.get("code"), told.get("status_code")]
    found = next((each for each in first if isinstance(each, int) and not isinstance(each, bool)), None)
    if found is None or not 100 <= found <= 999:
        raise Broken(f"its status is {_words(found if found is not None else code)}")
    return found, reason if isinstance(reason, str) and reason.isprintable() and reason.isascii() else ""


def _headers(told: Any) -> Headers:
    """However they are written: as a mapping to one value or a list of them, or as pairs."""
    if told is None:
        return ()
    if isinstance(told, Mapping):
        # Java has no name for the status line, and its recorders write down a header called so.
        named = ((str(name), value) for name, value in told.items() if name not in (None, "null"))
        return tuple(field(name, _line(one)) for name, value in named for one in _each(value))
    if isinstance(told, list):
        return tuple(_pair(one) for one in told)
    raise Broken("its headers are no mapping")


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else (value,)


def _pair(told: Any) -> tuple[str, str]:
    match told:
        case [name, value]:
            return field(_line(name), _line(value))
        case {"name": name, "value": value}:
            return field(_line(name), _line(value))
        case _:
            raise Broken("its headers are neither a mapping nor pairs")


def _line(value: Any) -> str:
    """A header's text. Raises Broken."""
    match value:
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case None:
            return ""
        case _:
            raise Broken(f"a header's value is {_words(value)}")


def _body(told: Mapping[str, Any], side: str) -> tuple[bytes, tuple[str, ...]]:
    if told.get("parsed_body") is not None:
        return json_bytes(told["parsed_body"]), (RESERIALIZED,)
    value = told.get("body", told.get("content"))
    if is_typed(value):
        return typed(value), (RESERIALIZED,) if value["type"] == "json" else ()
    if isinstance(value, Mapping) and value.keys() == {"fields"} and isinstance(value["fields"], Mapping):
        raise Broken(f"its {side}'s body was a form, of whose files only the names were kept")  # R's vcr
    if isinstance(value, Mapping) and not value.keys() & {"string", "base64_string", "encoding"}:
        if not value:
            return b"", ()
        return json_bytes(value), (RESERIALIZED,)
    try:
        return _bytes(value), ()
    except Broken as error:
        raise Broken(f"its {side}'s body {error}") from None


def _sent(headers: Headers, data: bytes) -> bytes:
    """The body, also where it was kept as base64 without a word about it: VCR.py keeps so what httpx sent that is no text.

    No form begins like that; of anything else the length that was sent tells.
    """
    told = header(headers, "content-length") or ""
    length = int(told) if told.isdecimal() and len(told) < 20 else None
    form = data.startswith(b"LS") and (header(headers, "content-type") or "").startswith("multipart/")
    if not form and (length is None or not 0 < len(data) == -(-length // 3) * 4):
        return data
    try:
        sent = _unbase64(data)
    except Broken:
        return data
    return sent if (sent.startswith(b"--") if form else len(sent) == length) else data


def _bytes(value: Any) -> bytes:
    match value:
        case None:
            return b""
        case bytes():
            return value
        case str():
            return value.encode("utf-8", "surrogatepass")
        case list():
            return b"".join(map(_bytes, value))
        case {"base64_string": str() | bytes() as text}:
            return _unbase64(text)
        case {"string": text, "encoding": "base64"}:
            return _unbase64(_bytes(text))
        case {"string": str(text), "encoding": str(encoding)} if encoding.upper() not in _BYTES:
            return _encoded(text, encoding)
        case {"string": text}:
            return _bytes(text)
        case Mapping():
            return b""
        case _:
            raise Broken(f"is {_words(value)}")


_BYTES = ("UTF-8", "US-ASCII", "ASCII", "ASCII-8BIT", "BINARY", "NONE")
"""What Ruby calls the encodings whose text stands for its own bytes."""


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        # The text was read as UTF-8; its recorder may have meant something else, which nobody can tell any more.
        return text.encode()


def _unbase64(text: str | bytes) -> bytes:
    try:
        return b64decode(b"".join((text.encode() if isinstance(text, str) else text).split()), validate=True)
    except (NotBase64, ValueError):
        raise Broken("is not the base64 that it should be") from None


def _words(value: Any) -> str:
    if isinstance(value, UnknownTag):
        return f"an object of its recorder ({_tag(value)})"
    return "missing" if value is None else repr(value)[:80]
