"""Answers that broke off, and agents that left: recorded as what they were, and broken off again at the same byte."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.ledger import Ledger, name_of
from tests.drills.up_processes import bundle, compare_when_sound, save_bundle, up
from tests.drills.upstream import HOST, pieces, upstream
from tests.support.service import command

BROKEN = {
    "/reset?pieces=8": 4,
    "/unended?pieces=8": 4,
    "/short?size=5000": 2500,
    "/silent?pieces=1": 0,
    "/stream?pieces=3": 3,
}
"""Targets, and how much of them comes: events, or bytes of a body of known length."""


@pytest.mark.slow
async def test_what_breaks_off_breaks_off_again_at_the_same_byte(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        up(data, "--database-url", database_url, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        agent = agent_group.agent("agent")
        for target in BROKEN:
            await agent.ask(target)
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
        recording = await save_bundle(processes.api, "agent", data.with_suffix(".jsonl"))
        exchanges = (await bundle(processes.api, "agent")).exchanges
    assert comparison.sound, str(comparison)
    assert not comparison.shorter, str(comparison)
    outcomes = ["server_closed"] * (len(BROKEN) - 1) + ["completed"]
    assert [exchange.outcome for exchange in exchanges] == outcomes
    assert [seen.end for seen in agent_group.ledger.seen] == ["cut"] * (len(BROKEN) - 1) + ["whole"]
    assert [len(seen.body) for seen in agent_group.ledger.seen] == [
        _size(*one, n) for n, one in enumerate(BROKEN.items())
    ]

    async with (
        up(data, "--part", "proxy", "--mode", "replay", "--replay", str(recording)) as processes,
        AgentGroup(processes.port) as again,
    ):
        agent = again.agent("agent")
        for target in BROKEN:
            await agent.ask(target)
    assert _as_seen(again.ledger) == _as_seen(agent_group.ledger)


LEAVER = """
import sys, urllib.request
answer = urllib.request.urlopen(f"http://{sys.argv[1]}/hold?pieces=10", timeout=60)
found = b""
while found.count(b"data:") < 5:
    found += answer.read1()
answer.fp.raw._sock.settimeout(1)
try:
    sys.exit(f"there is more than was recorded: {answer.read1()!r}")
except TimeoutError:
    pass  # it holds, as it should: now we leave, as in the recording
"""


@pytest.mark.slow
async def test_an_agent_that_leaves_is_recorded_as_that_and_may_leave_again(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        up(data, "--database-url", database_url, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        seen = await agent_group.agent("leaver").ask(
            "/hold?pieces=10", enough=lambda seen: seen.body.count(b"data:") == 5
        )
        async with asyncio.timeout(60):
            await source.wait_until_left(1)
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
        recording = await save_bundle(processes.api, "leaver", data.with_suffix(".jsonl"))
        (exchange,) = (await bundle(processes.api, "leaver")).exchanges
    assert comparison.sound, str(comparison)
    assert (exchange.outcome, exchange.is_truncated) == ("client_closed", False)
    assert exchange.response is not None
    assert exchange.response.body.data == seen.body == b"".join(pieces("/hold?pieces=10", name_of(exchange))[:5])

    report = data.with_suffix(".json")
    replay = command("replay", "--data", str(data), "--report", str(report), str(recording), "--")
    process = await asyncio.create_subprocess_exec(*replay, sys.executable, "-c", LEAVER, HOST)
    assert await process.wait() == 0
    assert json.loads(report.read_bytes())["verdict"] == "right"


def _size(target: str, count: int, number: int) -> int:
    sent = pieces(target, f"agent.{number}")
    return count if "size=" in target else len(b"".join(sent[:count]))


def _as_seen(ledger: Ledger) -> list[tuple[str, int | None, bytes, str]]:
    return [(seen.name, seen.status, seen.body, seen.end) for seen in ledger.seen]
