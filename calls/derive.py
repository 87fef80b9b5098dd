"""Derive the call of an exchange. A later version of Playhead can derive it again."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

from msgspec.structs import replace

from calls.codec.encoding import Undecodable, decode_content
from calls.codec.lenient_json import as_array, as_object, as_text
from calls.codec.rpc_body import has_rpc_failed
from calls.dialects.dialect import AnswerSummary, Assembly, RequestSummary
from calls.dialects.parts.token_counts import NO_USAGE, header_usage
from calls.dialects.table import BY_NAME
from calls.framing import websocket
from calls.keys.element_memory import ElementMemory
from calls.keys.key import KeyResult, make_key, read_unkeyed
from calls.keys.profile import Profiles
from calls.model import AnswerState, Call, Exchange, Json, Response, Usage, header
from calls.redaction.call import Clean, clean_call
from calls.websocket_messages import is_websocket_body

MAX_ANSWER_SIZE: Final = 64 * 1024 * 1024
"""A compressed answer that decodes to more bytes than this is not read."""

MAX_UNLABELLED_SIZE: Final = 4 * 1024 * 1024
"""An answer that is compressed without saying so and decodes to more bytes than this is a file: it is not read."""

_FEED_SIZE: Final = 1 << 20
"""Bytes of an answer that are fed to the assembly at a time."""

_SCALARS: Final = (str, int, float, Decimal)

_INPUT_FIELDS: Final = frozenset(("model", "input", "prompt", "instructions", "system"))
"""Scalars of a request that are its input, not parameters of the answer."""

_SWITCHING: Final = 101
_OK: Final = 200
_GZIP: Final = b"\x1f\x8b\x08"


def derive_call(exchange: Exchange, profiles: Profiles, memory: ElementMemory | None = None) -> Call:
    """Derive the call of an exchange. Every exchange has one. With a memory, elements that were read before are not read again."""
    return derive_keyed_call(exchange, make_key(exchange.request, profiles, memory))


def derive_unkeyed_call(exchange: Exchange, memory: ElementMemory | None = None) -> Call:
    """Derive the call of an exchange without what its profile says of it: its key, warnings and parameters are empty."""
    return derive_keyed_call(exchange, read_unkeyed(exchange.request, memory))


def derive_keyed_call(exchange: Exchange, key: KeyResult) -> Call:
    """Derive the call of an exchange whose key is already known."""
    dialect = BY_NAME[key.dialect]
    request_summary = dialect.summarize_request(key.request_body)
    assembly = assemble_answer(exchange.response, key.dialect)
    # Read once: some assemblies build their answer on each access.
    answer = assembly.answer if assembly else None
    summary = dialect.summarize_answer(answer) if assembly else AnswerSummary()
    return _build_call(exchange, key, request_summary, assembly, answer, summary)


def deriver(profiles: Profiles, clean: Clean, memory: ElementMemory | None = None) -> Callable[[Exchange], Call]:
    """Return a function that derives a call under these profiles and redacts it with `clean`: as it is stored and shown."""
    return lambda exchange: clean_call(derive_call(clean_unlabelled_answer(exchange, clean), profiles, memory), clean)


def unkeyed_deriver(clean: Clean, memory: ElementMemory | None = None) -> Callable[[Exchange], Call]:
    """Return a function that derives a call without its key, warnings and parameters, which takes half the time."""
    return lambda exchange: clean_call(derive_unkeyed_call(clean_unlabelled_answer(exchange, clean), memory), clean)


def clean_unlabelled_answer(exchange: Exchange, clean: Clean) -> Exchange:
    """Decompress an answer that its headers do not call compressed, and replace the secrets in it.

    It was recorded as the bytes of a file, so nobody has searched what is in it.
    """
    response = exchange.response
    if response is None or not response.body.data.startswith(_GZIP) or header(response.headers, "content-encoding"):
        return exchange
    try:
        text = decode_content(response.body.data, "gzip", MAX_UNLABELLED_SIZE).decode("utf-8", "replace")
    except Undecodable:
        text = ""
    body = replace(response.body, data=clean(text).encode())
    return replace(exchange, response=replace(response, body=body))


def _build_call(
    exchange: Exchange,
    key: KeyResult,
    request_summary: RequestSummary,
    assembly: Assembly | None,
    answer: Json,
    summary: AnswerSummary,
) -> Call:
    pending = summary.pending or (key.route.polls if summary.is_unfinished else None)
    return Call(
        exchanges=(exchange.id,),
        kind=key.kind,
        provider=key.route.provider,
        dialect=key.dialect,
        operation=key.operation,
        key=key.key,
        profile=key.profile,
        warnings=key.warnings,
        model_requested=request_summary.model or key.route.model or _model_in_query(key),
        model_returned=summary.model,
        system_fingerprint=summary.fingerprint,
        params=_request_params(key),
        request=key.request_body,
        answer=answer,
        text=summary.text,
        tool_calls=(*request_summary.tool_calls, *summary.tool_calls),
        tool_results=(*request_summary.tool_results, *summary.results),
        finish_reason=summary.finish_reason,
        usage=_token_usage(exchange.response, summary),
        streamed=assembly.is_streamed if assembly else False,
        complete=_is_complete(exchange, assembly, answer) and pending is None,
        polls=key.route.polls,
        pending=pending,
        answer_state=summary.state or _answer_state(exchange, key, assembly, answer),
    )


def assemble_answer(response: Response | None, dialect: str) -> Assembly | None:
    """Assemble a response; None if there is none or it cannot be decoded."""
    if response is None:
        return None
    socket = is_websocket_body(response.body) or response.status == _SWITCHING
    media = websocket.MEDIA if socket else (header(response.headers, "content-type") or "").lower()
    assembly = BY_NAME[dialect].assemble(media)
    data = websocket.frame_messages(response.body) if socket else decode_response_body(response)
    if data is None:
        return None
    # In steps, so that the messages of a long stream are not all in memory at once.
    for start in range(0, len(data), _FEED_SIZE):
        assembly.feed(data[start : start + _FEED_SIZE])
    assembly.finish()
    return assembly


def decode_response_body(response: Response) -> bytes | None:
    """Decode the body's content encoding. The bytes take precedence over the header."""
    data = response.body.data
    encoding = header(response.headers, "content-encoding") or ""
    if data.startswith(_GZIP):
        encoding = encoding or "gzip"
    if encoding.strip().lower() == "gzip" and not data.startswith(_GZIP):
        return data
    try:
        return decode_content(data, encoding, MAX_ANSWER_SIZE) if encoding and data else data
    except Undecodable:
        return None


