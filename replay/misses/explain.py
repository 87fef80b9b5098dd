"""Find the reason for a miss, and suggest fixes."""

import re
from collections.abc import Iterable, Sequence
from shlex import quote
from urllib.parse import urlsplit

from msgspec.structs import replace

from calls.codec.json import dumps
from calls.keys.divergence import Difference, shorten_pointer
from calls.keys.key import make_key
from calls.model import Json, Request
from calls.placeholder import MIN_SIZE, PREFIX, number_placeholders
from calls.route import route_request
from calls.websocket_messages import opening_request
from replay.incoming_request import IncomingRequest
from replay.misses.candidates import excerpt_request, similar_calls
from replay.misses.miss import Miss, NearestCall, Reason
from replay.misses.nearest import unsent_bytes
from replay.recording import Recording
from replay.script import RecordedExchange
from store.active_profiles import load_profiles

_MAX_VALUE = 80
_DIFFERENCES_IN_SENTENCE = 3

_RESTORE_RULES = (
    "if [[profile]] in playhead.toml was changed since, undo that; a new version of Playhead may have other rules, too"
)
_LONGER_KEY = f"give the client a dummy key of {MIN_SIZE} characters or more: a shorter one is replaced by asterisks, which match no other key"
_PERSONAL_DATA = "set redact_personal_data or redact_names_file in playhead.toml as when the run was recorded, which replaced personal data"
_PERSONAL_PLACEHOLDER = PREFIX + b"D"
_MORE_TIME = "give the client more time: increase its timeout, or use --pace instant"
_TRY_RECORDED_PACE = (
    "if the client depends on the size or timing of what it reads, send the pieces at their recorded times instead of all"
    " at once: --pace recorded"
)
_NAME_A_RUN = (
    "name a recorded run in the proxy's credentials (http://RUN:TOKEN@host:port) or in X-Playhead-Run "
    "(`playhead ls` lists them), or let Playhead do it: playhead replay RUN -- CMD"
)


def unmatched_miss(
    incoming: IncomingRequest,
    recording: Recording,
    key: str,
    group: Sequence[RecordedExchange],
    unplayed: Sequence[int],
) -> Miss:
    """The miss of a request for which the script has no exchange (left).

    `group`: the exchanges of its key that may answer its actor. `unplayed`: places of exchanges that have not answered.
    """
    if group:
        return _consumed_miss(incoming, recording, key, group, unplayed)
    if others := recording.index.groups.get(key):
        return _other_actor_miss(incoming, key, recording.index.entries[others[0]])
    if (truncated := recording.finder.truncated_match(incoming.request)) is not None:
        return _truncated_miss(incoming, truncated)
    found = recording.finder.nearest(incoming.request, unplayed)
    if not found:
        detail = f"{incoming.description} has no recorded answer: run {incoming.run} has no calls."
        return _new_miss(incoming, "no_match", detail, incoming.record_again, key)
    miss = _no_match_miss(incoming, recording, key, found[0])
    return replace(miss, candidates=tuple(similar_calls(incoming.request, recording, found)))


def _truncated_miss(incoming: IncomingRequest, recorded: RecordedExchange) -> Miss:
    """The miss of a request that starts like a recorded one whose body is incomplete."""
    body = recorded.exchange.request.body
    if unsent := unsent_bytes(recorded.exchange.request):
        detail = (
            f"{incoming.description} starts like step {recorded.step} of run {incoming.run}, which was answered before the last"
            f" {unsent} of its {unsent + body.size} bytes were sent, so it is unknown whether the two are the same."
        )
        fix = f"set its answer with an override (docs/forks.md), or {incoming.record_again}"
        return _new_miss(incoming, "incomplete", detail, fix, recorded.key, _nearest_step(recorded))
    why = recorded.gap or " or ".join(filter(None, ("it was larger than body_limit", recorded.run_gap)))
    detail = (
        f"{incoming.description} starts like step {recorded.step} of run {incoming.run}, of whose {body.size} bytes only"
        f" {len(body.data)} were recorded ({why}), so it is unknown whether the two are the same."
    )
    limit = (
        f"set body_limit to {body.size} or more in playhead.toml (PLAYHEAD_BODY_LIMIT), then {incoming.record_again}"
    )
    fix = incoming.record_again if recorded.gap else limit
    return _new_miss(incoming, "incomplete", detail, fix, recorded.key, _nearest_step(recorded))


