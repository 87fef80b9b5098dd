"""Read VCR cassettes of Python's VCR.py, its relatives, and Ruby's VCR.

Supported are YAML and JSON; `interactions`, `http_interactions`, separate lists of `requests` and `responses`, and a single
request with its response; bodies as text, `!!binary`, `{string}`, `{base64_string}`, `{encoding, string}`, pieces of an
iterator, the `{type, content}` of cassetter, and the `parsed_body` of serializers that keep JSON parsed; headers as
mappings or pairs. Lists of interactions with other names for the same members (ExVCR and others) are converted first.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.model import Headers, Request, Response, header
from store.foreign import proxies
from store.foreign.cassetter import is_typed_body, typed_body, websocket_interaction
from store.foreign.contents import (
    RESERIALIZED,
    UNCHUNKED,
    UNTIMED,
    UNVERSIONED,
    BrokenInteraction,
    Found,
    Interaction,
    NotReadable,
    SkippedEntry,
)
from store.foreign.others import as_vcr
from store.foreign.parts import (
    checked_header,
    checked_url,
    http_version,
    json_bytes,
    match_headers_to_body,
    one_chunk_body,
    parse_date,
    timestamp_ns,
)
from store.foreign.yamlvalues import NO_ITEMS, STREAMED_LISTS, BadYaml, UnknownTag, members

type Member = tuple[str, Any]

_OTHER_FILE: Final = (
    "it is neither a bundle of Playhead nor a cassette, an HTTP archive or another recording that Playhead reads;"
    " choose another file, or make a bundle with: playhead export RUN -o FILE"
)

_GRPC: Final = "it is a gRPC call, whose HTTP messages were not kept"


def from_yaml(stream: IO[bytes] | bytes) -> Iterator[Found]:
    """Read the interactions of a YAML cassette, in order. Raises NotReadable where there are none."""
    return _pair_interactions(_until_broken(members(stream)))


def from_json(data: bytes) -> Iterator[Found]:
    """Read the interactions of a JSON cassette, in order. Raises NotReadable where there are none."""
    try:
        value: Any = parse_json_leniently(data)
    except InvalidJson as error:
        raise NotReadable(f"it is not valid JSON: {error}; choose another file, or record it again") from None
    if isinstance(value, list):
        return _pair_interactions(("interactions", item) for item in value)
    if not isinstance(value, dict):
        raise NotReadable(_OTHER_FILE)
    return _pair_interactions(
        _list_members(value["data"] if isinstance(value.get("data"), dict) and "pairs" in value["data"] else value)
    )


def _list_members(value: Mapping[str, Any]) -> Iterator[Member]:
    for name, found in value.items():
        if name in STREAMED_LISTS and isinstance(found, list):
            yield from ((name, item) for item in found or (NO_ITEMS,))
        else:
            yield name, found


def _until_broken(pairs: Iterator[Member]) -> Iterator[Member]:
    """Yield the members up to the first that cannot be parsed, and then the error as a member without a name."""
    try:
        yield from pairs
    except BadYaml as error:
        yield "", error


def _pair_interactions(pairs: Iterator[Member]) -> Iterator[Found]:
    number, is_cassette = 0, False
    halves: dict[str, deque[Any]] = {"request": deque(), "response": deque()}
    for name, value in pairs:
        if isinstance(value, BadYaml):
            if not number:
                raise NotReadable(f"{value}; choose another file, or record it again")
            yield SkippedEntry(place=f"all after interaction {number}", reason=str(value))
            continue
        is_cassette = is_cassette or name in STREAMED_LISTS
        if value is NO_ITEMS:
            continue
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
            case _:
                pass
    for half, waiting in halves.items():
        for _ in waiting:
            number += 1
            yield SkippedEntry(place=f"interaction {number}", reason=f"it is an unpaired {half}")
    if not number:
        raise NotReadable("it has no interactions; record it again" if is_cassette else _OTHER_FILE)


def _interaction(number: int, value: Any) -> Found:
    place = f"interaction {number}"
    try:
        return _parse_interaction(place, value)
    except BrokenInteraction as error:
        return SkippedEntry(place=place, reason=str(error))


def _conversation(number: int, value: Any) -> Found:
    place = f"interaction {number}"
    try:
        raw = _required_mapping(value, "it")
        return websocket_interaction(
            place, raw, _headers(raw.get("headers")), timestamp_ns(raw.get("recorded_at"), parse_date)
        )
    except BrokenInteraction as error:
        return SkippedEntry(place=place, reason=str(error))


def _parse_interaction(place: str, value: Any) -> Interaction:
    raw = _required_mapping(as_vcr(proxies.as_vcr(value)), "it")
    if "request" not in raw and "request_sample" in raw:
        raise BrokenInteraction(_GRPC)
    if "request" not in raw and raw.get("kind") is not None:
        raise BrokenInteraction(
            f"it is a {_description(raw['kind'])} of a connection whose URL the cassette does not have"
        )
    raw_request, raw_response = (
        _required_mapping(raw.get("request"), "its request"),
        _required_mapping(raw.get("response"), "its response"),
    )
    request, request_notes = _request(raw_request)
    response, response_notes = _response(raw_response)
    started_at = timestamp_ns(raw.get("recorded_at") or raw_request.get("recorded_at"), parse_date)
    notes = (*request_notes, *response_notes, UNTIMED, UNCHUNKED, *(() if request.http_version else (UNVERSIONED,)))
    return Interaction(
        place=place,
        request=request,
        response=response,
        started_at=started_at or timestamp_ns(header(response.headers, "date"), parse_date),
        notes=notes,
    )


def _required_mapping(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, UnknownTag):
        raise BrokenInteraction(
            f"{what} is an object of its recorder ({_tag(value)}), which is not constructed; record it again"
        )
    if not isinstance(value, Mapping):
        raise BrokenInteraction(f"{what} is missing or not a mapping")
    return value


def _tag(value: UnknownTag) -> str:
    return value.tag.removeprefix("tag:yaml.org,2002:")


def _request(raw: Mapping[str, Any]) -> tuple[Request, tuple[str, ...]]:
    method = raw.get("method")
    if not isinstance(method, str) or not method.isascii() or not method.isalpha():
        raise BrokenInteraction(f"its method is {_description(method)}, not the name of an HTTP method")
    headers = _headers(raw.get("headers"))
    data, parsed = _body(raw, "request")
    headers, data, notes = match_headers_to_body(headers, _sent_body(headers, data))
    request = Request(
        method=method.upper(),
        url=checked_url(raw.get("uri") or raw.get("url")),
        http_version=http_version(raw.get("http_version") or raw.get("proto")),
        headers=headers,
        body=one_chunk_body(data),
    )
    return request, (*notes, *parsed)


def _response(raw: Mapping[str, Any]) -> tuple[Response, tuple[str, ...]]:
    headers = _headers(raw.get("headers"))
    data, parsed = _body(raw, "response")
    headers, data, notes = match_headers_to_body(headers, data)
    status, reason = _status(raw)
    response = Response(
        status=status,
        reason=reason,
        http_version=http_version(
            raw.get("http_version") or raw.get("protocol") or raw.get("proto") or _php_http_version(raw)
        ),
        headers=headers,
        body=one_chunk_body(data),
    )
    return response, (*notes, *parsed)


def _php_http_version(raw: Mapping[str, Any]) -> Any:
    """Return the HTTP version within the status, where PHP's VCR has it."""
    status = raw.get("status")
    return status.get("http_version") if isinstance(status, Mapping) else None