def _token_usage(response: Response | None, summary: AnswerSummary) -> Usage:
    """Return the token counts of the answer, completed from the response headers."""
    if response is None or summary.usage.output_tokens is not None:
        return summary.usage
    header_counts = header_usage(response.headers)
    if header_counts == NO_USAGE:
        return summary.usage
    pairs = ((name, getattr(summary.usage, name)) for name in Usage.__slots__)
    return Usage(**{name: getattr(header_counts, name) if value is None else value for name, value in pairs})


def _is_complete(exchange: Exchange, assembly: Assembly | None, answer: Json) -> bool:
    """Return whether the answer is complete: a stream by its own end marker, anything else by HTTP's end.

    An exchange with missing bytes is never complete.
    """
    if assembly is None or exchange.is_truncated:
        return False
    if assembly.is_streamed and assembly.is_complete is not None:
        return assembly.is_complete
    if assembly.is_streamed and answer is None and exchange.response and exchange.response.status == _OK:
        return False  # a stream without events is no answer
    return assembly.is_complete is not False and exchange.outcome in ("completed", "refused")


def _answer_state(exchange: Exchange, key: KeyResult, assembly: Assembly | None, answer: Json) -> AnswerState | None:
    """Return what is known of every answer: that of a model is no error's body, and its end was recorded."""
    if key.kind == "model" and isinstance(as_object(answer).get("error"), str | Mapping):
        return "error"
    if exchange.response is not None and has_rpc_failed(exchange.response):
        return "error"
    return "unkept" if _is_end_unknown(exchange, assembly) else None


def _is_end_unknown(exchange: Exchange, assembly: Assembly | None) -> bool:
    """Return whether bytes were not recorded that could show how the answer ended; a kept stream shows that it lacks its end mark."""
    if exchange.response is None or exchange.response.body.truncated:
        return exchange.is_truncated
    return exchange.is_truncated and not (assembly and assembly.is_streamed and assembly.is_complete is False)


def _request_params(key: KeyResult) -> Mapping[str, Json]:
    """Return the scalars of a model request that are in its key, except its input."""
    if key.kind != "model":
        return {}
    body = as_object(as_object(key.selected_fields).get("body"))
    scalars = {name: _single_value(value) for name, value in body.items() if name not in _INPUT_FIELDS}
    return {name: value for name, value in scalars.items() if isinstance(value, _SCALARS)}


def _model_in_query(key: KeyResult) -> str | None:
    """Return the model named in the URL of a WebSocket; Azure names a deployment."""
    query = as_array(as_object(key.selected_fields).get("query")) if key.parsed_body.form == "messages" else ()
    parameters = {as_text(pair[0]): as_text(pair[1]) for pair in map(as_array, query)}
    return parameters.get("model") or parameters.get("deployment") or None


def _single_value(value: Json) -> Json:
    """Unwrap the single value of a form field, which is read as a list."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
