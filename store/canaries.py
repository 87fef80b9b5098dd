"""Keep what is known of canaries between their shots (`calls.canary`), and tell what it says."""

from collections.abc import Mapping
from typing import Annotated, Final

import asyncpg
import msgspec

from calls.canary.canary_state import (
    CanaryRules,
    CanaryState,
    ChangeFound,
    add_answer,
    begin_canary,
    begin_levels_anew,
    end_shot,
    note_change,
)
from calls.canary.canary_verdict import find_changes, judge_canary, shown_evidence
from calls.canary.observation import Observation
from store.database.connection import Database
from store.query.rest_shapes import Shape, rfc3339

MOST_CANARIES: Final = 1000
"""Canaries of a project."""


class ShotAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer to a pinned call."""

    pin: str
    answer: Observation


class TrafficChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another model that began to answer to a pinned call's model in ordinary traffic."""

    reason: str
    example: str | None = None


class Shot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one shot of a canary has found."""

    rules: CanaryRules
    run: str | None = None
    answers: tuple[ShotAnswer, ...] = ()
    failed: int = 0
    problem: str | None = None
    traffic: TrafficChange | None = None
    hints: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=500)], ...], msgspec.Meta(max_length=20)] = ()
    """What ordinary traffic shows that is no change by itself."""


class TooManyCanaries(ValueError):
    """A project has as many canaries as it may have."""


class Canaries:
    """The canaries of a project."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def load(self) -> dict[str, CanaryState]:
        """Load all of them, by name."""
        async with self._database.connection() as connection:
            return _states(await connection.fetch(ALL, self._project))

    async def add_shot(self, name: str, shot: Shot, at: int) -> tuple[dict[str, CanaryState], bool]:
        """Add a shot. Return the states of all canaries, and whether this one has changed just now. Raises TooManyCanaries."""
        async with self._database.connection() as connection, connection.transaction():
            # Whether one has changed depends on all of them, so two shots are added one after the other.
            await connection.execute(LOCK, self._project)
            states = _states(await connection.fetch(ALL, self._project))
            if name not in states and len(states) >= MOST_CANARIES:
                raise TooManyCanaries
            before = states.get(name)
            was_known = before is not None and before.changed is not None and _can_go_on(before.rules, shot.rules)
            states = find_changes({**states, name: _with_shot(before, shot, at)}, at)
            for changed in states:
                await self._store(connection, changed, states[changed], at)
        return states, states[name].changed is not None and not was_known

    async def remove(self, name: str) -> bool:
        """Forget a canary, so that it begins anew. Return whether it was known."""
        async with self._database.connection() as connection:
            done: str = await connection.execute(REMOVE, self._project, name)
        return done != "DELETE 0"

    async def _store(self, connection: asyncpg.Connection, name: str, state: CanaryState, at: int) -> None:
        await connection.execute(STORE, self._project, name, at, msgspec.json.encode(state))


def _states(rows: list[asyncpg.Record]) -> dict[str, CanaryState]:
    return {row["name"]: msgspec.json.decode(row["state"], type=CanaryState) for row in rows}


def _with_shot(state: CanaryState | None, shot: Shot, at: int) -> CanaryState:
    if state is None or not _can_go_on(state.rules, shot.rules):
        state = begin_canary(shot.rules, at)
    state = msgspec.structs.replace(begin_levels_anew(state, shot.rules), hints=shot.hints)
    if shot.traffic is not None:
        traffic = ChangeFound(at=at, stage="traffic", reason=shot.traffic.reason, example=shot.traffic.example)
        state = note_change(state, traffic)
    for one in shot.answers:
        state = add_answer(state, one.pin, one.answer, at)
    return end_shot(state, at, run=shot.run, failed=shot.failed, problem=shot.problem)


def _can_go_on(old: CanaryRules, now: CanaryRules) -> bool:
    """Whether what was counted by the old rules counts by the new ones."""
    return (old.references, old.baseline) == (now.references, now.baseline)


def canary_shape(name: str, state: CanaryState, canaries: int) -> Shape:
    """A canary as the REST interface shows it."""
    verdict = judge_canary(state, canaries)
    return {
        "name": name,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "level": verdict.level,
        "rate_before": verdict.rate_before,
        "rate_since": verdict.rate_since,
        "effect": verdict.effect,
        "answers_before": verdict.answers_before,
        "answers_since": verdict.answers_since,
        "evidence": shown_evidence(verdict.evidence),
        "calls_needed": verdict.calls_needed,
        "calls_to_find": verdict.calls_to_find,
        "changed_at": rfc3339(state.changed.at) if state.changed else None,
        "stage": state.changed.stage if state.changed else None,
        "examples": _examples(state),
        "models": sorted({model for forms in state.pins.values() for model in forms.models}),
        "reference_answers": {pin: forms.answers for pin, forms in sorted(state.pins.items())},
        "reference_exchanges": {pin: list(forms.exchanges) for pin, forms in sorted(state.pins.items())},
        "hints": list(state.hints),
        "rules": msgspec.to_builtins(state.rules),
        "calls": state.calls,
        "failed": state.failed,
        "shots": state.shots,
        "began_at": rfc3339(state.began_at),
        "last_at": rfc3339(state.last_at) if state.last_at is not None else None,
        "last_run": state.last_run,
        "problem": state.problem,
    }


def _examples(state: CanaryState) -> Shape:
    """An exchange with a reference answer, and one with an answer that differs."""
    reference = next((forms.example for forms in state.pins.values() if forms.example), None)
    return {"reference": reference, "differs": (state.changed.example if state.changed else None) or state.example}


def canary_metrics(states: Mapping[str, Mapping[str, CanaryState]]) -> list[str]:
    """The lines for Prometheus: by project, how many canaries have each verdict, and the calls that they made."""
    lines = ["# TYPE playhead_canaries gauge"]
    for project, ours in sorted(states.items()):
        verdicts = [judge_canary(state, len(ours)).verdict for state in ours.values()]
        lines += [
            f'playhead_canaries{{project="{project}",verdict="{verdict}"}} {verdicts.count(verdict)}'
            for verdict in ("changed", "unchanged", "cannot tell")
        ]
    lines.append("# TYPE playhead_canary_calls_total counter")
    lines += [
        f'playhead_canary_calls_total{{project="{project}"}} {sum(state.calls for state in ours.values())}'
        for project, ours in sorted(states.items())
    ]
    return lines if states else []


async def load_all_canaries(database: Database) -> dict[str, dict[str, CanaryState]]:
    """Load the canaries of all projects, by project and name."""
    async with database.connection() as connection:
        rows = await connection.fetch(ALL_PROJECTS, MOST_CANARIES)
    found: dict[str, list[asyncpg.Record]] = {}
    for row in rows:
        found.setdefault(row["project"], []).append(row)
    return {project: _states(ours) for project, ours in found.items()}


LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('canaries ' || $1, 0))"

ALL = "SELECT name, state FROM canaries WHERE project = $1 ORDER BY name"

ALL_PROJECTS = "SELECT project, name, state FROM canaries ORDER BY project, name LIMIT $1"

STORE = """
INSERT INTO canaries (project, name, updated_at, state) VALUES ($1, $2, $3, $4)
ON CONFLICT (project, name) DO UPDATE SET updated_at = excluded.updated_at, state = excluded.state
"""

REMOVE = "DELETE FROM canaries WHERE project = $1 AND name = $2"
