"""Adapt a recorded answer to a request with the same key that differs otherwise: whole or streamed, with its drift."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from calls import answer_form as forms
from calls.answer_form import Form
from calls.comparison.drift import drift
from calls.derive import derived
from calls.keys.key import KeyResult, keyed
from calls.keys.profile import Profiles
from calls.model import Call, Exchange, Json, Request, Response
from replay.reframing import openai as openais
from replay.reframing import readdress, reframe
from replay.script import RecordedExchange


@dataclass(slots=True, kw_only=True)  # not frozen: see replay/answer.py
class Fit:
    """What answers, and what is to be told about it."""

    exchange: Exchange
    drift: tuple[str, ...] = ()
    strict: bool = False
    """The two requests say the same in all that they say."""

    reframed: bool = False
    misfit: str | None = None
    """Why the answer cannot be given in the form that was asked for."""


def fitted(recorded: Exchange, now: Request, profiles: Profiles) -> Fit:
    """The recorded answer in the form that the request asks for."""
    then_key, now_key = keyed(recorded.request, profiles), keyed(now, profiles)
    if now_key.profile in profiles.told:
        return Fit(exchange=recorded)
    places = drift(recorded.request, then_key, now, now_key)
    strict = not places and then_key.strict == now_key.strict
    return replace(_formed(recorded, now, then_key, now_key), drift=tuple(places), strict=strict)


def closest(others: Iterable[RecordedExchange], now: Request, profiles: Profiles) -> RecordedExchange | None:
    """Of recorded exchanges with the request's key the one that says the same in all that it says; else the first one that
    asks for its answer in the same form. None where none does."""
    now_key = keyed(now, profiles)
    same_form = None
    for other in others:
        then = other.exchange.request
        then_key = keyed(then, profiles)
        if then_key.strict == now_key.strict and not drift(then, then_key, now, now_key):
            return other
        if same_form is None and forms.asked(then_key, then) == forms.asked(now_key, now):
            same_form = other
    return same_form


def _formed(recorded: Exchange, now: Request, then_key: KeyResult, now_key: KeyResult) -> Fit:
    response = recorded.response
    if response and now_key.dialect in readdress.DIALECTS:
        addressed = readdress.readdressed(response, then_key.request, now_key.request)
        return Fit(exchange=replace(recorded, response=addressed))
    if response and now_key.dialect == "openai_embeddings":
        return _respelled(recorded, response, derived(recorded, then_key), now_key.request)
    wanted, want = forms.asked(then_key, recorded.request), forms.asked(now_key, now)
    # A server may answer as nobody asked: what it answered to the same wish is no other form. Errors have but one.
    if response is None or wanted == want or response.status >= 300 or now_key.dialect == "generic":
        return Fit(exchange=recorded)
    call = derived(recorded, then_key)
    was = forms.given(response, call)
    if was == want:
        return Fit(exchange=recorded)
    made = _reframed(recorded, response, call, want, now_key.request)
    if made is None:
        return Fit(exchange=recorded, misfit=_misfit(call, was, want))
    return Fit(exchange=replace(recorded, response=made), reframed=True)


def _respelled(recorded: Exchange, response: Response, call: Call, now: Json) -> Fit:
    """Vectors as this request wants them: OpenAI's SDKs ask for base64 and do not say so, others for numbers."""
    if openais.packed(call.request) == openais.packed(now) or response.status >= 300 or not call.complete:
        return Fit(exchange=recorded)
    made = reframe.as_whole(response, openais.spelled(call.answer, now))
    return Fit(exchange=replace(recorded, response=made), reframed=True)


def _reframed(recorded: Exchange, response: Response, call: Call, want: Form, asked: Json) -> Response | None:
    """The answer in the form that is wanted; None when what was recorded is not whole, or we do not know that form."""
    if recorded.outcome != "completed" or not call.complete or not isinstance(call.answer, dict):
        return None
    if want == "whole":
        return reframe.as_whole(response, call.answer)
    return reframe.as_stream(call.dialect, want, response, call.answer, asked)


def _misfit(call: Call, was: Form, want: Form) -> str:
    if was != "whole" and not call.complete:
        return "it was recorded as a stream that did not come to its end, and is now asked for whole"
    if was == "whole" and not isinstance(call.answer, dict):
        return "it was recorded whole but cannot be read as an answer of this API, and is now asked for as a stream"
    return f"it was recorded in another form ({was}) than is now asked for ({want}), and cannot be put into that one"
