"""The corpus both ways through the whole service: recorded off a local upstream, then replayed with the upstream gone.

`pytest tests/corpus --corpus=all -s` takes every exchange, a plain run a spread sample. `--engine` says who records and
replays; without it the lane records and mitmproxy replays what it has recorded.
"""

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from calls.model import Exchange, Headers
from calls.proof.checkpoint import VerifierKey, parse_verifier_key
from store.bundle.bundle import read_bundle
from store.proof.bundle_proof import verify_bundle
from tests.support.corpus import HOP_BY_HOP, Cassette, RecordedExchange, cassettes
from tests.support.h1 import Line, Message, origin
from tests.support.service import Service, running

LEFT_OUT = HOP_BY_HOP | {"alt-svc", "playhead"}
"""What Playhead may change on the wire (design.md 4.7), and the header by which replay marks its answers."""

SAMPLE = 20
"""One cassette in so many is in the sample."""

ORDINAL = "x-corpus-ordinal"
"""By this header the local upstream knows which recorded response is meant."""

type Seen = tuple[int, tuple[tuple[str, str], ...], bytes]
"""Status, the headers that must not change, body."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_the_corpus_comes_back_byte_for_byte(
    request: pytest.FixtureRequest, data: Path, database_url: str
) -> None:
    tapes = cassettes() if request.config.getoption("corpus") == "all" else cassettes()[::SAMPLE]
    recorded = [exchange for tape in tapes for exchange in tape.exchanges]
    chosen = request.config.getoption("engine")
    recording, replaying = chosen or "lane", chosen or "mitmproxy"
    store = ("--database-url", database_url)

    def answer(asked: Message) -> Message:
        meant = recorded[int(asked.header(ORDINAL) or "")]
        return Message(
            status=meant.status, headers=meant.response_headers, body=meant.response_body, method=asked.method
        )

    async with (
        origin(answer) as url,
        running(data, *store, "--engine", recording, config=_upstreams(recorded, url)) as service,
    ):
        live = await _ask_all(service, tapes)
        counted = await _wait_for_counter(service, 'exchanges_total{outcome="completed"}', len(recorded))
        stored = [exchange for number in range(len(tapes)) for exchange in await _load_exchanges(service, number)]
    nowhere = _upstreams(recorded, "http://127.0.0.1:9")
    async with running(data, *store, "--engine", replaying, "--mode", "replay", config=nowhere) as service:
        again = await _ask_all(service, tapes)
        answered = await _wait_for_counter(service, 'answers_total{standing="replayed"}', len(recorded))

    for result, engine in (counted, recording), (answered, replaying):
        took = {to: result[f'playhead_proxy_connections_total{{to="{to}"}}'] for to in ("lane_http1", "mitmproxy")}
        assert [to for to, number in took.items() if number] == ["lane_http1" if engine == "lane" else engine]
    assert len(stored) == len(recorded)
    changed = [n for n, exchange in enumerate(recorded) if live[n] != _expected_response(exchange)]
    other = [n for n, exchange in enumerate(stored) if again[n] != _as_stored(exchange)]
    redacted = [n for n, exchange in enumerate(stored) if _as_stored(exchange) != live[n]]
    unsaid = [n for n in redacted if not stored[n].redactions]
    print(
        f"\n{len(recorded)} exchanges in {len(tapes)} runs: {len(recorded) - len(changed)} recorded unchanged, ", end=""
    )
    print(f"{len(recorded) - len(other)} replayed as stored, {len(redacted)} of them redacted")
    assert not changed, _names("changed on the wire", recorded, changed)
    assert not other, _names("replayed other than stored", recorded, other)
    assert not unsaid, _names("stored other than sent, with no redaction", recorded, unsaid)


async def _wait_for_counter(service: Service, counter: str, number: int) -> Mapping[str, float]:
    """What `/metrics` tells, as soon as this counter is there: workers tell it once a second."""

    def fetch() -> Mapping[str, float]:
        with _get_json(service, "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(n) for name, _, n in (line.rpartition(" ") for line in lines if line[0] != "#")}

    async with asyncio.timeout(60):
        while (result := await asyncio.to_thread(fetch))[f"playhead_proxy_{counter}"] != number:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.1)
    return result


def _upstreams(recorded: Sequence[RecordedExchange], url: str) -> str:
    hosts = sorted({exchange.host for exchange in recorded})
    return "[upstreams]\n" + "".join(f'"{host}" = "{url}"\n' for host in hosts)


async def _ask_all(service: Service, tapes: Sequence[Cassette]) -> list[Seen]:
    """Every exchange's answer, a few cassettes at a time, each cassette's requests one after the other."""
    trust = ssl.create_default_context(cafile=str(service.ca))
    starts = [sum(len(tape.exchanges) for tape in tapes[:number]) for number in range(len(tapes))]
    limit = asyncio.Semaphore(4)
    seen: dict[int, Seen] = {}

    async def ask(number: int) -> None:
        async with limit:
            seen.update(await _ask_run(service, number, starts[number], tapes[number], trust))

    async with asyncio.TaskGroup() as group:
        for number in range(len(tapes)):
            group.create_task(ask(number))
    return [seen[n] for n in sorted(seen)]


async def _ask_run(
    service: Service, number: int, start: int, tape: Cassette, trust: ssl.SSLContext
) -> Mapping[int, Seen]:
    lines: dict[str, Line] = {}
    seen: dict[int, Seen] = {}
    for ordinal, exchange in enumerate(tape.exchanges, start):
        parts = urlsplit(exchange.url)
        place = f"{parts.scheme}://{parts.netloc}"
        if place not in lines:
            lines[place] = await Line.open(service.proxy_port, place, run=f"tape-{number}", trust=trust)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = (*exchange.request_headers, (ORDINAL, str(ordinal)))
        got = await lines[place].ask(exchange.method, target, headers, exchange.request_body)
        seen[ordinal] = (got.status, _comparable(got.headers), got.body)
    for line in lines.values():
        line.close()
    return seen


async def _load_exchanges(service: Service, number: int) -> tuple[Exchange, ...]:
    """The run's exchanges as the service stored them, by way of its bundle, which proves that it is as it was recorded."""

    def fetch() -> tuple[bytes, dict[str, Any]]:
        base = f"/v1/runs/tape-{number}"
        with _get_json(service, f"{base}/calls?settled=true&limit=1") as settled:
            settled.read()
        with _get_json(service, f"{base}/bundle") as answer:
            bundle = bytes(answer.read())
        with _get_json(service, f"{base}/verify") as answer:
            return bundle, json.load(answer)

    bundle, verified = await asyncio.to_thread(fetch)
    lines = bundle.splitlines(keepends=True)
    exchanges = tuple(read_bundle(lines).exchanges)
    assert verified["findings"] == []
    assert (verified["verdict"], verified["findings"], verified["proven"]) == ("verified", [], len(exchanges))
    assert verify_bundle(lines, await asyncio.to_thread(_load_keys, service)).verdict == "verified"
    return exchanges


@cache
def _load_keys(service: Service) -> list[VerifierKey]:
    with _get_json(service, "/v1/checkpoint") as answer:
        return [parse_verifier_key(key) for key in json.load(answer)["keys"]]


def _get_json(service: Service, path: str) -> Any:
    return urllib.request.urlopen(urllib.request.Request(f"{service.api}{path}", headers=service.headers))


def _expected_response(exchange: RecordedExchange) -> Seen:
    bodiless = exchange.status in (204, 304) or exchange.method == "HEAD"
    return exchange.status, _comparable(exchange.response_headers), b"" if bodiless else exchange.response_body


def _as_stored(exchange: Exchange) -> Seen:
    assert exchange.response is not None
    return exchange.response.status, _comparable(exchange.response.headers), exchange.response.body.data


def _comparable(headers: Headers) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in headers if name.lower() not in LEFT_OUT)


def _names(what: str, recorded: Sequence[RecordedExchange], numbers: Sequence[int]) -> str:
    shown = "\n".join(f"  {n}: {recorded[n].method} {recorded[n].url[:100]}" for n in numbers[:20])
    return f"{len(numbers)} {what}:\n{shown}"
