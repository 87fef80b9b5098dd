"""A claimed run accepts requests only with its token, however the client names the run."""

import asyncio
import base64
from pathlib import Path

import httpx
import pytest

from proxy.wire.access import Access
from store.access.api_tokens import ApiTokens
from store.run_tokens import RunTokens
from tests.support.wire import MemoryRecorder, Worker, answering, api_test_at, open_worker

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
RUN = "team:night.1"


@pytest.fixture
def tokens(tmp_path: Path) -> RunTokens:
    """Tokens with `RUN` claimed."""
    place = tmp_path / "claims"
    place.mkdir()
    made = RunTokens(b"k" * 32, place)
    made.claim(RUN)
    return made


def credentials(run: str, token: str) -> str:
    return f"Proxy-Authorization: Basic {base64.b64encode(f'{run}:{token}'.encode()).decode()}"


def request(*fields: str, line: str = "GET http://api.test/x HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: api.test", *fields]).encode() + b"\r\n\r\n"


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Return head and body of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(int(length.partition(b":")[2]))


async def send_request(worker: Worker, *fields: str, line: str = "GET http://api.test/x HTTP/1.1") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(request(*fields, line=line))
    try:
        return await answer(reader)
    finally:
        writer.close()


async def test_a_claimed_run_takes_requests_with_its_token_alone(tmp_path: Path, tokens: RunTokens) -> None:
    recorder = MemoryRecorder()
    other = tokens.token("other")
    async with (
        answering(OK) as upstream,
        open_worker(
            tmp_path,
            recorder,
            access=Access(run_tokens=tokens),
            upstreams=api_test_at(upstream),
        ) as worker,
    ):
        for fields in (
            [credentials(RUN, "x")],
            [credentials(RUN, other)],
            [f"X-Playhead-Run: {RUN}"],
            [credentials("other", other), f"X-Playhead-Bound-Run: {RUN}"],
            [f"baggage: playhead.run={RUN}"],
            [f"Session-Id: {RUN}"],
            [credentials(f"{RUN}:g2", "x")],
            [credentials(f"{RUN}:live-1a", "x")],
        ):
            answer = await send_request(worker, *fields)
            assert answer.startswith(b"HTTP/1.1 403"), fields
            assert b'"code": "run_claimed"' in answer, fields
            assert f"playhead token --run {RUN}".encode() in answer, fields
        assert not recorder.exchanges
        assert not recorder.gaps
        assert not upstream.heads
        for fields in (
            [credentials(RUN, tokens.token(RUN))],
            [credentials("other", tokens.token(RUN)), f"X-Playhead-Bound-Run: {RUN}"],
            [credentials(f"{RUN}:g2", tokens.token(RUN))],
            [credentials(f"{RUN}:g", "x")],
            [credentials("other", "x")],
            [],
        ):
            assert (await send_request(worker, *fields)).startswith(b"HTTP/1.1 200"), fields
        assert worker.config.counts["errors/run_claimed"] == 8
    named = [exchange.begun["run"] for exchange in recorder.exchanges[:5]]
    assert named == [RUN, RUN, f"{RUN}:g2", f"{RUN}:g", "other"]


@pytest.mark.parametrize("http2", [False, True])
async def test_within_tls_it_is_the_same(tmp_path: Path, tokens: RunTokens, http2: bool) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, access=Access(run_tokens=tokens), upstream=answering(OK)) as worker:
        own = tokens.token(RUN)
        proxies = [worker.proxy("other"), worker.proxy("other", own), worker.proxy("team%3Anight.1", own)]
        for proxy, status in zip(proxies, (403, 200, 200), strict=True):
            async with httpx.AsyncClient(timeout=60, proxy=proxy, verify=worker.tls, http2=http2) as client:
                got = await client.get("https://api.test/x", headers={"X-Playhead-Bound-Run": RUN})
                assert got.status_code == status
                assert status == 200 or got.json()["error"]["code"] == "run_claimed"
        with pytest.raises(httpx.ProxyError, match="403"):
            async with httpx.AsyncClient(timeout=60, proxy=worker.proxy("team%3Anight.1"), verify=worker.tls) as client:
                await client.get("https://api.test/x")
    assert [exchange.begun["run"] for exchange in recorder.exchanges] == [RUN] * 2