def incomplete_miss(incoming: IncomingRequest, recorded: RecordedExchange, why: str, fix: str | None = None) -> Miss:
    """The miss of a request whose recorded answer is incomplete."""
    detail = f"{incoming.description} is step {recorded.step} of run {incoming.run}, but the recording cannot answer it: {why}."
    return _new_miss(
        incoming, "incomplete", detail, fix or incoming.record_again, recorded.key, _nearest_step(recorded)
    )


def client_waits_miss(incoming: IncomingRequest, recorded: RecordedExchange, *, is_instant: bool = False) -> Miss:
    """The miss of a client that waits longer than the recorded client did."""
    why = "the recorded client left before the answer ended, and this one waits for more"
    return incomplete_miss(
        incoming, recorded, why, f"{_TRY_RECORDED_PACE}; or {incoming.record_again}" if is_instant else None
    )


def unrecorded_url_miss(incoming: IncomingRequest) -> Miss:
    """The miss of a request to a URL that was not recorded, of which only the beginning has come."""
    detail = f"{incoming.description} was not recorded in run {incoming.run}: no call there has this URL."
    return _new_miss(incoming, "no_match", detail, incoming.record_again, None)


def duplex_miss(incoming: IncomingRequest, recorded: RecordedExchange, size: int) -> Miss:
    """The miss of a request that differs from one that was answered before it ended."""
    detail = (
        f"{incoming.description} was recorded as step {recorded.step} of run {incoming.run}, which was answered before its"
        f" request ended; in the first {size} bytes, or by ending there, this request differs from it."
    )
    return _new_miss(incoming, "no_match", detail, incoming.record_again, recorded.key, _nearest_step(recorded))


def client_left_miss(incoming: IncomingRequest, recorded: RecordedExchange) -> Miss:
    """The miss of a client that left before the end of a recorded answer."""
    detail = (
        f"{incoming.description} is step {recorded.step} of run {incoming.run}, whose recorded client read the answer to its end;"
        " this client left earlier."
    )
    return _new_miss(incoming, "client_left", detail, _MORE_TIME, recorded.key, _nearest_step(recorded))


def websocket_left_miss(incoming: IncomingRequest, recorded: RecordedExchange, number: int) -> Miss:
    """The miss of a WebSocket client that left before it sent all recorded messages."""
    detail = (
        f"the client of {incoming.description} left before its message {number}, which the client of step {recorded.step} of run"
        f" {incoming.run} sent."
    )
    fix = f"let the client send all recorded messages; or {incoming.record_again}"
    return _new_miss(incoming, "client_left", detail, fix, recorded.key, _nearest_step(recorded))


def abandoned_miss(incoming: IncomingRequest) -> Miss:
    """The miss of a client that left before it got an answer or an explanation."""
    detail = f"the client of {incoming.description} left before run {incoming.run} could answer it."
    return _new_miss(incoming, "client_left", detail, _MORE_TIME, None)


def unseen_request_miss(replay: str, run: str, number: int, *, is_large: bool = False) -> Miss:
    """The miss of a request that was not read to its end, because its client left or because it `is_large`."""
    if is_large:
        detail = f"request {number} is too large to be looked up in a recording."
        fix = "send less at once, or let requests to its host go live: allowed_hosts"
        return Miss(replay=replay, run=run, reason="incomplete", number=number, detail=detail, fix=fix)
    detail = f"the client of request {number} left before run {run} could answer it."
    return Miss(replay=replay, run=run, reason="client_left", number=number, detail=detail, fix=_MORE_TIME)