def _status(raw: Mapping[str, Any]) -> tuple[int, str]:
    status = raw.get("status")
    code, reason = (status.get("code"), status.get("message")) if isinstance(status, Mapping) else (status, "")
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        code = int(code)  # PHP's VCR
    first = [code, raw.get("code"), raw.get("status_code")]
    found = next((each for each in first if isinstance(each, int) and not isinstance(each, bool)), None)
    if found is None or not 100 <= found <= 999:
        raise BrokenInteraction(
            f"its status is {_description(found if found is not None else code)}, not a number from 100 to 999"
        )
    return found, reason if isinstance(reason, str) and reason.isprintable() and reason.isascii() else ""


def _headers(raw: Any) -> Headers:
    """Read headers in any form: a mapping to one value or a list of values, or pairs."""
    if raw is None:
        return ()
    if isinstance(raw, Mapping):
        # Java has the status line as a header without a name, which its recorders write as "null".
        items = ((str(name), value) for name, value in raw.items() if name not in (None, "null"))
        return tuple(checked_header(name, _line(one)) for name, value in items for one in _each(value))
    if isinstance(raw, list):
        return tuple(_pair(one) for one in raw)
    raise BrokenInteraction("its headers are neither a mapping nor pairs")


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else (value,)


def _pair(raw: Any) -> tuple[str, str]:
    match raw:
        case [name, value]:
            return checked_header(_line(name), _line(value))
        case {"name": name, "value": value}:
            return checked_header(_line(name), _line(value))
        case _:
            raise BrokenInteraction("its headers are neither a mapping nor pairs")


