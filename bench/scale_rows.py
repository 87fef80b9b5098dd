"""Write many runs to the tables with the real writer, for `bench.scale`.

A template is a conversation whose calls and costs are derived once by the real code. Every run is a template with a
case number, ids, times and keys of its own, so that its rows are the ones that ingest would write, except that token
counts and costs are those of the template.
"""

import asyncio
import hashlib
import json
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any, Final

from msgspec.structs import replace

from bench.fill_spool import REQUEST_HEADERS, RESPONSE_HEADERS
from bench.sample_bodies import prose
from calls.derive import derive_call
from calls.keys.profile import Profiles
from calls.model import Body, Call, Chunk, Exchange, Request, Response
from store.active_profiles import load_profiles
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.pricing.prices import call_cost
from store.query.runs import Runs

SECOND: Final = 1_000_000_000
HOUR: Final = 3600 * SECOND
DAY: Final = 24 * HOUR
CALLS_A_RUN: Final = 20
LENGTHS: Final = (8, 14, 20, 26, 32)
"""The number of calls of each template, on average `CALLS_A_RUN`."""

TEMPLATES: Final = 50
BATCH_RUNS: Final = 10
"""The number of runs in a batch of the writer."""

CASE: Final = "case-000000000"
"""The word by which two runs of a template differ, everywhere in their bodies."""

RARE_EVERY: Final = 1000
"""The interval of runs that use the rare model."""

OTHER_PROJECT: Final = "research"

ACTORS: Final = ("planner", "coder", "reviewer", "searcher", None, None, None, None)
MODELS: Final = (
    ("https://api.openai.com/v1/chat/completions", "gpt-4.1-mini"),
    ("https://api.openai.com/v1/chat/completions", "gpt-4.1"),
    ("https://api.anthropic.com/v1/messages", "claude-sonnet-4-5"),
    ("https://api.mistral.ai/v1/chat/completions", "mistral-large-latest"),
    ("https://api.deepseek.com/chat/completions", "deepseek-chat"),
)
RARE_MODEL: Final = ("https://api.openai.com/v1/chat/completions", "o3-pro")
TOOL_URL: Final = "https://tickets.example.com/v2/search"


