"""Find why a request is not answered from the recording, and what would help."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from urllib.parse import urlsplit

from calls.codec.json import dumps
from calls.keys.divergence import Difference, readable
from calls.keys.key import keyed
from calls.model import Json, Request
from calls.placeholder import SHORTEST, fold
from calls.route import route_of
from calls.websocket_messages import opening
from replay.misses.miss import Miss, Nearest, Reason
from replay.misses.nearest import unsent
from replay.recording import Recording
from replay.script import RecordedExchange
from store.active_profiles import shipped

_LONGEST_URL = 200
_LONGEST_VALUE = 80
_IN_A_SENTENCE = 3

_AGAIN = "record the run again: playhead record -- CMD"
_RULES = "take back the change of [[profile]] in playhead.toml"
_LONGER_KEY = f"give the client a dummy key of {SHORTEST} characters or more: a shorter one becomes asterisks, which stand for no key"
_MORE_TIME = "give the client more time: its timeout, or --pace instant"
_READS = (
    "if the client counts what it reads, or the time, give it the pieces at their times, for at once they come as one:"
    " --pace recorded"
)
_NAME_A_RUN = (
    "name a recorded run in the proxy's credentials (http://RUN:TOKEN@host:port) or in X-Playhead-Run "
    "(`playhead ls` lists them), or let Playhead do it: playhead replay RUN -- CMD"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """How a recording is mended where it is not `playhead replay` that answers from it."""

    again: str = _AGAIN
    only_new: str | None = None
    shared: bool = False
    """Others are answered from it too, and recorded again it may lack what they ask: then what is new comes first."""


@dataclass(slots=True, kw_only=True)  # not frozen: see replay/answer.py
class ReplayedRequest:
    """A request, and in which replay of which run it came."""

    request: Request
    number: int
    """Its place among the requests of the replay, from 1."""

    replay: str
    run: str
    actor: str | None = None
    called: str | None = None
    """What the recording was called by whoever started the replay: a run, or the path of a bundle."""

    live: bool = False
    """What is not recorded goes live: nobody needs to be told how to let it."""

    mend: Mend | None = None
    edited: int | None = None
    """Where a step was answered otherwise than it was recorded: the last that a fork should answer from the record."""

    @property
    def again(self) -> str:
        """How it is recorded again."""
        return self.mend.again if self.mend else _AGAIN

    @property
    def words(self) -> str:
        """Method and URL, short enough for a sentence."""
        url = self.request.url
        return f"{self.request.method} {url if len(url) <= _LONGEST_URL else url[:_LONGEST_URL] + '…'}"


def unanswered(
    asked: ReplayedRequest, recording: Recording, key: str, group: Sequence[RecordedExchange], turn: Sequence[int]
) -> Miss:
    """The miss of a request for which the script has nothing (left). `group`: what was recorded under its key for whoever
    asks; `turn`: what has not answered yet."""
    if group:
        return _used_up(asked, recording, key, group, turn)
    if others := recording.index.groups.get(key):
        return _of_another(asked, key, recording.index.entries[others[0]])
    if (cut := recording.finder.cut(asked.request)) is not None:
        return _cut(asked, cut)
    found = recording.finder.nearest(asked.request, turn)
    if found is None:
        detail = f"{asked.words} has no recorded answer: run {asked.run} holds no call."
        return _miss(asked, "no_match", detail, asked.again, key)
    return _unknown(asked, recording, key, found)


def _cut(asked: ReplayedRequest, recorded: RecordedExchange) -> Miss:
    """The miss of a request that was too large to be kept, or answered before all of it had come, so that nobody can tell
    whether this is the same."""
    body = recorded.exchange.request.body
    if lacking := unsent(recorded.exchange.request):
        detail = (
            f"{asked.words} begins as step {recorded.step} of run {asked.run} did, which was answered before the last"
            f" {lacking} of its {lacking + body.size} bytes were sent, so nobody can tell whether this is the same."
        )
        fix = f"give it its answer by an override (docs/forks.md), or {asked.again}"
        return _miss(asked, "incomplete", detail, fix, recorded.key, _step(recorded))
    why = recorded.gap or " or ".join(filter(None, ("it was larger than body_limit", recorded.loose)))
    detail = (
        f"{asked.words} begins as step {recorded.step} of run {asked.run} did, of whose {body.size} bytes only"
        f" {len(body.data)} were kept: {why}, so nobody can tell whether this is the same."
    )
    limit = f"set body_limit to {body.size} or more in playhead.toml (PLAYHEAD_BODY_LIMIT), then {asked.again}"
    fix = asked.again if recorded.gap else limit
    return _miss(asked, "incomplete", detail, fix, recorded.key, _step(recorded))


def incomplete(asked: ReplayedRequest, recorded: RecordedExchange, why: str, fix: str | None = None) -> Miss:
    """The miss of a request whose recorded answer is not there whole."""
    detail = f"{asked.words} is step {recorded.step} of run {asked.run}, but the recording cannot answer it: {why}."
    return _miss(asked, "incomplete", detail, fix or asked.again, recorded.key, _step(recorded))


def stayed(asked: ReplayedRequest, recorded: RecordedExchange, *, instant: bool = False) -> Miss:
    """The miss of a client that waits for what the recorded one did not wait for."""
    why = "the client of the recording left before the answer ended, this one waits for more"
    return incomplete(asked, recorded, why, f"{_READS}; or {asked.again}" if instant else None)


def left(asked: ReplayedRequest, recorded: RecordedExchange) -> Miss:
    """What becomes of a hit whose client did not wait for all of it."""
    detail = (
        f"{asked.words} is step {recorded.step} of run {asked.run}, which was answered to its end in the recording;"
        " this client left before."
    )
    return _miss(asked, "client_left", detail, _MORE_TIME, recorded.key, _step(recorded))


def left_socket(asked: ReplayedRequest, recorded: RecordedExchange, number: int) -> Miss:
    """What becomes of a WebSocket whose client left before it had said all that was recorded."""
    detail = (
        f"the client of {asked.words} left before its message {number}, which the client of step {recorded.step} of run"
        f" {asked.run} sent."
    )
    fix = f"let it send all that it sent then; or {asked.again}"
    return _miss(asked, "client_left", detail, fix, recorded.key, _step(recorded))


def abandoned(asked: ReplayedRequest) -> Miss:
    """The miss of a client that did not wait for its answer, or for the explanation why there is none."""
    detail = f"the client of {asked.words} left before run {asked.run} could answer it."
    return _miss(asked, "client_left", detail, _MORE_TIME, None)


def unseen(replay: str, run: str, number: int, *, large: bool = False) -> Miss:
    """The miss of a request that could not be read: its client left before its end, or it is too `large`."""
    if large:
        detail = f"request {number} is larger than what can be looked up in a recording."
        fix = "send less at once, or let its host be asked for real: allowed_hosts"
        return Miss(replay=replay, run=run, reason="incomplete", number=number, detail=detail, fix=fix)
    detail = f"the client of request {number} left before run {run} could answer it."
    return Miss(replay=replay, run=run, reason="client_left", number=number, detail=detail, fix=_MORE_TIME)


def interrupted(asked: ReplayedRequest) -> Miss:
    """The miss of every request of a replay whose position is lost."""
    detail = (
        f"{asked.words} cannot be answered: the proxy was started again in the middle of replay {asked.replay},"
        " and which answers were given before is not known any more."
    )
    return _miss(
        asked, "interrupted", detail, "begin a new replay: playhead replay RUN -- CMD, or POST /v1/replays", None
    )


def unusable(run: str | None, why: str) -> Miss:
    """The miss of a request to a replay that cannot be as it was wished for."""
    detail = f"{run} cannot answer as it was asked to: {why}."
    return Miss(replay=run or "none", run=run, reason="unknown_run", detail=detail, fix="make it again without that")


def unknown_run(run: str | None, known: Iterable[str]) -> Miss:
    """The miss of a request that names no recording that we have."""
    what = (
        "The request does not say which recording answers it" if run is None else f"There is no recording of run {run}"
    )
    loaded = ", ".join(known)
    return Miss(
        replay="none",
        run=run,
        reason="unknown_run",
        asked=None,
        detail=f"{what}; loaded are {loaded}." if loaded else f"{what}.",
        fix=_NAME_A_RUN,
    )


def _step(recorded: RecordedExchange) -> Nearest:
    return Nearest(call=recorded.id, step=recorded.step)


def _of_another(asked: ReplayedRequest, key: str, recorded: RecordedExchange) -> Miss:
    who = f"by {recorded.actor}" if recorded.actor else "without an actor"
    detail = f"{asked.words} was recorded {who} (step {recorded.step}), and not by {asked.actor}, who asks for it now."
    fix = f"let each branch keep its X-Playhead-Actor; or {asked.again}"
    return _miss(asked, "no_match", detail, fix, key, _step(recorded))


def _used_up(
    asked: ReplayedRequest, recording: Recording, key: str, group: Sequence[RecordedExchange], turn: Sequence[int]
) -> Miss:
    last = group[-1]
    nearest = Nearest(call=last.id, step=last.step)
    then = f"{asked.words} was recorded {_times(len(group))} in run {asked.run}"
    if recording.rekeyed and _was_one(group, (recording.index.entries[place] for place in turn)):
        detail = (
            f"{then} under today's key rules, and more often under those of the recording: the rules changed since."
        )
        return _miss(asked, "profile_changed", detail, f"{asked.again}; or {_RULES}", key, nearest)
    detail = f"{then} and every answer was given already: it is asked more often now than it was then."
    return _miss(asked, "consumed", detail, "; or ".join(_ways(asked)), key, nearest)


def _was_one(group: Iterable[RecordedExchange], waiting: Iterable[RecordedExchange]) -> bool:
    """Whether something that still waits had the key of this group under the rules of the recording."""
    then = {entry.recorded_key for entry in group} - {None}
    return any(entry.recorded_key in then for entry in waiting)


def _unknown(asked: ReplayedRequest, recording: Recording, key: str, found: RecordedExchange) -> Miss:
    nearest = recording.finder.compared(found, asked.request)
    if recording.rekeyed and found.recorded_key not in (None, found.key) and _is_for_rules(asked, found):
        detail = (
            f"{asked.words} is not in run {asked.run} under today's key rules, which are not those of the recording."
        )
        return _miss(
            asked, "profile_changed", f"{detail} {_unlike(nearest)}", f"{asked.again}; or {_RULES}", key, nearest
        )
    if nearest.differences and not nearest.more and all(map(_only_redacted, nearest.differences)):
        detail = f"{asked.words} differs from step {found.step} of run {asked.run} only in what redaction replaces."
        fix = f"{_LONGER_KEY}; or {asked.again}" if any(map(_too_short, nearest.differences)) else asked.again
        return _miss(asked, "redaction_changed", f"{detail} {_unlike(nearest)}", fix, key, nearest)
    detail = f"{asked.words} was not recorded in run {asked.run}. {_unlike(nearest)}"
    return _miss(asked, "no_match", detail, _fix_no_match(asked, nearest), key, nearest)


def _is_for_rules(asked: ReplayedRequest, found: RecordedExchange) -> bool:
    """Whether the rules of the recording would have given this request its answer. Those of our own are tried, which most
    are made under; where it was recorded under others nobody can tell, and they may be why."""
    ours = shipped()
    then = keyed(opening(found.exchange.request), ours).key
    return then != found.recorded_key or keyed(opening(asked.request), ours).key == then


def _miss(
    asked: ReplayedRequest, reason: Reason, detail: str, fix: str, key: str | None, nearest: Nearest | None = None
) -> Miss:
    return Miss(
        replay=asked.replay,
        run=asked.run,
        reason=reason,
        asked=asked.words,
        detail=detail,
        fix=fix,
        key=key,
        number=asked.number,
        nearest=nearest,
        head_only=asked.request.method == "HEAD",
    )


def _fix_no_match(asked: ReplayedRequest, nearest: Nearest) -> str:
    if asked.edited is not None and not asked.mend:
        forked = f"playhead fork {quote(asked.called or asked.run)} --from {asked.edited} --override FILE -- CMD"
        return (
            f"what follows from an edit was never recorded, so go on live: {forked}; or answer it in the FILE as well"
        )
    explain = "see what makes its key: playhead explain --request FILE"
    return "; or ".join([*_ways(asked), explain, *_rule(asked.request, nearest)])


def _ways(asked: ReplayedRequest) -> list[str]:
    """What gives a request an answer, the best first."""
    ways = [asked.again, *_let_through(asked)]
    return ways[::-1] if asked.mend and asked.mend.shared else ways


def _let_through(asked: ReplayedRequest) -> list[str]:
    if asked.live:
        return []
    if asked.mend:
        return [asked.mend.only_new] if asked.mend.only_new else []
    again = f"playhead replay {quote(asked.called or asked.run)} --on-miss"
    return [f"record only what is new: {again} record -- CMD", f"let what is new go out: {again} live -- CMD"]


_ASTERISKS = re.compile(rf"\*{{1,{SHORTEST - 1}}}")
_SECRET = re.compile(rf"PLAYHEAD:\d+|{_ASTERISKS.pattern}")
_PLACEHOLDER = re.compile(r"PLAYHEAD:\d+|PLAYHEAD_[A-Z2-7]+|\*{4,}")


def _only_redacted(difference: Difference) -> bool:
    """Whether one side is the other one with something redacted."""
    match difference:
        case Difference(_, str(recorded), str(now)):
            return _covers(recorded, now) or _covers(now, recorded) or _too_short(difference)
        case _:
            return False


def _too_short(difference: Difference) -> bool:
    """Whether a secret that was too short for a placeholder stands against another one."""
    sides = (difference.recorded, difference.now)
    return all(isinstance(side, str) and _SECRET.fullmatch(fold(side)) for side in sides) and any(
        _ASTERISKS.fullmatch(str(side)) for side in sides
    )


def _covers(redacted: str, plain: str) -> bool:
    """Whether the plain text has what surrounds the placeholders, in its order, with something in place of each."""
    first, *kept = _PLACEHOLDER.split(fold(redacted))
    if not kept or not plain.startswith(first):
        return False
    at = len(first)
    for part in kept[:-1]:
        found = plain.find(part, at + 1)
        if found < 0:
            return False
        at = found + len(part)
    return plain.endswith(kept[-1]) and len(plain) - len(kept[-1]) > at


def _unlike(nearest: Nearest) -> str:
    """How a request and its nearest recorded call differ, in words."""
    step = f"The nearest recorded call is step {nearest.step}"
    if not nearest.differences:
        return f"{step}; only the raw bytes of the two differ."
    shown = nearest.differences[:_IN_A_SENTENCE]
    more = len(nearest.differences) + nearest.more - len(shown)
    rest = f", and at {more} more places" if more else ""
    return f"{step}; it differs at {'; '.join(map(_in_words, shown))}{rest}."


def _in_words(difference: Difference) -> str:
    told = difference.told()
    recorded = "not recorded" if difference.only == "now" else f"recorded {_value(told['recorded'])}"
    now = "now absent" if difference.only == "recorded" else f"now {_value(told['now'])}"
    return f"{difference.place} ({recorded}, {now})"


def _value(value: Json) -> str:
    words = f'"{value}"' if isinstance(value, str) else str(value)
    return words if len(words) <= _LONGEST_VALUE else words[:_LONGEST_VALUE] + "…"


def _times(times: int) -> str:
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def _rule(request: Request, nearest: Nearest) -> list[str]:
    """The rule under which the differences would not matter: for an API that has no profile of ours, where they are few,
    in the body, and at places that somebody could write down."""
    paths = [path for difference in nearest.differences if (path := _json_path(difference.path))]
    few = 0 < len(paths) == len(nearest.differences) + nearest.more <= _IN_A_SENTENCE
    url = urlsplit(request.url)
    short = all(readable(place) == place for place in (*paths, url.path))
    if not few or not short or route_of(request).dialect != "generic":
        return []
    return [
        "where that does not matter, say so in playhead.toml: "
        f'[[profile]] name = "{url.hostname}/1", match = {{ host = "{url.hostname}", path = "{url.path}" }}, '
        f"transient = {dumps(paths).decode()}"
    ]


def _json_path(path: Sequence[str | int]) -> str | None:
    """A place in the body by RFC 9535; None for one elsewhere."""
    if len(path) < 2 or path[0] != "body":
        return None
    return "$" + "".join(f"[{token}]" if isinstance(token, int) else _member(token) for token in path[1:])


def _member(name: str) -> str:
    if name.isidentifier() and name.isascii():
        return f".{name}"
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped}']"
