"""Fit a recorded answer to a request that has the same key but is not the same: as a stream or whole, with its drift."""

from dataclasses import dataclass, replace

from calls.derive import derived
from calls.key import Keyed, keyed
from calls.model import Exchange, Json, Request, Response
from calls.profile import Profiles
from replay import reframe
from replay.drift import drift


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What answers, and what is to be told about it."""

    exchange: Exchange
    drift: list[str]
    reframed: bool = False
    misfit: str | None = None
    """Why the answer cannot be given in the form that was asked for."""


def fitted(recorded: Exchange, now: Request, profiles: Profiles) -> Fit:
    """The recorded answer in the form that the request asks for."""
    then_key, now_key = keyed(recorded.request, profiles), keyed(now, profiles)
    places = drift(recorded.request, then_key, now, now_key)
    response = recorded.response
    if response is None or not _other_framing(response, then_key, now_key):
        return Fit(exchange=recorded, drift=places)
    made = _reframed(recorded, response, then_key, now_key.request)
    if made is None:
        return Fit(exchange=recorded, drift=places, misfit=_misfit(response))
    return Fit(exchange=replace(recorded, response=made), drift=places, reframed=True)


def _other_framing(response: Response, then: Keyed, now: Keyed) -> bool:
    """Whether a successful answer was recorded as a stream and is now asked for whole, or the reverse."""
    wanted, want = reframe.wants_stream(then.request), reframe.wants_stream(now.request)
    # A server may answer as nobody asked: what it answered to the same wish is no other framing.
    return reframe.known(now.dialect) and response.status < 300 and wanted != want != reframe.is_stream(response)


def _reframed(recorded: Exchange, response: Response, key: Keyed, asked: Json) -> Response | None:
    """The answer in the other framing; None when what was recorded is not whole."""
    call = derived(recorded, key)
    if recorded.outcome != "completed" or not call.complete or not isinstance(call.answer, dict):
        return None
    if reframe.is_stream(response):
        return reframe.as_whole(response, call.answer)
    return reframe.as_stream(key.dialect, response, call.answer, asked)


def _misfit(response: Response) -> str:
    if reframe.is_stream(response):
        return "it was recorded as a stream that did not come to its end, and is now asked for whole"
    return "it was recorded whole but cannot be read as an answer of this API, and is now asked for as a stream"
