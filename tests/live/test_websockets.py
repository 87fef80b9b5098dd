"""WebSockets end to end: official clients through a real worker, recorded, and replayed with the upstream gone."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme

from tests.live import sockets
from tests.support.service import command, keeping, surroundings
from tests.support.shells import started_interpreter

# Any of them may be the first of its worker, and then records what all replay.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]

CLIENT = Path(__file__).parent / "clients" / "sockets.py"

IMPORTED = (
    "openai",
    "openai.resources.realtime.realtime",
    "openai.resources.responses.responses",
    "websockets.asyncio.client",
    "websockets.sync.client",
    "google.genai.live",
    "google.genai.types",
)
"""What clients import, or their SDKs with the first call."""


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Home:
    """A data directory and a configuration."""

    path: Path
    python: str
    """What starts clients: an interpreter, or a fork of one that has imported an SDK."""

    recorded: dict[str, Any] = field(default_factory=dict)
    """What clients were told by upstreams that are gone, by the run."""

    async def playhead(self, *arguments: str, **env: str) -> EndedCommand:
        line = command(*arguments[:1], "--data", str(self.path / "data"), *arguments[1:])
        around = surroundings()
        process = await asyncio.create_subprocess_exec(
            *line,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.path,
            env=around | env,
        )
        out, err = await asyncio.wait_for(process.communicate(), 250)
        return EndedCommand(process.returncode or 0, out.decode(), err.decode())

    async def client(self, how: str, run: str, *what: str, **env: str) -> EndedCommand:
        runs = ("--run", run) if how == "record" else (run,)
        return await self.playhead(how, *runs, "--", self.python, str(CLIENT), *what, **env)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> AsyncIterator[Home]:
    path = tmp_path_factory.mktemp("sockets")
    with started_interpreter(Path(sys.executable), IMPORTED) as python:
        async with keeping(path / "data", module_database_url):
            yield Home(path, str(python))


async def record_client(home: Home, what: str) -> Any:
    """What a client is told by the upstream, which is gone afterwards. The run has its name, with dashes."""
    run = what.replace(",", "-")
    if what in home.recorded:
        return home.recorded[what]
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.cert_pem.write_to_path(str(home.path / "upstream.pem"))
    with sockets.standing(context) as port:
        lines = "\n".join(f'"{host}" = "{origin}"' for host, origin in sockets.origins(port).items())
        text = f'upstream_ca = "{home.path / "upstream.pem"}"\n[upstreams]\n{lines}\n'
        (home.path / "playhead.toml").write_text(text)
        home.recorded[what] = (await home.client("record", run, what)).answer
    return home.recorded[what]


ALL = "realtime,responses,plain,live"
RUN_OF_ALL = ALL.replace(",", "-")
"""Recorded once, in one run: to start an SDK and a worker takes longer than what is said."""


async def test_clients_get_the_same_answer_when_the_upstream_is_gone(home: Home) -> None:
    recording = await record_client(home, ALL)
    again = await home.client("replay", RUN_OF_ALL, ALL, STEP="11")
    print(again.err)
    for what, before, now in zip(ALL.split(","), recording, again.answer, strict=True):
        assert now == before, what
    assert "4 served, 0 missed, 0 live, 0 unused" in again.err


async def test_a_different_message_is_located_for_the_client_and_in_the_report(home: Home) -> None:
    await record_client(home, ALL)
    missed = await home.client("replay", RUN_OF_ALL, "realtime", "Be long.")
    assert missed.code == 3
    assert "4424" in missed.err
    assert "playhead: replay_miss: message 1 is not the recorded one differs at /session/instructions" in missed.err
    assert "0 served, 1 missed, 0 live, 3 unused" in missed.err
    assert "- 'Be brief.'" in missed.err
    assert "+ 'Be long.'" in missed.err


async def test_a_client_that_leaves_early_has_not_replayed_its_run(home: Home) -> None:
    await record_client(home, ALL)
    # What the other clients said is unused.
    left = await home.playhead(
        "replay", RUN_OF_ALL, "--allow-unused", "--", home.python, str(CLIENT), "responses", ONLY="1"
    )
    assert left.code == 1
    assert "client_left" in left.err


async def test_of_sockets_that_are_opened_alike_what_is_said_decides(home: Home) -> None:
    recording = await record_client(home, "at_once")
    for order in ("turned", "straight"):
        again = await home.client("replay", "at_once", "at_once", order)
        assert again.answer == recording == [["first", "second"]]
        assert "2 served, 0 missed, 0 live, 0 unused" in again.err


async def test_a_session_is_shown_as_a_call(home: Home) -> None:
    await record_client(home, ALL)
    exported = await home.playhead("export", RUN_OF_ALL, "-o", str(home.path / "talk.jsonl"))
    assert exported.code == 0, exported.err
    (call,) = [
        line["call"]
        for line in map(json.loads, (home.path / "talk.jsonl").read_text().splitlines())
        if line.get("call", {}).get("dialect") == "openai_realtime"
    ]
    assert (call["dialect"], call["provider"], call["operation"]) == ("openai_realtime", "openai", "realtime")
    assert call["text"] == "heard 0 bytes\nheard 40 bytes"
    assert [(one["name"], one["arguments"]) for one in call["tool_calls"]] == [("look", {"at": "clock"})] * 2
    assert (call["usage"]["input_tokens"], call["usage"]["output_tokens"], call["complete"]) == (20, 10, True)
    assert (call["model_requested"], call["model_returned"]) == ("gpt-realtime", "gpt-realtime-2025-08-28")
    assert (home.path / "talk.jsonl").read_text().count("sk-proj-") == 0