async def test_a_claim_holds_on_connections_that_are_older(tmp_path: Path, tokens: RunTokens) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, access=Access(run_tokens=tokens), upstream=answering(OK)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        for status in (b"200", b"200", b"403"):
            writer.write(request("X-Playhead-Run: late"))
            assert (await answer(reader)).startswith(b"HTTP/1.1 " + status)
            if len(recorder.exchanges) == 2:
                tokens.claim("late")
        writer.close()
        tokens.release("late")
        assert (await send_request(worker, "X-Playhead-Run: late")).startswith(b"HTTP/1.1 200")
    assert len(recorder.exchanges) == 3


async def test_a_token_that_is_revoked_records_nothing_more_on_open_connections(tmp_path: Path) -> None:
    recorder, api_tokens = MemoryRecorder(), ApiTokens(tmp_path / "tokens.json")
    token, _ = api_tokens.create("web", "web", ["record"], 1)
    async with open_worker(tmp_path, recorder, access=Access(api_tokens=api_tokens), upstream=answering(OK)) as worker:
        proxy = worker.proxy("night", token)
        async with (
            httpx.AsyncClient(timeout=60, proxy=proxy, verify=worker.tls) as one,
            httpx.AsyncClient(timeout=60, proxy=proxy, verify=worker.tls, http2=True) as two,
        ):
            assert [(await each.get("https://api.test/x")).status_code for each in (one, two)] == [200, 200]
            api_tokens.revoke("web", 2)
            for each in (one, two):
                got = await each.get("https://api.test/x")
                assert (got.status_code, got.json()["error"]["code"]) == (403, "token_refused")
    assert [exchange.begun["run"] for exchange in recorder.exchanges] == ["web/night"] * 2


async def test_a_token_that_has_ended_is_said_to_be_the_reason(tmp_path: Path) -> None:
    """Without a tunnel, in a new tunnel, and in a path: nobody looks for a recording token that nothing asks for."""
    api_tokens = ApiTokens(tmp_path / "tokens.json")
    token, _ = api_tokens.create("web", "web", ["record"], 1)
    api_tokens.revoke("web", 2)
    recorder, access = MemoryRecorder(), Access(api_tokens=api_tokens)
    async with open_worker(tmp_path, recorder, access=access, upstream=answering(OK)) as worker:
        for line in ("GET http://api.test/x HTTP/1.1", "CONNECT api.test:443 HTTP/1.1"):
            refusal = await send_request(worker, credentials("night", token), line=line)
            assert refusal.startswith(b"HTTP/1.1 407 "), line
            assert b"token_refused" in refusal
            assert b"was revoked" in refusal
    async with (
        open_worker(tmp_path, recorder, access=access, reverse="http://127.0.0.1:9") as worker,
        httpx.AsyncClient(timeout=60, base_url=worker.url) as client,
    ):
        got = await client.get(f"/~night~{token}/x")
        assert (got.status_code, got.json()["error"]["code"]) == (401, "token_refused")
    assert not recorder.exchanges


async def test_where_a_token_is_asked_for_that_of_any_run_opens(tmp_path: Path, tokens: RunTokens) -> None:
    async with open_worker(
        tmp_path, MemoryRecorder(), access=Access(run_tokens=tokens, tokens=("recording",)), upstream=answering(OK)
    ) as worker:
        own = tokens.token("any")
        for token, status in (("recording", b"200"), (own, b"200"), (own[:-1], b"407"), ("x.y", b"407"), ("", b"407")):
            answer = await send_request(worker, credentials("free", token))
            assert answer.startswith(b"HTTP/1.1 " + status), token


async def test_the_worker_of_one_command_takes_its_own_credentials_alone(tmp_path: Path, tokens: RunTokens) -> None:
    recorder = MemoryRecorder()
    async with open_worker(
        tmp_path, recorder, access=Access(run_tokens=tokens, only_run=RUN), upstream=answering(OK)
    ) as worker:
        for run, token, status in (("free", "x", b"403"), (RUN, "x", b"403"), ("free", tokens.token(RUN), b"200")):
            assert (await send_request(worker, credentials(run, token))).startswith(b"HTTP/1.1 " + status), run


async def test_in_reverse_the_token_stands_in_the_path(tmp_path: Path, tokens: RunTokens) -> None:
    async with (
        answering(OK) as upstream,
        open_worker(
            tmp_path,
            MemoryRecorder(),
            access=Access(run_tokens=tokens),
            reverse=f"http://127.0.0.1:{upstream.port}",
        ) as worker,
        httpx.AsyncClient(timeout=60, base_url=worker.url) as client,
    ):
        statuses = [
            (await client.get(f"{prefix}/x")).status_code
            for prefix in (f"/~{RUN}", f"/~{RUN}~x", f"/~{RUN}~{tokens.token(RUN)}", "/~free")
        ]
    assert statuses == [403, 403, 200, 200]
