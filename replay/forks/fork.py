"""Fork a run: the first steps (the prefix) come from the record, and then it continues live as a run of its own.

This is the only place where a replay leaves its record. The policy for side effects decides whether a request that the
prefix does not answer is answered from later steps of the parent, is refused, or goes live.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import msgspec

from calls.codec.json import dumps
from calls.derive import derive_call
from calls.keys.divergence import shorten_pointer
from calls.keys.profile import Profiles
from calls.model import Exchange, Json, Request
from calls.overrides.overrides import Override
from calls.route import route_request
from calls.side_effects import SideEffectPolicy
from replay.answer import Answer, source_header
from replay.forks.hooks import HookAnswer
from replay.incoming_request import IncomingRequest
from replay.overrides.prepare import OverrideEditor, prepare_overrides
from replay.playback import is_websocket
from replay.recording import build_recording
from replay.refusals import refusal_answer
from replay.script import Position, Script, ScriptMatch
from store.bundle.bundle import Bundle
from store.call_graph.call_ids import created_ids
from store.generations.fork_point import last_complete_step

BLOCKED_LISTED: Final = 20
BLOCKED_STATUS: Final = 403

_MARKS_KEPT: Final = 64
_SHORTEST_MARK: Final = 8
_TEXT_MARK_LENGTH: Final = 80
"""Number of characters of an answer's text that are searched for. Texts shorter than `_SHORTEST_MARK` may occur anywhere."""


class BadFork(ValueError):
    """The fork is not possible; the message says why."""


class ForkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is forked, and the policy for side effects."""

    at: int | None = None
    """The last step that the record answers; 0 for none. None resumes the run after the last complete step."""

    effects: SideEffectPolicy
    is_offline: bool = False
    """Whether a request that the prefix does not answer is missed instead of going live. The run that the command makes is still
    recorded, up to where it would have left the record."""


@dataclass(slots=True, kw_only=True)
class Fork:
    """Decides about requests that the prefix does not answer (implements `MissHook`)."""

    id: str
    parent: str
    at: int
    effects: SideEffectPolicy
    editor: OverrideEditor
    parent_script: Script
    """The steps of the parent after the prefix."""

    is_offline: bool = False
    """Whether nothing goes live."""

    checkpoint_marks: tuple[bytes, ...] | None = None
    """The ids and texts of the answers of a resumed run; None for a fork.

    A command with a checkpoint of its own does not repeat the requests of the prefix, but sends these back.
    """

    _has_resumed: bool = field(init=False, default=False)
    _model_requests: int = field(init=False, default=0)
    """Requests to models beyond the prefix."""

    _blocked: list[Json] = field(init=False, default_factory=list)
    _blocked_count: int = field(init=False, default=0)
    _served_from_parent: int = field(init=False, default=0)

    def answer_miss(
        self, incoming: IncomingRequest, key: str, raw: str
    ) -> ScriptMatch | HookAnswer | Literal["live"] | None:
        """Decide about a request that the prefix does not answer."""
        self._note_checkpoint(incoming.request)
        if edit := self.editor.answer_unrecorded(incoming):
            return edit
        if self.is_offline:
            return None
        policy = self.effects.policy_for(incoming.request)
        if policy == "serve-recorded":
            names = self.parent_script.index.request_names(incoming.request)
            if match := self.parent_script.take_next(key, raw, incoming.actor, names):
                self._served_from_parent += 1
                return match
            policy = self.effects.unrecorded_policy(incoming.request)
        if policy == "allow":
            return "live"
        self._blocked_count += 1
        if len(self._blocked) < BLOCKED_LISTED:
            self._blocked.append({"number": incoming.number, "asked": incoming.description})
        return HookAnswer(blocked_answer(incoming.request, run=self.parent, fork=self.id), is_edit=False)

    def _note_checkpoint(self, request: Request) -> None:
        """Note whether the command continues from a checkpoint of its own."""
        if self.checkpoint_marks and not self._has_resumed:
            self._model_requests += route_request(request).kind == "model"
            self._has_resumed = any(mark in request.body.data for mark in self.checkpoint_marks)

    def extend_report(self, report: dict[str, Json]) -> dict[str, Json]:
        """Add the fork to a report, and set its verdict.

        It is right if the whole prefix was requested and every edit was used. After an edit, the command may leave the
        prefix early.
        """
        fork: dict[str, Json] = {
            "parent": self.parent,
            "forked_at": self.at,
            "later": self._served_from_parent,
            "blocked": self._blocked_count,
            "blocked_calls": list(self._blocked),
            "from_checkpoint": self._is_from_checkpoint(report),
        }
        return report | {"fork": fork, "verdict": self._verdict(report)}

    def saved_state(self) -> tuple[list[Json], int, int, Position, bool, int]:
        """The state of the fork, without that of the edits."""
        return (
            self._blocked,
            self._blocked_count,
            self._served_from_parent,
            self.parent_script.position,
            self._has_resumed,
            self._model_requests,
        )

    def restore_state(self, state: tuple[list[Json], int, int, Position, bool, int]) -> None:
        """Restore a saved state."""
        (
            self._blocked,
            self._blocked_count,
            self._served_from_parent,
            self.parent_script.position,
            self._has_resumed,
            self._model_requests,
        ) = state

    def _is_from_checkpoint(self, report: dict[str, Json]) -> bool:
        """Whether the command skipped the first steps because its own checkpoint has their answers.

        This is so if a request to a model repeats part of them, or if there was no request to a model.
        """
        if self.checkpoint_marks is None or not (report["unused"] and report["unused_leads"]):
            return False
        has_requests = report["live"] or report["served"] or self._blocked_count
        return bool(has_requests) and (self._has_resumed or not self._model_requests)

    def _verdict(self, report: dict[str, Json]) -> Literal["right", "diverged", "unknown"]:
        has_requests = any(report[name] for name in ("served", "edited", "live", "missed")) or self._blocked_count
        has_unused = report["unused"] and not report["allow_unused"] and not report["edited"]
        has_unused = has_unused and not self._is_from_checkpoint(report)
        if report["missed"] or has_unused or report.get("overrides_idle"):
            return "diverged"
        # A run without calls goes on by its effects alone (`replay.report.report_with_effects`).
        return "right" if has_requests or report["verdict"] == "right" else "unknown"


def prepare_fork(
    bundle: Bundle, overrides: Sequence[Override], profiles: Profiles, options: ForkOptions, *, fork: str
) -> tuple[Bundle, dict[str, Any]]:
    """Return the recording of the prefix, and the `ReplayOptions` that make its replay a fork.

    Raises BadFork and BadOverride.
    """
    steps = len(bundle.entries)
    ordered = sorted(bundle.exchanges, key=lambda exchange: (exchange.started_at, exchange.id))
    at = last_complete_step(ordered, partial(derive_call, profiles=profiles)) if options.at is None else options.at
    run = str(bundle.run["id"])
    if at > steps:
        raise BadFork(f"run {run} ends at step {steps}, so it cannot be forked at step {at}; choose an earlier step")
    if (step := next((step for step, one in enumerate(ordered[:at], 1) if is_websocket(one)), None)) is not None:
        raise BadFork(
            f"step {step} of run {run} is a WebSocket, whose state cannot be continued; fork it at step {step - 1} or earlier"
        )
    later = build_recording(bundle, profiles, from_step=at + 1).index
    prefix, editor = prepare_overrides(bundle, overrides, profiles, until_step=at)
    marks = _checkpoint_marks(ordered[:at], profiles) if options.at is None else None
    hook = Fork(
        id=fork,
        parent=run,
        at=at,
        effects=options.effects,
        editor=editor,
        parent_script=Script(later),
        is_offline=options.is_offline,
        checkpoint_marks=marks,
    )
    # `on_miss` is never `live`: only the hook lets requests leave the record.
    return prefix, {
        "until_step": at,
        "edit_hook": editor,
        "miss_hook": hook,
        "records_answers": True,
        "on_miss": "fail",
    }


def _checkpoint_marks(exchanges: Iterable[Exchange], profiles: Profiles) -> tuple[bytes, ...]:
    """The parts of model answers that a request repeats when it continues from them, latest first."""
    found: dict[bytes, None] = {}
    for call in (derive_call(exchange, profiles) for exchange in reversed(list(exchanges))):
        texts = (
            [call.text[:_TEXT_MARK_LENGTH]]
            if call.kind == "model" and call.text and len(call.text) >= _SHORTEST_MARK
            else []
        )
        ids = [name for name in created_ids(call) if len(name) >= _SHORTEST_MARK]
        found |= dict.fromkeys(dumps(text)[1:-1] for text in (*ids, *texts))
        if len(found) >= _MARKS_KEPT:
            break
    return tuple(found)


def blocked_answer(request: Request, *, run: str, fork: str) -> Answer:
    """The refusal of a request that must not go live. No SDK retries it."""
    route = route_request(request)
    target = f"{route.method} {route.host}{shorten_pointer(route.path)}"
    detail = (
        f"{target} is not in the recorded part of this fork and may change something at {route.host},"
        f" so it was not sent. To let it go live: playhead fork … --side-effects '{route.method} {route.host}=allow'; to answer it from"
        f" later steps of the record: --side-effects serve-recorded."
    )
    members: dict[str, Json] = {
        "type": "urn:playhead:problem:blocked",
        "title": "Blocked by the fork's policy for side effects",
        "status": BLOCKED_STATUS,
        "detail": detail,
        "instance": f"urn:playhead:fork:{fork}",
        "error": {"type": "fork_blocked", "code": "blocked", "message": detail},
    }
    answer = refusal_answer(
        request,
        status=BLOCKED_STATUS,
        reason="Forbidden",
        members=members,
        message=detail,
        source=source_header("miss", run=run),
    )
    return replace(answer, recorded_outcome="refused")