def interrupted_miss(incoming: IncomingRequest) -> Miss:
    """The miss of every request of a replay whose position is lost."""
    detail = (
        f"{incoming.description} cannot be answered: the proxy was restarted in the middle of replay {incoming.replay},"
        " so it is unknown which answers were already used."
    )
    return _new_miss(
        incoming, "interrupted", detail, "start a new replay: playhead replay RUN -- CMD, or POST /v1/replays", None
    )


def unusable_recording_miss(run: str | None, why: str) -> Miss:
    """The miss of a request to a replay whose requested options cannot be applied."""
    detail = f"{run} cannot be replayed as requested: {why}."
    return Miss(
        replay=run or "none",
        run=run,
        reason="unknown_run",
        detail=detail,
        fix="create the replay again without that option",
    )


def unknown_run_miss(run: str | None, recordings: Iterable[str]) -> Miss:
    """The miss of a request that does not name a known recording."""
    what = (
        "The request does not say which recording answers it" if run is None else f"There is no recording of run {run}"
    )
    loaded = ", ".join(recordings)
    return Miss(
        replay="none",
        run=run,
        reason="unknown_run",
        request_line=None,
        detail=f"{what}; the loaded recordings are {loaded}." if loaded else f"{what}.",
        fix=_NAME_A_RUN,
    )


def _nearest_step(recorded: RecordedExchange) -> NearestCall:
    return NearestCall(call=recorded.id, step=recorded.step)


def _other_actor_miss(incoming: IncomingRequest, key: str, recorded: RecordedExchange) -> Miss:
    who = f"by actor {recorded.actor}" if recorded.actor else "without an actor"
    detail = f"{incoming.description} was recorded {who} (step {recorded.step}), but this request comes from actor {incoming.actor}."
    fix = f"let each branch keep its X-Playhead-Actor; or {incoming.record_again}"
    return _new_miss(incoming, "no_match", detail, fix, key, _nearest_step(recorded))


def _consumed_miss(
    incoming: IncomingRequest,
    recording: Recording,
    key: str,
    group: Sequence[RecordedExchange],
    unplayed: Sequence[int],
) -> Miss:
    last = group[-1]
    nearest = NearestCall(call=last.id, step=last.step)
    recorded = f"{incoming.description} was recorded {_times_phrase(len(group))} in run {incoming.run}"
    if recording.is_rekeyed and _had_same_key(group, (recording.index.entries[place] for place in unplayed)):
        detail = f"{recorded} under the current key rules, and more often under those of the recording: the rules have changed."
        return _new_miss(
            incoming, "profile_changed", detail, f"{incoming.record_again}; or {_RESTORE_RULES}", key, nearest
        )
    detail = f"{recorded}, and every answer was already used: the request is sent more often now than in the recording."
    return _new_miss(incoming, "consumed", detail, "; or ".join(_fixes(incoming)), key, nearest)


def _had_same_key(group: Iterable[RecordedExchange], unplayed: Iterable[RecordedExchange]) -> bool:
    """Whether an unplayed exchange had the key of this group under the profiles of the recording."""
    recorded_keys = {entry.recorded_key for entry in group} - {None}
    return any(entry.recorded_key in recorded_keys for entry in unplayed)


def _no_match_miss(incoming: IncomingRequest, recording: Recording, key: str, closest: RecordedExchange) -> Miss:
    nearest = recording.finder.compare(closest, incoming.request)
    if recording.is_rekeyed and closest.recorded_key not in (None, closest.key) and _is_due_to_rules(incoming, closest):
        detail = f"{incoming.description} is not in run {incoming.run} under the current key rules, which differ from those of the recording."
        return _new_miss(
            incoming,
            "profile_changed",
            f"{detail} {_difference_sentence(nearest)}",
            f"{incoming.record_again}; or {_RESTORE_RULES}",
            key,
            nearest,
        )
    if nearest.differences and not nearest.more and all(map(_is_only_redaction, nearest.differences)):
        detail = f"{incoming.description} differs from step {closest.step} of run {incoming.run} only in redacted text."
        fix = (
            f"{_LONGER_KEY}; or {incoming.record_again}"
            if any(map(_is_short_secret, nearest.differences))
            else f"{_PERSONAL_DATA}; or {incoming.record_again}"
            if _has_personal_data(closest.exchange.request) and not _has_personal_data(incoming.request)
            else incoming.record_again
        )
        detail = f"{detail} {_difference_sentence(nearest)}{_redaction_sentence(recording)}"
        return _new_miss(incoming, "redaction_changed", detail, fix, key, nearest)
    detail = f"{incoming.description} was not recorded in run {incoming.run}. {_difference_sentence(nearest)}"
    if recording.has_older_redaction:
        detail += _redaction_sentence(recording)
    return _new_miss(incoming, "no_match", detail, _no_match_fix(incoming, nearest), key, nearest)