@dataclass(frozen=True, slots=True)
class _TemplateExchange:
    """An exchange of a template, without its time."""

    url: str
    request: bytes
    response: bytes
    status: int = 200
    actor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The batches that one process writes: every `step`th one, beginning with `first`."""

    dsn: str
    runs: int
    begin: int
    lasts: int
    first: int
    step: int
    server: uuid.UUID | None = None
    """The store server to whose chains the runs are appended. None: the runs have no proof."""

    offset: int = 0
    """Added to the numbers of the runs."""


def write_runs(
    dsn: str, *, runs: int, processes: int, begin: int, lasts: int, server: uuid.UUID | None = None, offset: int = 0
) -> int:
    """Write this many runs, which begin within a period, in several processes; return the number of calls."""
    parts = [
        Part(dsn=dsn, runs=runs, begin=begin, lasts=lasts, first=first, step=processes, server=server, offset=offset)
        for first in range(processes)
    ]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(_write_part, parts))


def _write_part(part: Part) -> int:
    return asyncio.run(_write(part))


async def _write(part: Part) -> int:
    database = Database(part.dsn, part.server)
    await database.connect()
    profiles = load_profiles(None)
    writers = {
        name: BatchWriter(database, project=name, profile=profiles.digest) for name in ("default", OTHER_PROJECT)
    }
    stored = 0
    try:
        for batch in range(part.first, -(-part.runs // BATCH_RUNS), part.step):
            numbers = range(batch * BATCH_RUNS, min((batch + 1) * BATCH_RUNS, part.runs))
            # One batch of ten is another team's.
            project = OTHER_PROJECT if batch % 10 == 9 else "default"
            exchanges = [one for number in numbers for one in run_exchanges(part.offset + number, _start(part, number))]
            stored += (await writers[project].write_batch(exchanges)).exchanges
            await _describe(Runs(database, project), numbers, part)
    finally:
        await database.close()
    return stored


def _start(part: Part, number: int) -> int:
    """Return when a run began: runs are spread evenly over the period."""
    return part.begin + part.lasts * number // part.runs


async def _describe(runs: Runs, numbers: Sequence[int], part: Part) -> None:
    """Give one run in five labels, and make one in fifty a fork."""
    for number in numbers:
        if number % 5:
            continue
        labels = {"team": ("support", "search", "billing")[number // 5 % 3], "release": f"2026.{number // 500}"}
        parent = (
            {"parent": run_name(part.offset + number - number % BATCH_RUNS), "forked_at": 2} if number % 50 == 5 else {}
        )
        await runs.put(run_name(part.offset + number), _start(part, number), f"case {number}", labels, **parent)  # type: ignore[arg-type]


def run_name(number: int) -> str:
    """Return the id of a run."""
    return f"run-{number:07d}"


def case_of(number: int) -> str:
    """Return the word that only this run contains."""
    return f"case-{number:09d}"


def run_exchanges(number: int, start: int) -> Iterator[DerivedExchange]:
    """Yield the exchanges of a run, with their calls."""
    template = _rare_template() if number % RARE_EVERY == 7 else _templates()[number * 7919 % TEMPLATES]
    case, run = case_of(number).encode(), run_name(number)
    for place, one in enumerate(template):
        at = start + place * (4 + number % 9) * SECOND
        exchange = _of_run(one.exchange, run, case, at, number * 64 + place)
        assert one.call is not None
        key = hashlib.sha256(one.call.key.encode() + case).hexdigest()
        yield DerivedExchange(exchange, _call_of_run(one.call, exchange, f"sha256:{key}"), cost=one.cost)


def _of_run(exchange: Exchange, run: str, case: bytes, at: int, number: int) -> Exchange:
    assert exchange.response is not None
    jitter = hashlib.sha256(b"%d" % number).digest()
    first = 50_000_000 + int.from_bytes(jitter[:2]) * 20_000
    return replace(
        exchange,
        id=_uuid7(at, jitter),
        run=run,
        started_at=at,
        first_byte_at=first,
        ended_at=first + int.from_bytes(jitter[2:4]) * 100_000,
        run_evidence=(("credentials", run),),
        request=replace(exchange.request, body=_with_case(exchange.request.body, case)),
        response=replace(exchange.response, body=_with_case(exchange.response.body, case)),
    )


def _with_case(body: Body, case: bytes) -> Body:
    return replace(body, data=body.data.replace(CASE.encode(), case))


def _call_of_run(call: Call, exchange: Exchange, key: str) -> Call:
    return replace(call, exchanges=(exchange.id,), key=key)


def _uuid7(ns: int, digest: bytes) -> str:
    value = int.from_bytes(digest[:10]) & ~(0xF << 76) & ~(0x3 << 62)
    return str(uuid.UUID(int=(ns // 1_000_000) << 80 | 0x7 << 76 | 0x2 << 62 | value))


@cache
def _templates() -> list[list[DerivedExchange]]:
    """Derive the templates with the real code."""
    profiles = load_profiles(None)
    return [_template(profiles, number, *MODELS[number % len(MODELS)]) for number in range(TEMPLATES)]


@cache
def _rare_template() -> list[DerivedExchange]:
    return _template(load_profiles(None), TEMPLATES, *RARE_MODEL)


def _template(profiles: Profiles, number: int, url: str, model: str) -> list[DerivedExchange]:
    draw = random.Random(number)
    exchanges = _conversation(draw, url, model, LENGTHS[number % len(LENGTHS)])
    return [_derive_exchange(profiles, one) for one in exchanges]


def _derive_exchange(profiles: Profiles, one: _TemplateExchange) -> DerivedExchange:
    host = one.url.split("/")[2]
    headers = tuple((name, host if name == "Host" else value) for name, value in REQUEST_HEADERS)
    exchange = Exchange(
        id=_uuid7(time.time_ns(), hashlib.sha256(one.request).digest()),
        run="template",
        request=Request(method="POST", url=one.url, headers=headers, body=_body(one.request)),
        response=Response(status=one.status, reason="OK", headers=RESPONSE_HEADERS, body=_body(one.response)),
        outcome="completed",
        started_at=time.time_ns(),
        first_byte_at=400_000_000,
        ended_at=500_000_000,
        actor=one.actor,
        run_evidence=(("credentials", "template"),),
    )
    call = derive_call(exchange, profiles)
    return DerivedExchange(exchange, call, cost=call_cost(exchange, call))


def _body(data: bytes) -> Body:
    return Body(data=data, chunks=(Chunk(1_000_000, 0, len(data)),), size=len(data))


def _conversation(draw: random.Random, url: str, model: str, count: int) -> Iterator[_TemplateExchange]:
    """Yield the exchanges of an agent: model calls, a call of a tool server for each fourth, and two errors in a
    hundred, each of which is retried.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{CASE}: {prose(draw, 400)}"}]
    actor = draw.choice(ACTORS)
    number = 0
    while number < count:
        if number % 5 == 4:
            query = json.dumps({"query": f"{CASE} {prose(draw, 100)}", "limit": 20, "page": number})
            found = {"results": [{"id": n, "text": prose(draw, 300)} for n in range(4)], "case": CASE}
            yield _TemplateExchange(TOOL_URL, query.encode(), json.dumps(found).encode(), actor=actor)
            number += 1
            continue
        request = _request(url, model, messages)
        if draw.random() < 0.025:
            problem = {"error": {"type": "rate_limit_error", "message": f"try again later ({CASE})"}}
            yield _TemplateExchange(url, request, json.dumps(problem).encode(), draw.choice((429, 429, 500)), actor)
            number += 1
        tool = f"{draw.choice(('search', 'fetch', 'write', 'delete'))}_{draw.randrange(6)}"
        text, argument = f"{prose(draw, draw.randint(200, 700))} {CASE}", f"{CASE} {prose(draw, 120)}"
        answer, turn = _answer(url, model, text, (tool, argument, f"call_{draw.getrandbits(80):020x}"), len(request))
        yield _TemplateExchange(url, request, answer, actor=actor)
        number += 1
        messages += [*turn, *_result(url, turn, f"{CASE} {prose(draw, draw.randint(500, 2500))}")]


