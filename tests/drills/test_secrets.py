"""Secrets planted wherever a call can carry one are found nowhere afterwards: not in spool, tables, logs, bundles, output."""

import asyncio
import gzip
import hashlib
import json
import signal
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.drills.leaks import files, find_leaks, tables
from tests.drills.up_processes import RunningUp, environment, get, save_bundle, up
from tests.support.service import command
from tests.support.wire import Upstream, read_request, serving

HOST = "api.openai.com"
CANARY = "dandelion"
"""No secret: where a scan does not find it, the scan is blind."""


def made_up(place: str) -> str:
    """A key that was never valid, another one for each place."""
    return "sk-proj-" + hashlib.sha256(place.encode()).hexdigest()[:40]


PLACES = (
    *("proxy password", "header", "custom header", "cookie", "query", "body", "prompt", "gzip request"),
    *("answer", "set-cookie", "location", "cut in pieces", "gzip answer", "basic"),
)
SECRETS = {place: made_up(place) for place in PLACES}


def request_with_secrets(path: str) -> dict[str, object]:
    """One request with a secret in each of its parts."""
    prompt = f"{CANARY}, my key is {SECRETS['prompt']} and that is that"
    body = {"model": "gpt-4o", "api_key": SECRETS["body"], "messages": [{"role": "user", "content": prompt}]}
    headers = {
        "Authorization": f"Bearer {SECRETS['header']}",
        "X-Custom": SECRETS["custom header"],
        "Cookie": f"session={SECRETS['cookie']}",
        "Content-Type": "application/json",
    }
    return {"url": f"https://{HOST}{path}", "params": {"api_key": SECRETS["query"]}, "json": body, "headers": headers}


