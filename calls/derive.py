"""Derive the call of an exchange. A later version that knows more can derive it again."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from calls.codec.encoding import Undecodable, decode
from calls.codec.lenient_json import elements, members, text
from calls.dialects import AnswerSummary, Assembly, RequestSummary
from calls.dialects.parts.token_counts import counted
from calls.dialects.table import BY_NAME
from calls.framing import websocket
from calls.keys.key import KeyResult, keyed
from calls.keys.profile import Profiles
from calls.model import Call, Exchange, Json, Response, Usage, header
from calls.websocket_messages import spoken

LIMIT: Final = 64 * 1024 * 1024
"""A compressed answer that opens to more than this is not read."""

_STEP: Final = 1 << 20
"""Bytes of an answer that are taken at a time."""

_SCALAR: Final = (str, int, float, Decimal)

_NO_PARAMETERS: Final = frozenset(("model", "input", "prompt", "instructions", "system"))
"""Scalars of a request that say what is asked, and not how it is to be answered."""

_SWITCHING: Final = 101
_OK: Final = 200
_GZIP: Final = b"\x1f\x8b\x08"


def derive(exchange: Exchange, profiles: Profiles) -> Call:
    """The call that an exchange means. Total: every exchange means one."""
    return derived(exchange, keyed(exchange.request, profiles))


def derived(exchange: Exchange, key: KeyResult) -> Call:
    """The call that an exchange means, where its request's key is known already."""
    dialect = BY_NAME[key.dialect]
    asked = dialect.asked(key.request)
    assembly = assembled(exchange.response, key.dialect)
    # Asked for once: some assemblies put their answer together anew each time.
    answer = assembly.answer if assembly else None
    told = dialect.told(answer) if assembly else AnswerSummary()
    return _call(exchange, key, asked, assembly, answer, told)


def answered(response: Response | None, dialect: str) -> AnswerSummary:
    """What an answer says, without what it was asked."""
    assembly = assembled(response, dialect) if dialect in BY_NAME else None
    return BY_NAME[dialect].told(assembly.answer) if assembly else AnswerSummary()


def _call(
    exchange: Exchange,
    key: KeyResult,
    asked: RequestSummary,
    assembly: Assembly | None,
    answer: Json,
    told: AnswerSummary,
) -> Call:
    pending = told.pending or (key.route.polls if told.going_on else None)
    return Call(
        exchanges=(exchange.id,),
        kind=key.kind,
        provider=key.route.provider,
        dialect=key.dialect,
        operation=key.operation,
        key=key.key,
        profile=key.profile,
        warnings=key.warnings,
        model_requested=asked.model or key.route.model or _model_in_query(key),
        model_returned=told.model,
        system_fingerprint=told.fingerprint,
        params=_params(key),
        request=key.request,
        answer=answer,
        text=told.text,
        tool_calls=(*asked.tool_calls, *told.tool_calls),
        tool_results=(*asked.tool_results, *told.results),
        finish_reason=told.finish_reason,
        usage=_usage(exchange.response, told),
        streamed=assembly.streamed if assembly else False,
        complete=_complete(exchange, assembly, answer) and pending is None,
        polls=key.route.polls,
        pending=pending,
    )


def assembled(response: Response | None, dialect: str) -> Assembly | None:
    """A response put together; None where there is none, or it cannot be opened."""
    if response is None:
        return None
    socket = spoken(response.body) or response.status == _SWITCHING
    media = websocket.MEDIA if socket else (header(response.headers, "content-type") or "").lower()
    assembly = BY_NAME[dialect].assemble(media)
    data = websocket.framed(response.body) if socket else opened(response)
    if data is None:
        return None
    # In steps, so that what a long stream is cut into need not be held all at once.
    for start in range(0, len(data), _STEP):
        assembly.feed(data[start : start + _STEP])
    assembly.finish()
    return assembly


def opened(response: Response) -> bytes | None:
    """The body without its content encoding; the bytes are believed before the label."""
    data = response.body.data
    encoding = header(response.headers, "content-encoding") or ""
    if data.startswith(_GZIP):
        encoding = encoding or "gzip"
    if encoding.strip().lower() == "gzip" and not data.startswith(_GZIP):
        return data
    try:
        return decode(data, encoding, LIMIT) if encoding and data else data
    except Undecodable:
        return None


def _usage(response: Response | None, told: AnswerSummary) -> Usage:
    """The counts that the answer tells, and those of the headers that it does not."""
    if response is None or told.usage.output_tokens is not None:
        return told.usage
    others = counted(response.headers)
    pairs = ((name, getattr(told.usage, name)) for name in Usage.__slots__)
    return Usage(**{name: getattr(others, name) if value is None else value for name, value in pairs})


def _complete(exchange: Exchange, assembly: Assembly | None, answer: Json) -> bool:
    """A stream by its own end mark, all else by HTTP's, for which its client waits; never with bytes missing."""
    if assembly is None or exchange.truncated:
        return False
    if assembly.streamed and assembly.complete is not None:
        return assembly.complete
    if assembly.streamed and answer is None and exchange.response and exchange.response.status == _OK:
        return False  # a stream without an event answers nothing
    return assembly.complete is not False and exchange.outcome in ("completed", "refused")


def _params(key: KeyResult) -> Mapping[str, Json]:
    """The scalars of a model request that are in its key: how it was to be answered."""
    if key.kind != "model":
        return {}
    body = members(members(key.selected).get("body"))
    scalars = {name: _only(value) for name, value in body.items() if name not in _NO_PARAMETERS}
    return {name: value for name, value in scalars.items() if isinstance(value, _SCALAR)}


def _model_in_query(key: KeyResult) -> str | None:
    """The model that the URL of a WebSocket names; Azure calls what serves it a deployment."""
    query = elements(members(key.selected).get("query")) if key.read.form == "messages" else ()
    named = {text(pair[0]): text(pair[1]) for pair in map(elements, query)}
    return named.get("model") or named.get("deployment") or None


def _only(value: Json) -> Json:
    """The one value that a form gives for a field: it could give several."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
