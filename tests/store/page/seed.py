"""Runs as real agents make them, to be looked at: streamed answers, tools, a retry, an error, a gap, sub-agents, a fork."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from calls.derive import derive_call
from calls.effects.items import Item, count_results, encode_items
from calls.events import EffectBatch, Gap
from calls.model import Body, Chunk, Exchange, Headers, Request, Response
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.pricing.prices import call_cost
from store.query.runs import Runs
from tests.store.running_store import PROFILES, RunningStore
from tests.store.samples import NOON, REQUEST_HEADERS, response_headers, uuid7

MS: Final = 1_000_000
SECOND: Final = 1000 * MS

MODEL_URL: Final = "https://api.openai.com/v1/chat/completions"
TOOLS_URL: Final = "https://api.shop.example/v2"

SSE: Final[Headers] = (("content-type", "text/event-stream; charset=utf-8"),)
JSON: Final[Headers] = (("content-type", "application/json"),)

SYSTEM: Final = (
    "You are a refund agent of an online shop. Look up the order before you answer, follow the refund policy, and never"
    " promise a date. Use the tools; be brief."
)

TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": purpose,
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in keys}},
        },
    }
    for name, purpose, keys in (
        ("get_order", "An order with its items and its delivery.", ("order_id",)),
        ("refund_policy", "What may be refunded, and until when.", ("category", "country")),
        ("create_refund", "Refund an amount to the customer.", ("order_id", "amount", "reason")),
        ("search_web", "Search the web.", ("query",)),
    )
]

_serial = itertools.count(1)


class Agent:
    """Writes the exchanges of one agent one after another. Its clock stands still unless something takes time."""

    def __init__(self, run: str, at: int, *, actor: str | None = None, model: str = "gpt-5-mini", system: str = SYSTEM):
        self.run = run
        self.at = at
        self.actor = actor
        self.model = model
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
        self.exchanges: list[Exchange] = []

    def user(self, text: str) -> None:
        """Let the user say something."""
        self.messages.append({"role": "user", "content": text})

    def think(self, ms: float) -> None:
        """Let the agent's own code take time."""
        self.at += int(ms * MS)

    def answer(
        self,
        text: str = "",
        tools: Sequence[tuple[str, Mapping[str, Any]]] = (),
        *,
        first_byte: float = 640,
        took: float = 2300,
        streamed: bool = True,
        outcome: str | None = None,
        reasoning: str | None = None,
        **sampling: Any,
    ) -> list[str]:
        """Ask the model; return the ids of the tool calls that it requests. Only a whole answer has `reasoning`."""
        asked = {"model": self.model, "messages": list(self.messages), "tools": TOOLS, "temperature": 0.2, **sampling}
        if streamed:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        number = next(_serial)
        calls = [
            {
                "id": f"call_{number:04}{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given)},
            }
            for place, (name, given) in enumerate(tools)
        ]
        usage = self._usage(text, calls)
        if streamed:
            pieces = list(_sse(number, self.model, text, calls, usage))
            if outcome:
                pieces = pieces[: len(pieces) // 2]
            self._add(MODEL_URL, asked, pieces, SSE, first_byte=first_byte, took=took, outcome=outcome)
        else:
            message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
            message |= {"reasoning_content": reasoning} if reasoning else {}
            whole = {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "created": self.at // SECOND,
                "model": f"{self.model}-2026-08-07",
                "system_fingerprint": "fp_44709d6fcb",
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
                "usage": usage,
            }
            self._add(MODEL_URL, asked, [json.dumps(whole).encode()], JSON, first_byte=took - 5, took=took)
        self.messages.append({"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})})
        return [str(one["id"]) for one in calls]

    def fail(self, status: int, error: Mapping[str, Any], *, took: float = 180) -> None:
        """Ask the model, which refuses."""
        asked = {
            "model": self.model,
            "messages": list(self.messages),
            "tools": TOOLS,
            "temperature": 0.2,
            "stream": True,
        }
        asked |= {"stream_options": {"include_usage": True}}
        body = json.dumps({"error": error}).encode()
        self._add(MODEL_URL, asked, [body], JSON, first_byte=took - 4, took=took, status=status)

    def tool(
        self, call_id: str, name: str, given: Mapping[str, Any], result: Any, *, took: float = 120, status: int = 200
    ) -> None:
        """Run a tool, and put its result into the conversation."""
        answer = json.dumps(result).encode()
        self._add(f"{TOOLS_URL}/{name}", given, [answer], JSON, first_byte=took - 3, took=took, status=status)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": json.dumps(result)})

    def _usage(self, text: str, calls: Sequence[Any]) -> dict[str, Any]:
        prompt = 60 + len(json.dumps(self.messages)) // 4 + len(json.dumps(TOOLS)) // 4
        completion = 8 + len(text) // 4 + len(json.dumps(calls)) // 5
        cached = prompt // 128 * 64 if len(self.messages) > 3 else 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": completion // 3},
        }

    def _add(
        self,
        url: str,
        asked: Any,
        pieces: Sequence[bytes],
        content_type: Headers,
        *,
        first_byte: float,
        took: float,
        status: int = 200,
        outcome: str | None = None,
    ) -> None:
        number = next(_serial)
        sent = json.dumps(asked).encode()
        host = url.split("/")[2]
        headers = (("Host", host), *(one for one in REQUEST_HEADERS if one[0] != "Host"))
        made = Exchange(
            id=uuid7(self.at, number),
            run=self.run,
            request=Request(
                method="POST",
                url=url,
                headers=headers,
                body=Body(data=sent, chunks=(Chunk(MS, 0, len(sent)),), size=len(sent)),
            ),
            response=Response(
                status=status,
                reason="OK" if status < 400 else "Error",
                headers=(*content_type, *(one for one in response_headers(number) if one[0] != "Content-Type")),
                body=_body_with_times(pieces, first_byte, took),
            ),
            outcome="server_closed" if outcome else "completed",
            error=outcome,
            started_at=self.at,
            first_byte_at=int(first_byte * MS),
            ended_at=int(took * MS),
            run_evidence=(("header", self.run),),
            actor=self.actor,
        )
        self.exchanges.append(made)
        self.at += int(took * MS)


def _body_with_times(pieces: Sequence[bytes], first_byte: float, took: float) -> Body:
    chunks, offset = [], 0
    for place, piece in enumerate(pieces):
        at = first_byte + (took - first_byte) * place / max(1, len(pieces))
        chunks.append(Chunk(int(at * MS), offset, len(piece)))
        offset += len(piece)
    return Body(data=b"".join(pieces), chunks=tuple(chunks), size=offset)


def _sse(number: int, model: str, text: str, calls: Sequence[Any], usage: Mapping[str, Any]) -> Iterator[bytes]:
    head = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": NOON // SECOND,
        "model": f"{model}-2026-08-07",
        "system_fingerprint": "fp_44709d6fcb",
    }

    def event(delta: Any, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        return b"data: " + json.dumps(head | {"choices": choices} | more).encode() + b"\n\n"

    yield event({"role": "assistant", "content": ""})
    for word in text.replace(" ", " \0").split("\0") if text else ():
        yield event({"content": word})
    for place, call in enumerate(calls):
        start = {
            "index": place,
            "id": call["id"],
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": ""},
        }
        yield event({"tool_calls": [start]})
        given = call["function"]["arguments"]
        for begin in range(0, len(given), 12):
            yield event({"tool_calls": [{"index": place, "function": {"arguments": given[begin : begin + 12]}}]})
    yield event({}, "tool_calls" if calls else "stop")
    yield event(None, usage=usage)
    yield b"data: [DONE]\n\n"


ORDER: Final = {
    "order_id": "A-10432",
    "customer": "Mia Larsson",
    "country": "SE",
    "items": [{"sku": "KETTLE-12", "title": "Electric kettle 1.2 l", "price": "49.90", "category": "kitchen"}],
    "delivered_at": "2026-11-09T10:12:00Z",
    "paid_by": "card",
}
POLICY: Final = {
    "category": "kitchen",
    "days": 30,
    "condition": "unused or faulty",
    "shipping": "paid by the shop if faulty",
}


def refund_run(
    run: str, at: int, *, days: int = 30, temperature: float = 0.2, order: str = "A-10432"
) -> list[Exchange]:
    """A refund: order, policy, a rate limit and its retry, refund, answer."""
    agent = Agent(run, at)
    agent.user(f"Hi, my kettle (order {order}) arrived with a crack in the lid. Can I get my money back?")
    ids = agent.answer("", [("get_order", {"order_id": order})], took=1900, temperature=temperature)
    agent.think(35)
    agent.tool(ids[0], "get_order", {"order_id": order}, ORDER | {"order_id": order}, took=142)
    agent.think(60)
    ids = agent.answer(
        "The order was delivered on 9 November. Let me check the policy for kitchen items.",
        [("refund_policy", {"category": "kitchen", "country": "SE"})],
        took=2600,
        temperature=temperature,
    )
    agent.think(900)
    agent.tool(ids[0], "refund_policy", {"category": "kitchen", "country": "SE"}, POLICY | {"days": days}, took=88)
    agent.think(22)
    limit = {
        "message": "Rate limit reached for gpt-5-mini: 30000 tokens per minute.",
        "type": "tokens",
        "code": "rate_limit_exceeded",
    }
    agent.fail(429, limit)
    agent.think(1100)
    if days < 14:
        agent.answer(
            f"I am sorry: kitchen items can be returned within {days} days only, and yours was delivered 12 days ago.",
            took=2100,
        )
        return agent.exchanges
    refund = {"order_id": order, "amount": "49.90", "reason": "faulty on arrival"}
    ids = agent.answer("", [("create_refund", refund)], took=1750)
    agent.think(48)
    agent.tool(ids[0], "create_refund", refund, {"refund_id": "R-88121", "state": "pending", **refund}, took=310)
    agent.think(31)
    agent.answer(
        "Good news, Mia: I have refunded 49.90 € for the kettle to your card. You do not have to send it back, and you will"
        " get a confirmation by e-mail as soon as the bank has booked it.",
        took=3400,
    )
    return agent.exchanges


def research_run(run: str, at: int) -> list[Exchange]:
    """A lead agent with three sub-agents that work at the same time, one of which fails."""
    lead = Agent(run, at, actor="lead", model="gpt-5", system="You plan research and write a short report.")
    lead.user("Compare the return policies of three Nordic shops.")
    lead.answer("I will let three researchers look at one shop each.", took=3900, first_byte=1200)
    start = lead.at + 80 * MS
    found: list[Exchange] = []
    ends = []
    for place, shop in enumerate(("Elgiganten", "Verkkokauppa", "Komplett")):
        one = Agent(
            run,
            start + place * 45 * MS,
            actor=f"researcher {place + 1}",
            system=f"Research the return policy of {shop}.",
        )
        one.user(f"What is the return policy of {shop}?")
        query = {"query": f"{shop} return policy days"}
        ids = one.answer("", [("search_web", query)], took=1500 + 300 * place, first_byte=500)
        one.think(20)
        if shop == "Komplett":
            one.tool(ids[0], "search_web", query, {"error": "upstream search engine timed out"}, took=5200, status=504)
        else:
            results = [
                {
                    "title": f"{shop}: returns",
                    "url": f"https://{shop.lower()}.example/returns",
                    "snippet": f"{30 + place * 20} days, unopened.",
                }
            ]
            one.tool(ids[0], "search_web", query, {"results": results}, took=900 + 500 * place)
        one.think(30)
        one.answer(
            f"{shop} takes unopened goods back for {30 + place * 20} days."
            if shop != "Komplett"
            else "I could not find it: the search timed out.",
            took=1900,
            first_byte=700,
        )
        found += one.exchanges
        ends.append(one.at)
    lead.at = max(ends) + 140 * MS
    lead.messages.append(
        {"role": "user", "content": "Findings: Elgiganten 30 days, Verkkokauppa 50 days, Komplett unknown."}
    )
    lead.answer(
        "Elgiganten: 30 days. Verkkokauppa: 50 days. Komplett could not be checked.\n\n| shop | days |\n|---|---|\n| Elgiganten | 30 |\n| Verkkokauppa | 50 |",
        took=5200,
        first_byte=1500,
    )
    return [*lead.exchanges[:1], *found, *lead.exchanges[1:]]


def broken_run(run: str, at: int) -> list[Exchange]:
    """A model that stops in the middle of its answer, and then is out of order."""
    agent = Agent(run, at, model="gpt-5")
    agent.user("Summarise the complaints of this week.")
    agent.answer(
        "This week there were forty-one complaints, most of them about late parcels in the north, and a few about",
        took=4100,
        outcome="the server closed the connection before the response was complete",
    )
    agent.think(2000)
    agent.fail(
        500, {"message": "The server had an error while processing your request.", "type": "server_error"}, took=900
    )
    return agent.exchanges


async def seed_runs(running_store: RunningStore, database: Database, at: int = NOON) -> None:
    """Store all of these runs, with names and labels."""
    writer = BatchWriter(database, profile=PROFILES.digest, signal=running_store.signal)
    runs = Runs(database)
    await write(writer, refund_run("refund-4711", at))
    await writer.write_batch((), effects=[observed_effects("refund-4711", at, REFUND_EFFECTS)])
    await write(writer, refund_run("refund-4712", at + 90 * SECOND, days=10, temperature=0.7))
    await write(writer, research_run("research-nordic", at + 300 * SECOND))
    await write(
        writer,
        broken_run("weekly-report", at + 600 * SECOND),
        [Gap("weekly-report", at + 604 * SECOND, "the spool was full", None, 2)],
    )
    fork = [
        replace(
            one,
            run="refund-4711-fork",
            id=uuid7(one.started_at + 900 * SECOND, place + 7_000_000),
            started_at=one.started_at + 900 * SECOND,
        )
        for place, one in enumerate(refund_run("refund-4711-fork", at))
    ]
    await write(writer, fork)
    day = 86_400 * SECOND
    for place in range(1, 8):
        await write(writer, refund_run(f"refund-{4700 - place}", at - place * day, order=f"A-{10400 - place}"))
    await running_store.followers.wait_until_caught_up()
    for name, title, labels in (
        ("refund-4711", "Refund for a cracked kettle", {"customer": "mia", "env": "production"}),
        ("refund-4712", "Refund for a cracked kettle, strict policy", {"customer": "mia", "env": "staging"}),
        ("research-nordic", "Return policies of Nordic shops", {"env": "staging", "team": "research"}),
        ("weekly-report", "Weekly report", {"env": "production"}),
    ):
        await runs.patch(name, name=title, labels=labels)
    await runs.put(
        "refund-4711-fork", at, "What if it had asked first?", {"env": "staging"}, parent="refund-4711", forked_at=4
    )
    for name in ("refund-4711", "refund-4712", "research-nordic", "refund-4711-fork"):
        await runs.patch(name, ended_at=at + 1000 * SECOND)
    await runs.patch("refund-4711", pinned=True)
    await running_store.followers.wait_until_caught_up()


def observed_effects(run: str, at: int, items: Sequence[Item]) -> EffectBatch:
    """What the program of a run got from elsewhere than the network. It began just before `at`, which `happened` counts from."""
    began: Item = {"kind": "process.start", "first": str(at - 1)}
    effects = [began, *items]
    return EffectBatch(run, uuid7(at, 8_000_000), at, "0", 0, count_results(effects), encode_items(effects))


REFUND_EFFECTS: Final[Sequence[Item]] = (
    {"kind": "time.time", "task": "main", "at": "agent.py:12", "first": str(NOON), "ns": [SECOND] * 4},
    {"kind": "os.environ", "task": "main", "at": "agent.py:14", "args": {"name": "REGION"}, "results": ["eu"]},
    {
        "kind": "langgraph.node",
        "task": "main",
        "at": "graph.py:31",
        "happened": 4 * SECOND,
        "args": {"name": "look up the order", "input": '{"order": "A-10433"}'},
        "results": ['{"found": true}'],
    },
    {"kind": "stdout", "happened": 900 * SECOND, "digest": "sha256:0"},
    {
        "kind": "uuid.uuid4",
        "task": "main/notify",
        "at": "agent.py:90",
        "happened": 900 * SECOND,
        "results": ["4f1c6a08-8d6c-4a0e-9d53-2f8a7e5b9f11"],
    },
)


async def write(writer: BatchWriter, exchanges: Sequence[Exchange], gaps: Sequence[Gap] = ()) -> None:
    """Store exchanges with their calls and costs."""
    await writer.write_batch([derive_exchange(one) for one in exchanges], gaps)


def derive_exchange(exchange: Exchange) -> DerivedExchange:
    """An exchange with its call and its cost."""
    call = derive_call(exchange, PROFILES)
    return DerivedExchange(exchange, call, cost=call_cost(exchange, call))
