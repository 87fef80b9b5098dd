"""Make the answer that refuses a request in the form in which its client looks for the reason.

Most clients get an RFC 9457 problem with an additional `error` member, in which the SDKs of the model providers look for a
message. A client of JSON-RPC (MCP, A2A) reads a body only if it is an error of JSON-RPC with the id of its request. A client of
gRPC reads only its own fields, in an answer that is a success for HTTP; so does one of Connect that streams, in the last message.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from calls.codec.json import InvalidJson, dumps, parse_json_leniently
from calls.codec.rpc_body import rpc_protocol
from calls.dialects.protocols.jsonrpc import may_be_json_rpc
from calls.model import Headers, Json, Request, header
from replay.answer import Answer, Piece

_RPC_CODES: Final[Mapping[int, tuple[int, str]]] = {403: (7, "permission_denied")}
"""gRPC's code for a status of HTTP, and its name. Clients retry neither this one nor `_RPC_CODE`."""

_RPC_CODE: Final = (3, "invalid_argument")
"""The code for any other status. FAILED_PRECONDITION would say more, but Milvus's client sends such a call again."""

_GRPC_MESSAGE_CHARACTERS: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""Characters that gRPC does not percent-encode in a message."""

_MAX_GRPC_MESSAGE: Final = 2000
"""Maximum bytes of such a message. Clients take 8 KiB of header fields, and an encoded byte takes three."""

_END_OF_STREAM: Final = b"\x02"
"""The flag of Connect's last message."""

_NO_RETRY: Final = ("x-should-retry", "false")
"""What the SDKs of OpenAI and Anthropic look at before they send a request again."""

_JSON_RPC_CODE: Final = -32000
"""The first of the codes that JSON-RPC leaves to servers."""


def refusal_answer(
    request: Request | None,
    *,
    status: int,
    reason: str,
    members: Mapping[str, Json],
    message: str,
    source: tuple[str, str],
) -> Answer:
    """Return the refusal of a request (None where it is unknown). `members` is its problem, `message` what a person reads."""
    code, code_name = _RPC_CODES.get(status, _RPC_CODE)
    media_type = (request and header(request.headers, "content-type")) or ""
    match rpc_protocol(request) if request is not None else None:
        case "grpc":
            fields: Headers = ("grpc-status", str(code)), ("grpc-message", _grpc_message(members, message))
            return _answer(200, "OK", (("Content-Type", media_type), *fields), b"", source)
        case "connect_stream":
            end = _connect_end({"error": {"code": code_name, "message": _rpc_message(members, message)}})
            return _answer(200, "OK", _body_headers(media_type, end), end, source)
        case "connect" | "twirp":
            body = dumps({**members, "code": code_name, "message": message, "msg": message})
            media_type = "application/json"
        case _:
            rpc_id = _json_rpc_id(request) if request is not None else None
            body = dumps(members if rpc_id is None else _json_rpc_error(rpc_id, members, message))
            media_type = "application/problem+json" if rpc_id is None else "application/json"
    is_bodiless = request is not None and request.method == "HEAD"
    return _answer(status, reason, _body_headers(media_type, body), b"" if is_bodiless else body, source)


def _body_headers(media_type: str, body: bytes) -> Headers:
    return ("Content-Type", media_type), ("Content-Length", str(len(body)))


def _answer(status: int, reason: str, headers: Headers, body: bytes, source: tuple[str, str]) -> Answer:
    pieces = (Piece(0, body),) if body else ()
    return Answer(status=status, reason=reason, headers=(*headers, _NO_RETRY, source), pieces=pieces)


def _connect_end(end: Json) -> bytes:
    """Return the message that ends a stream of Connect."""
    data = dumps(end)
    return _END_OF_STREAM + len(data).to_bytes(4, "big") + data


def _rpc_message(members: Mapping[str, Json], message: str) -> str:
    return f"playhead: {_error_type(members)}: {message}"


def _grpc_message(members: Mapping[str, Json], message: str) -> str:
    text = _rpc_message(members, message).encode()[:_MAX_GRPC_MESSAGE].decode(errors="ignore")
    return quote(text, safe=_GRPC_MESSAGE_CHARACTERS)


def _error_type(members: Mapping[str, Json]) -> Json:
    error = members.get("error")
    return error.get("type") if isinstance(error, Mapping) else None


def _json_rpc_id(request: Request) -> str | int | None:
    """Return the id of a call by JSON-RPC; None if the request is none, or several in one."""
    if not may_be_json_rpc(request.body.data):
        return None
    try:
        message = parse_json_leniently(request.body.data)
    except InvalidJson:
        return None
    if not isinstance(message, Mapping) or message.get("jsonrpc") != "2.0" or "method" not in message:
        return None
    rpc_id = message.get("id")
    return rpc_id if isinstance(rpc_id, str | int) else None


def _json_rpc_error(rpc_id: str | int, members: Mapping[str, Json], message: str) -> dict[str, Json]:
    """Return the members as an error of JSON-RPC, whose code is a number. Its clients ignore the other members."""
    error: dict[str, Json] = {
        "type": _error_type(members),
        "code": _JSON_RPC_CODE,
        "message": message,
        "data": members.get("error"),
    }
    return {"jsonrpc": "2.0", "id": rpc_id, **members, "error": error}