def _has_personal_data(request: Request) -> bool:
    """Whether personal data was replaced in a request, which only a setting does."""
    return _PERSONAL_PLACEHOLDER in request.body.data or _PERSONAL_PLACEHOLDER.decode() in request.url


def _redaction_sentence(recording: Recording) -> str:
    """A sentence that says that the present redaction rules do not make the recording answer the request."""
    match recording.redacted_count:
        case None:
            return ""
        case count if count == len(recording.index.entries):
            return " The recorded requests were compared as today's rules redact them."
        case count:
            return (
                f" The first {count} of {len(recording.index.entries)} recorded requests were compared as today's rules redact"
                " them, the others, because so many hold secrets, as they were recorded."
            )


def _is_due_to_rules(incoming: IncomingRequest, closest: RecordedExchange) -> bool:
    """Whether the changed profiles may be the reason for the miss.

    The profiles of the recording are not known. If the shipped ones explain its key, they decide; otherwise it may be.
    """
    shipped_profiles = load_profiles()
    recorded_key = make_key(opening_request(closest.exchange.request), shipped_profiles).key
    return (
        recorded_key != closest.recorded_key
        or make_key(opening_request(incoming.request), shipped_profiles).key == recorded_key
    )


def _new_miss(
    incoming: IncomingRequest,
    reason: Reason,
    detail: str,
    fix: str,
    key: str | None,
    nearest: NearestCall | None = None,
) -> Miss:
    return Miss(
        replay=incoming.replay,
        run=incoming.run,
        reason=reason,
        request_line=incoming.description,
        detail=detail,
        fix=fix,
        key=key,
        number=incoming.number,
        nearest=nearest,
        request=excerpt_request(incoming.request),
        page=incoming.miss_page,
    )


def _no_match_fix(incoming: IncomingRequest, nearest: NearestCall) -> str:
    if incoming.fork_step is not None and not incoming.repair_advice:
        fork_command = f"playhead fork {quote(incoming.recording_name or incoming.run)} --after-step {incoming.fork_step} --override FILE -- CMD"
        return f"nothing was recorded after the edited answer, so continue live: {fork_command}; or answer it in the FILE as well"
    explain = "show which fields are in its key: playhead explain --request FILE"
    return "; or ".join([*_fixes(incoming), explain, *_rule_fixes(incoming.request, nearest)])


def _fixes(incoming: IncomingRequest) -> list[str]:
    """The ways to get an answer for the request, best first."""
    ways = [incoming.record_again, *_on_miss_fixes(incoming)]
    return ways[::-1] if incoming.repair_advice and incoming.repair_advice.is_shared else ways


def _on_miss_fixes(incoming: IncomingRequest) -> list[str]:
    if incoming.goes_live:
        return []
    if incoming.repair_advice:
        return [incoming.repair_advice.record_new] if incoming.repair_advice.record_new else []
    replay_command = f"playhead replay {quote(incoming.recording_name or incoming.run)} --on-miss"
    return [
        f"record only what is new: {replay_command} record -- CMD",
        f"let what is new go live: {replay_command} live -- CMD",
    ]