def _line(value: Any) -> str:
    """Return the text of a header. Raises BrokenInteraction."""
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
            raise BrokenInteraction(f"a header's value is {_description(value)}")


def _body(raw: Mapping[str, Any], side: str) -> tuple[bytes, tuple[str, ...]]:
    if raw.get("parsed_body") is not None:
        return json_bytes(raw["parsed_body"]), (RESERIALIZED,)
    value = raw.get("body", raw.get("content"))
    if is_typed_body(value):
        return typed_body(value), (RESERIALIZED,) if value["type"] == "json" else ()
    if isinstance(value, Mapping) and value.keys() == {"fields"} and isinstance(value["fields"], Mapping):
        raise BrokenInteraction(f"its {side}'s body was a form, and only the names of its files were kept")  # R's vcr
    if isinstance(value, Mapping) and not value.keys() & {"string", "base64_string", "encoding"}:
        if not value:
            return b"", ()
        return json_bytes(value), (RESERIALIZED,)
    try:
        return _bytes(value), ()
    except BrokenInteraction as error:
        raise BrokenInteraction(f"its {side}'s body {error}") from None


def _sent_body(headers: Headers, data: bytes) -> bytes:
    """Decode a body that was kept as base64 without a mark, as VCR.py does with binary bodies of httpx.

    A form is recognized by its beginning, any other body by its content-length.
    """
    raw = header(headers, "content-length") or ""
    length = int(raw) if raw.isdecimal() and len(raw) < 20 else None
    form = data.startswith(b"LS") and (header(headers, "content-type") or "").startswith("multipart/")
    if not form and (length is None or not 0 < len(data) == -(-length // 3) * 4):
        return data
    try:
        body = _decode_base64(data)
    except BrokenInteraction:
        return data
    return body if (body.startswith(b"--") if form else len(body) == length) else data


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
            return _decode_base64(text)
        case {"string": text, "encoding": "base64"}:
            return _decode_base64(_bytes(text))
        case {"string": str(text), "encoding": str(encoding)} if encoding.upper() not in _BYTES:
            return _encode_text(text, encoding)
        case {"string": text}:
            return _bytes(text)
        case Mapping():
            return b""
        case _:
            raise BrokenInteraction(f"is {_description(value)}")


_BYTES = ("UTF-8", "US-ASCII", "ASCII", "ASCII-8BIT", "BINARY", "NONE")
"""Ruby's names of the encodings in which the text is kept as it is."""


def _encode_text(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        # The text was read as UTF-8. If its recorder meant another encoding, that cannot be recovered.
        return text.encode()


def _decode_base64(text: str | bytes) -> bytes:
    try:
        return b64decode(b"".join((text.encode() if isinstance(text, str) else text).split()), validate=True)
    except (NotBase64, ValueError):
        raise BrokenInteraction("is not valid base64") from None


def _description(value: Any) -> str:
    if isinstance(value, UnknownTag):
        return f"an object of its recorder ({_tag(value)})"
    return "missing" if value is None else repr(value)[:80]
