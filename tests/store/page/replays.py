"""Replays with requests that differ from the recording, and their reports."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from calls.events import ReplayReported
from calls.model import Body, Exchange
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from store.bundle.bundle import Bundle, Entry
from store.ingest.batch_writer import BatchWriter
from tests.store.page.browser import PageServer
from tests.store.running_store import PROFILES


async def store_report(
    server: PageServer,
    name: str,
    exchanges: Sequence[Exchange],
    edit: Callable[[str], str],
    project: str = "default",
) -> dict[str, Any]:
    """Replay a run with `edit` in place of the last message of each prompt, and store the report."""
    run = exchanges[0].run
    bundle = Bundle(run={"id": run}, profiles="", entries=[Entry(exchange=one) for one in exchanges])
    session = Session(name, build_recording(bundle, PROFILES), ReplayOptions(), lambda _: None)
    for exchange in exchanges:
        body = exchange.request.body
        changed = json.loads(body.data) if body.data else None
        if changed and "messages" in changed:
            last = changed["messages"][-1]
            last["content"] = edit(last["content"])
            data = json.dumps(changed).encode()
            await session.answer(replace(exchange.request, body=Body(data=data, size=len(data))))
    report: dict[str, Any] = json.loads(json.dumps(session.report()))
    writer = BatchWriter(server.database, project=project, profile=PROFILES.digest, signal=server.running_store.signal)
    await writer.write_batch((), replays=[ReplayReported(name, json.dumps(report).encode())])
    return report
