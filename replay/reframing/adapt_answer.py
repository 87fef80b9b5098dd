"""Adapt a recorded answer to a request with the same key: streamed or whole, in its encoding, with its drift."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from calls import answer_form as forms
from calls.comparison.drift import drift_pointers
from calls.derive import derive_keyed_call
from calls.dialects import generic
from calls.dialects.parts.answer_forms import AnswerForm
from calls.dialects.table import BY_NAME
from calls.keys.key import KeyResult, make_key
from calls.keys.profile import Profiles
from calls.model import Call, Exchange, Json, Request, Response, header
from replay.reframing import readdress, reframe
from replay.reframing.echoed_ids import echo_pairs
from replay.reframing.id_pairs import KnownPairs, Pairs, pair_ids
from replay.script import RecordedExchange


class AdaptedAnswer(msgspec.Struct, kw_only=True):  # not frozen: see replay/answer.py
    """A recorded exchange with an adapted answer, and how it differs from the request."""

    exchange: Exchange
    drift: tuple[str, ...] = ()
    is_strict_match: bool = False
    """Whether the two requests are the same in everything that they send."""

    is_reframed: bool = False
    id_pairs: Pairs = ()
    """The ids that count by their first occurrence only."""

    echoes: Pairs = ()
    """The ids that the client drew anew, which answers may repeat."""

    misfit: str | None = None
    """Why the answer cannot be given in the requested form."""


def adapt_answer(recorded: Exchange, now: Request, profiles: Profiles) -> AdaptedAnswer:
    """Adapt the recorded answer to the form that the request wants."""
    then_key, now_key = make_key(recorded.request, profiles), make_key(now, profiles)
    if now_key.profile in profiles.telemetry_profiles:
        return AdaptedAnswer(exchange=recorded)
    places = drift_pointers(recorded.request, then_key, now, now_key)
    is_strict_match = not places and then_key.strict_key == now_key.strict_key
    return msgspec.structs.replace(
        _adapt_form(recorded, now, then_key, now_key),
        drift=tuple(places),
        is_strict_match=is_strict_match,
        id_pairs=pair_ids(then_key, now_key),
        echoes=() if is_strict_match else echo_pairs(then_key, now_key, is_readdressed=_is_json_rpc(now_key)),
    )


def find_closest(
    others: Iterable[RecordedExchange], now: Request, profiles: Profiles, known: KnownPairs
) -> RecordedExchange | None:
    """Of recorded exchanges with the same key, find the one with the same request in everything; else the first one that
    requested the same form; None if there is none. None of another conversation."""
    now_key = make_key(now, profiles)
    same_form = None
    for other in others:
        then = other.exchange.request
        then_key = make_key(then, profiles)
        if known.distance(pair_ids(then_key, now_key)) > 1 or _condition_misfit(other.exchange, now):
            continue
        if then_key.strict_key == now_key.strict_key and not drift_pointers(then, then_key, now, now_key):
            return other
        if same_form is None and forms.requested_form(then_key, then) == forms.requested_form(now_key, now):
            same_form = other
    return same_form


def find_same_ids(
    pairs: Pairs, others: Sequence[RecordedExchange], now: Request, profiles: Profiles, known: KnownPairs
) -> RecordedExchange | None:
    """Of recorded exchanges with the same key, find one whose ids fit those of the request better than `pairs`."""
    if not known.distance(pairs):
        return None
    now_key = make_key(now, profiles)
    place = known.find_closer(
        pairs, (pair_ids(make_key(other.exchange.request, profiles), now_key) for other in others)
    )
    return None if place is None else others[place]


def is_decided_by_ids(
    recorded: RecordedExchange,
    rivals: Iterable[RecordedExchange],
    now: Request,
    profiles: Profiles,
    known: KnownPairs,
) -> bool:
    """Whether the ids of a request say that this recorded exchange is meant and none of the others with the same key."""
    now_key = make_key(now, profiles)
    pairs = pair_ids(make_key(recorded.exchange.request, profiles), now_key)
    distance = known.distance(pairs)
    if not pairs or (distance and not (distance == 1 and known.has_noted(pairs))):
        return False
    others = (pair_ids(make_key(rival.exchange.request, profiles), now_key) for rival in rivals)
    # One with a noted id and a new one, such as that of a message, may be this one; it is, if it can be none of the others.
    return all(known.distance(other) > distance for other in others)


_CONDITIONS: Final = {
    304: ("if-none-match", "if-modified-since"),
    412: ("if-match", "if-none-match", "if-unmodified-since", "if-modified-since"),
}
"""The headers that the answers of these statuses are about (RFC 9110 13.1)."""


def _condition_misfit(recorded: Exchange, now: Request) -> str | None:
    """Say why an answer that depends on what the client has already does not fit; None if it does."""
    status = recorded.response.status if recorded.response else 0
    for name in _CONDITIONS.get(status, ()):
        if header(recorded.request.headers, name) != header(now.headers, name):
            return f"it was recorded as {status} for a request with another {name} header"
    return None


def _adapt_form(recorded: Exchange, now: Request, then_key: KeyResult, now_key: KeyResult) -> AdaptedAnswer:
    response = recorded.response
    if response and _is_json_rpc(now_key):
        addressed = readdress.readdress_response(response, then_key.request_body, now_key.request_body)
        return AdaptedAnswer(exchange=replace(recorded, response=addressed))
    if response and BY_NAME[now_key.dialect].respell_answer:
        return _respell(recorded, response, derive_keyed_call(recorded, then_key), now_key.request_body)
    if misfit := _condition_misfit(recorded, now):
        return AdaptedAnswer(exchange=recorded, misfit=misfit)
    recorded_form, wanted_form = forms.requested_form(then_key, recorded.request), forms.requested_form(now_key, now)
    # A server can ignore the requested form: its answer to the same request is not converted. Errors have one form.
    if response is None or recorded_form == wanted_form or response.status >= 300 or now_key.dialect == "generic":
        return AdaptedAnswer(exchange=recorded)
    call = derive_keyed_call(recorded, then_key)
    received = forms.received_form(response, call)
    if received == wanted_form:
        return AdaptedAnswer(exchange=recorded)
    reframed = _reframe(recorded, response, call, wanted_form, now_key.request_body)
    if reframed is None:
        return AdaptedAnswer(exchange=recorded, misfit=_misfit_reason(call, received, wanted_form))
    return AdaptedAnswer(exchange=replace(recorded, response=reframed), is_reframed=True)


def _is_json_rpc(key: KeyResult) -> bool:
    return BY_NAME[key.dialect].claim_json_rpc is not None and (
        key.dialect != "generic" or key.operation in generic.JSON_RPC
    )


def _respell(recorded: Exchange, response: Response, call: Call, now: Json) -> AdaptedAnswer:
    """Encode the answer as this request wants it: OpenAI's SDKs request vectors as base64, others as numbers."""
    if response.status >= 300 or not call.complete or not (respell := BY_NAME[call.dialect].respell_answer):
        return AdaptedAnswer(exchange=recorded)
    answer = respell(call.answer, call.request, now)
    if answer is None:
        return AdaptedAnswer(exchange=recorded)
    return AdaptedAnswer(exchange=replace(recorded, response=reframe.write_whole(response, answer)), is_reframed=True)


def _reframe(
    recorded: Exchange, response: Response, call: Call, wanted_form: AnswerForm, request: Json
) -> Response | None:
    """Convert the answer to the wanted form; None if it was not recorded completely, or its dialect cannot write that form."""
    if recorded.outcome != "completed" or not call.complete or not isinstance(call.answer, dict):
        return None
    if wanted_form == "whole":
        return reframe.write_whole(response, call.answer)
    return reframe.write_stream(call.dialect, wanted_form, response, call.answer, request)


def _misfit_reason(call: Call, received: AnswerForm, wanted_form: AnswerForm) -> str:
    if received != "whole" and not call.complete:
        return "it was recorded as an incomplete stream, and is now requested whole"
    if received == "whole" and not isinstance(call.answer, dict):
        return "it was recorded whole but is not a JSON object, and is now requested as a stream"
    return f"it was recorded in one form ({received}) and is now requested in another ({wanted_form}), to which it cannot be converted"
