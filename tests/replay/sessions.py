"""Make the session of a replay and ask it."""

import json
from typing import Any

from calls.keys.profile import Profiles
from calls.model import Exchange, Request
from replay.answer import Answer
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from store.bundle.bundle import Bundle
from tests.replay.strategies import (
    PROFILES,
    run_of,
)


def session_of(
    *exchanges: Exchange, bundle: Bundle | None = None, profiles: Profiles = PROFILES, **options: Any
) -> Session:
    ready = build_recording(
        bundle or run_of(*exchanges),
        profiles,
        from_step=options.get("from_step", 1),
        until_step=options.get("until_step"),
    )
    return Session("replay-1", ready, ReplayOptions(**options), lambda _: None)


async def answer_request(session: Session, request: Request) -> Answer:
    answer = await session.answer(request)
    assert answer is not None
    return answer


async def miss_request(session: Session, request: Request) -> dict[str, Any]:
    answer = await answer_request(session, request)
    assert answer.status == 424
    problem: dict[str, Any] = json.loads(answer.body)
    return problem