def asked_in_gzip(path: str) -> dict[str, object]:
    """A compressed request."""
    body = gzip.compress(json.dumps({"model": "gpt-4o", "messages": [], "user": SECRETS["gzip request"]}).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    return {"url": f"https://{HOST}{path}", "content": body, "headers": headers, "auth": ("me", SECRETS["basic"])}


def chunk(content: str) -> bytes:
    """One event of a streamed answer."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "gpt-4o", "choices": [{"index": 0, "delta": {}}]}
    chunk["choices"] = [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    return f"data: {json.dumps(chunk)}\n\n".encode()


def whole(content: str) -> bytes:
    """An answer that is not streamed."""
    message = {"role": "assistant", "content": content}
    answer = {"id": "c", "object": "chat.completion", "model": "gpt-4o", "choices": [{"index": 0, "message": message}]}
    return json.dumps(answer).encode()


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An upstream that says what it was told, and more."""
    while True:
        head, _ = await read_request(reader)
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if path.endswith(b"/stream"):
            await _stream_cut_secret(writer)
        elif path.endswith(b"/gzip"):
            body = gzip.compress(whole(f"{CANARY} {SECRETS['gzip answer']}"))
            _send(writer, body, "Content-Encoding: gzip\r\n")
        else:
            more = f"Set-Cookie: id={SECRETS['set-cookie']}; Path=/\r\nLocation: /next?token={SECRETS['location']}\r\n"
            _send(writer, whole(f"{CANARY}: I will keep {SECRETS['answer']} to myself"), more)
        await writer.drain()


def _send(writer: asyncio.StreamWriter, body: bytes, more: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _stream_cut_secret(writer: asyncio.StreamWriter) -> None:
    """Events of which one is cut, by the network, in the midst of a secret; each piece a chunk of its own."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    event = chunk(f"{CANARY} {SECRETS['cut in pieces']} ")
    cut = event.index(b"sk-proj") + 15
    for piece in (chunk("so "), event[:cut], event[cut:], b"data: [DONE]\n\n"):
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
    writer.write(b"0\r\n\r\n")


async def send_requests(processes: RunningUp, *requests: Mapping[str, object]) -> list[httpx.Response]:
    """Ask them one after the other, through the worker."""
    trust = ssl.create_default_context(cafile=processes.ready["ca"])
    proxy = f"http://night:{SECRETS['proxy password']}@127.0.0.1:{processes.port}"
    async with httpx.AsyncClient(timeout=60, proxy=proxy, verify=trust, trust_env=False) as client:
        return [await client.post(**request) for request in requests]  # type: ignore[arg-type] # built just above


REQUESTS = (
    request_with_secrets("/v1/chat/completions"),
    request_with_secrets("/v1/chat/completions/stream"),
    asked_in_gzip("/v1/gzip"),
)


@pytest.mark.slow
async def test_no_planted_secret_reaches_a_disk_or_a_screen(data_with_postgres: Path) -> None:
    upstream = Upstream()
    async with serving(answering, upstream=upstream):
        config = f'[upstreams]\n"{HOST}" = "http://127.0.0.1:{upstream.port}"\n'
        async with up(data_with_postgres, config=config) as processes:
            processes.store_server.kill(signal.SIGSTOP)
            answers = await send_requests(processes, *REQUESTS)
            in_spool = [(f"spool {name}", data) for name, data in files(data_with_postgres / "spool")]
            processes.store_server.kill(signal.SIGCONT)
            bundle = await saved_when_settled(processes, data_with_postgres.with_suffix(".jsonl"))
            stored = await tables(f"postgresql:///postgres?host={data_with_postgres / 'pg'}&user=playhead")
            printed = await output(processes)
            calls = (await get(processes.api, "/runs/night/calls", fields="*"))["items"]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert SECRETS["answer"] in answers[0].text, "the agent itself must get what was sent"
    assert SECRETS["cut in pieces"] in answers[1].text
    assert SECRETS["gzip answer"] in answers[2].text
    assert len(calls) == 3
    for places in (in_spool, stored, [("bundle", bundle.read_bytes())], printed):
        assert find_leaks({"canary": CANARY}, places), f"the scan is blind: {[place for place, _ in places]}"
    found = find_leaks(
        SECRETS, [*in_spool, *stored, ("bundle", bundle.read_bytes()), *printed, *files(data_with_postgres)]
    )
    assert not found, "\n".join(found)

    # On another machine, whose placeholders are made with another key; and one question that was never asked.
    elsewhere = data_with_postgres.with_name("ci")
    unasked = request_with_secrets("/v1/chat/completions/never")
    async with up(elsewhere, "--part", "proxy", "--mode", "replay", "--replay", str(bundle)) as processes:
        again = await send_requests(processes, *REQUESTS, unasked)
    assert [answer.status_code for answer in again] == [200, 200, 200, 424]
    assert not find_leaks(SECRETS, [(f"answer {n}", answer.content) for n, answer in enumerate(again)])
    found = find_leaks(SECRETS, files(elsewhere))
    assert not found, "\n".join(found)


@pytest.mark.slow
async def test_a_secret_that_a_model_spells_out_over_events_is_put_together_nowhere(
    data: Path, database_url: str
) -> None:
    secret = made_up("spelt")

    async def spelling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        pieces = [chunk(f"{CANARY} "), *(chunk(secret[n : n + 7]) for n in range(0, len(secret), 7)), chunk(" it is")]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"".join(pieces) + b"data: [DONE]\n\n")
        await writer.drain()

    upstream = Upstream()
    async with serving(spelling, upstream=upstream):
        config = f'[upstreams]\n"{HOST}" = "http://127.0.0.1:{upstream.port}"\n'
        async with up(data, "--database-url", database_url, config=config) as processes:
            await send_requests(processes, request_with_secrets("/v1/chat/completions"))
            bundle = await saved_when_settled(processes, data.with_suffix(".jsonl"))
            stored = await tables(database_url)
            shown = json.dumps((await get(processes.api, "/runs/night/calls", fields="*"))["items"]).encode()
    places = [*stored, ("bundle", bundle.read_bytes()), ("calls", shown)]
    assert find_leaks({"canary": CANARY}, places), "the scan is blind"
    found = find_leaks({"spelt": secret}, places)
    assert not found, "\n".join(found)


async def saved_when_settled(processes: RunningUp, path: Path) -> Path:
    await get(processes.api, "/runs/night", settled="true")
    return await save_bundle(processes.api, "night", path)


async def output(processes: RunningUp) -> list[tuple[str, bytes]]:
    """What the commands that look at recordings print."""
    calls = (await get(processes.api, "/runs/night/calls", fields="*"))["items"]
    found = []
    for line in (
        ("ls", "--json"),
        ("show", "night"),
        ("show", calls[0]["id"]),
        ("show", calls[1]["id"], "--json"),
        ("explain", calls[0]["id"]),
    ):
        process = await asyncio.create_subprocess_exec(
            *command(line[0], "--data", str(processes.data), *line[1:]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(),
        )
        found.append((" ".join(line), (await process.communicate())[0]))
    return found
