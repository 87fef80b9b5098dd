"""Fork a run: its first steps come from the record, then it goes on live as a run of its own.

What the prefix does not answer leaves the record here and nowhere else: by the policy for side effects it is answered from
what the parent did later, refused, or goes live.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from calls.codec.json import dumps
from calls.derive import derive
from calls.effects import Effects
from calls.keys.divergence import readable
from calls.keys.profile import Profiles
from calls.model import Exchange, Json, Request
from calls.overrides.overrides import Override
from calls.route import route_of
from replay.answer import Answer, Piece, mark
from replay.forks.hooks import HookAnswer
from replay.misses.explain import ReplayedRequest
from replay.overrides.prepare import Editor, prepared
from replay.playback import is_websocket
from replay.recording import recording
from replay.script import Position, Script, ScriptMatch
from store.bundle.bundle import Bundle
from store.call_graph.call_ids import gives
from store.generations.fork_point import last_whole

LISTED: Final = 20
BLOCKED: Final = 403

_MARKS: Final = 64
_SHORTEST: Final = 8
_TEXT: Final = 80
"""Of an answer's text so many characters are looked for. What is shorter than `_SHORTEST` may be anywhere."""


class BadFork(ValueError):
    """There can be no such fork; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOptions:
    """Which fork."""

    at: int | None = None
    """The last step that the record answers; 0: none. None: the last that was answered whole, where a run is resumed."""

    effects: Effects


@dataclass(slots=True, kw_only=True)
class Fork:
    """Decides about what the prefix does not answer (`hooks.Beyond`)."""

    id: str
    parent: str
    at: int
    effects: Effects
    editor: Editor
    later: Script
    """What the parent did after the prefix."""

    resumed_by: tuple[bytes, ...] | None = None
    """Of a run that is resumed: ids and texts of its answers. A command with a checkpoint of its own does not ask for the
    prefix again, but hands these back. None: a fork."""

    _goes_on: bool = field(init=False, default=False)
    _models: int = field(init=False, default=0)
    """Requests to models beyond the prefix."""

    _blocked: list[Json] = field(init=False, default_factory=list)
    _refused: int = field(init=False, default=0)
    _borrowed: int = field(init=False, default=0)

    def beyond(self, asked: ReplayedRequest, key: str, raw: str) -> ScriptMatch | HookAnswer | Literal["live"] | None:
        """What becomes of a request that the prefix does not answer (any more)."""
        self._note_checkpoint(asked.request)
        if given := self.editor.standing(asked):
            return given
        policy = self.effects.policy(asked.request)
        if policy == "serve-recorded":
            if taken := self.later.take(key, raw, asked.actor):
                self._borrowed += 1
                return taken
            policy = self.effects.unrecorded(asked.request)
        if policy == "allow":
            return "live"
        self._refused += 1
        if len(self._blocked) < LISTED:
            self._blocked.append({"number": asked.number, "asked": asked.words})
        return HookAnswer(blocked(asked.request, run=self.parent, fork=self.id), edited=False)

    def _note_checkpoint(self, request: Request) -> None:
        """Remember whether the command goes on from where the run stopped."""
        if self.resumed_by and not self._goes_on:
            self._models += route_of(request).kind == "model"
            self._goes_on = any(mark in request.body.data for mark in self.resumed_by)

    def reported(self, report: dict[str, Json]) -> dict[str, Json]:
        """The report of a fork. It is right when the prefix was asked for whole, and every edit was seen; an edit may well
        lead elsewhere before the prefix is over."""
        told: dict[str, Json] = {
            "parent": self.parent,
            "forked_at": self.at,
            "later": self._borrowed,
            "blocked": self._refused,
            "blocked_calls": list(self._blocked),
            "from_checkpoint": self._is_from_checkpoint(report),
        }
        return report | {"fork": told, "verdict": self._verdict(report)}

    def rest(self) -> tuple[list[Json], int, int, Position, bool, int]:
        """What left the record so far. The edits rest by themselves."""
        return self._blocked, self._refused, self._borrowed, self.later.position, self._goes_on, self._models

    def go_on(self, rested: tuple[list[Json], int, int, Position, bool, int]) -> None:
        """Take up from there."""
        self._blocked, self._refused, self._borrowed, self.later.position, self._goes_on, self._models = rested

    def _is_from_checkpoint(self, report: dict[str, Json]) -> bool:
        """Whether the command did not ask for the first steps because it had their answers: what it asked models then hands
        something of them back, or it asked none."""
        if self.resumed_by is None or not (report["unused"] and report["unused_leads"]):
            return False
        asked = report["live"] or report["served"] or self._refused
        return bool(asked) and (self._goes_on or not self._models)

    def _verdict(self, report: dict[str, Json]) -> Literal["right", "diverged", "unknown"]:
        asked = any(report[name] for name in ("served", "edited", "live", "missed")) or self._refused
        left = report["unused"] and not report["allow_unused"] and not report["edited"]
        left = left and not self._is_from_checkpoint(report)
        if report["missed"] or left or report.get("overrides_idle"):
            return "diverged"
        return "right" if asked else "unknown"


def forked(
    bundle: Bundle, overrides: Sequence[Override], profiles: Profiles, wanted: ForkOptions, *, fork: str
) -> tuple[Bundle, dict[str, Any]]:
    """The recording for the prefix, and the options (`session.Options`) by which it becomes a fork.
    Raises BadFork and BadOverride."""
    steps = len(bundle.entries)
    ordered = sorted(bundle.exchanges, key=lambda exchange: (exchange.started_at, exchange.id))
    at = last_whole(ordered, partial(derive, profiles=profiles)) if wanted.at is None else wanted.at
    run = str(bundle.run["id"])
    if at > steps:
        raise BadFork(f"run {run} ends at step {steps}, so it cannot be forked at step {at}; name an earlier one")
    if (step := next((step for step, one in enumerate(ordered[:at], 1) if is_websocket(one)), None)) is not None:
        raise BadFork(
            f"step {step} of run {run} is a WebSocket, whose state nobody can go on from; fork it at step {step - 1} or before"
        )
    later = recording(bundle, profiles, from_step=at + 1).index
    edited, editor = prepared(bundle, overrides, profiles, until_step=at)
    marks = _marks(ordered[:at], profiles) if wanted.at is None else None
    hook = Fork(
        id=fork, parent=run, at=at, effects=wanted.effects, editor=editor, later=Script(later), resumed_by=marks
    )
    # Never `live` on a miss: whatever leaves the record does so by way of the hook.
    return edited, {"until_step": at, "edits": editor, "beyond": hook, "recorded": True, "on_miss": "fail"}


def _marks(exchanges: Iterable[Exchange], profiles: Profiles) -> tuple[bytes, ...]:
    """What of the answers of models a request repeats that goes on from them: the latest first."""
    found: dict[bytes, None] = {}
    for call in (derive(exchange, profiles) for exchange in reversed(list(exchanges))):
        texts = [call.text[:_TEXT]] if call.kind == "model" and call.text and len(call.text) >= _SHORTEST else []
        ids = [name for name in gives(call) if len(name) >= _SHORTEST]
        found |= dict.fromkeys(dumps(text)[1:-1] for text in (*ids, *texts))
        if len(found) >= _MARKS:
            break
    return tuple(found)


def blocked(request: Request, *, run: str, fork: str) -> Answer:
    """The answer to what may not go out: a refusal that no SDK retries."""
    route = route_of(request)
    asked = f"{route.method} {route.host}{readable(route.path)}"
    detail = (
        f"{asked} is beyond the recorded part of this fork and may change something at {route.host};"
        f" it went nowhere. To let it go out: playhead fork … --allow '{route.method} {route.host}'; to answer it from the"
        f" record where it is there: --effects serve-recorded."
    )
    body = dumps(
        {
            "type": "urn:playhead:problem:blocked",
            "title": "Blocked by the fork's policy for side effects",
            "status": BLOCKED,
            "detail": detail,
            "instance": f"urn:playhead:fork:{fork}",
            "error": {"type": "fork_blocked", "code": "blocked", "message": detail},
        }
    )
    headers = (
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("x-should-retry", "false"),
        mark("miss", run=run),
    )
    return Answer(status=BLOCKED, reason="Forbidden", headers=headers, pieces=(Piece(0, body),), recorded="refused")