@cache
def _tools(anthropic: bool) -> Sequence[Mapping[str, Any]]:
    draw = random.Random(13)
    properties = {"query": {"type": "string", "description": prose(draw, 200)}}
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    names = [f"{verb}_{n}" for verb in ("search", "fetch", "write", "delete") for n in range(6)]
    if anthropic:
        return [{"name": name, "description": prose(draw, 400), "input_schema": schema} for name in names]
    functions = [{"name": name, "description": prose(draw, 400), "parameters": schema} for name in names]
    return [{"type": "function", "function": function} for function in functions]


def _is_anthropic(url: str) -> bool:
    return "anthropic" in url


def _request(url: str, model: str, messages: Sequence[Mapping[str, Any]]) -> bytes:
    system, tools = prose(random.Random(11), 3000), _tools(_is_anthropic(url))
    if _is_anthropic(url):
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": 4096,
            "system": system,
            "messages": messages,
            "tools": tools,
        }
    else:
        body = {"model": model, "messages": [{"role": "system", "content": system}, *messages], "tools": tools}
    return json.dumps(body).encode()


def _answer(
    url: str, model: str, text: str, tool: tuple[str, str, str], size: int
) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the body of an answer, and the message that later requests repeat."""
    name, argument, identity = tool
    tokens = size // 4
    if _is_anthropic(url):
        use = {"type": "tool_use", "id": identity, "name": name, "input": {"query": argument}}
        content = [{"type": "text", "text": text}, use]
        usage = {"input_tokens": tokens // 5, "cache_read_input_tokens": tokens * 4 // 5, "output_tokens": 180}
        body: dict[str, Any] = {
            "id": f"msg_{identity}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
        }
        body |= {"stop_reason": "tool_use", "usage": usage}
        return json.dumps(body).encode(), [{"role": "assistant", "content": content}]
    function = {"name": name, "arguments": json.dumps({"query": argument})}
    message = {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": identity, "type": "function", "function": function}],
    }
    usage = {"prompt_tokens": tokens, "completion_tokens": 180, "total_tokens": tokens + 180}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion",
        "created": 1790000000,
        "model": model,
    }
    return json.dumps(body | {"choices": [choice], "usage": usage}).encode(), [message]


def _result(url: str, turn: Sequence[Mapping[str, Any]], text: str) -> Iterator[dict[str, Any]]:
    if _is_anthropic(url):
        identity = turn[0]["content"][1]["id"]
        yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": identity, "content": text}]}
    else:
        yield {"role": "tool", "tool_call_id": turn[0]["tool_calls"][0]["id"], "content": text}