_ASTERISKS = re.compile(rf"\*{{1,{MIN_SIZE - 1}}}")
_SECRET = re.compile(rf"PLAYHEAD:\d+|{_ASTERISKS.pattern}")
_PLACEHOLDER = re.compile(r"PLAYHEAD:\d+|PLAYHEAD_[A-Z2-7]+|\*{4,}")


def _is_only_redaction(difference: Difference) -> bool:
    """Whether one side is the other one after redaction."""
    match difference:
        case Difference(_, str(recorded), str(now)):
            return _is_redaction_of(recorded, now) or _is_redaction_of(now, recorded) or _is_short_secret(difference)
        case _:
            return False


def _is_short_secret(difference: Difference) -> bool:
    """Whether two secrets differ, at least one of which was too short for a placeholder."""
    sides = (difference.recorded, difference.now)
    return all(isinstance(side, str) and _SECRET.fullmatch(number_placeholders(side)) for side in sides) and any(
        _ASTERISKS.fullmatch(str(side)) for side in sides
    )


def _is_redaction_of(redacted: str, plain: str) -> bool:
    """Whether the plain text equals the redacted one, with some text in place of each placeholder."""
    first, *parts = _PLACEHOLDER.split(number_placeholders(redacted))
    if not parts or not plain.startswith(first):
        return False
    at = len(first)
    for part in parts[:-1]:
        found = plain.find(part, at + 1)
        if found < 0:
            return False
        at = found + len(part)
    return plain.endswith(parts[-1]) and len(plain) - len(parts[-1]) > at


def _difference_sentence(nearest: NearestCall) -> str:
    """A sentence that says how a request and its nearest recorded call differ."""
    step = f"The nearest recorded call is step {nearest.step}"
    if not nearest.differences:
        return f"{step}; only the raw bytes of the two differ."
    listed_differences = nearest.differences[:_DIFFERENCES_IN_SENTENCE]
    more = len(nearest.differences) + nearest.more - len(listed_differences)
    rest = f", and at {more} more places" if more else ""
    return f"{step}; it differs at {'; '.join(map(_difference_phrase, listed_differences))}{rest}."


def _difference_phrase(difference: Difference) -> str:
    sides = difference.as_json()
    recorded = "not recorded" if difference.only_side == "now" else f"recorded {_value_phrase(sides['recorded'])}"
    now = "now absent" if difference.only_side == "recorded" else f"now {_value_phrase(sides['now'])}"
    return f"{difference.readable_pointer} ({recorded}, {now})"


def _value_phrase(value: Json) -> str:
    phrase = f'"{value}"' if isinstance(value, str) else str(value)
    return phrase if len(phrase) <= _MAX_VALUE else phrase[:_MAX_VALUE] + "…"


def _times_phrase(times: int) -> str:
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def _rule_fixes(request: Request, nearest: NearestCall) -> list[str]:
    """Suggest a profile rule that ignores the differences.

    Only for an API without a shipped profile, and if the differences are few, in the body, and at short paths.
    """
    paths = [path for difference in nearest.differences if (path := _json_path(difference.path))]
    few = 0 < len(paths) == len(nearest.differences) + nearest.more <= _DIFFERENCES_IN_SENTENCE
    url = urlsplit(request.url)
    short = all(shorten_pointer(place) == place for place in (*paths, url.path))
    if not few or not short or route_request(request).dialect != "generic":
        return []
    return [
        "if that does not matter, declare it in playhead.toml: "
        f'[[profile]] name = "{url.hostname}/1", match = {{ host = "{url.hostname}", path = "{url.path}" }}, '
        f"transient = {dumps(paths).decode()}"
    ]


def _json_path(path: Sequence[str | int]) -> str | None:
    """The RFC 9535 path of a place in the body; None for a place elsewhere."""
    if len(path) < 2 or path[0] != "body":
        return None
    return "$" + "".join(f"[{token}]" if isinstance(token, int) else _path_member(token) for token in path[1:])


def _path_member(name: str) -> str:
    if name.isidentifier() and name.isascii():
        return f".{name}"
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped}']"
