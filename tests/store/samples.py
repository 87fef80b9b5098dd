"""Exchanges and calls as agents make them, for tests that store and read them."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from calls.model import Body, Call, Chunk, Exchange, Headers, Json, Request, Response, ToolCall, Usage
from store.ingest.batch_writer import DerivedExchange

NOON = 1_795_262_400_000_000_000
"""2026-11-21 12:00 UTC, in nanoseconds."""

SECOND = 1_000_000_000

REQUEST_HEADERS: Headers = (
    ("Host", "api.openai.com"),
    ("Accept", "application/json"),
    ("Content-Type", "application/json"),
    ("User-Agent", "OpenAI/Python 3.1.0"),
    ("Authorization", "Bearer PLAYHEAD_api_key_d41d8cd98f00b204e9800998ecf8427e"),
    ("X-Stainless-Lang", "python"),
    ("X-Stainless-Package-Version", "3.1.0"),
    ("X-Stainless-OS", "Linux"),
    ("X-Stainless-Arch", "x64"),
    ("X-Stainless-Runtime", "CPython"),
    ("X-Stainless-Runtime-Version", "3.13.0"),
    ("X-Stainless-Async", "false"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-read-timeout", "600"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Connection", "keep-alive"),
)


def response_headers(number: int) -> Headers:
    return (
        ("Date", f"Sat, 21 Nov 2026 12:{number // 60 % 60:02}:{number % 60:02} GMT"),
        ("Content-Type", "application/json"),
        ("Connection", "keep-alive"),
        ("access-control-expose-headers", "X-Request-ID"),
        ("openai-organization", "playhead"),
        ("openai-processing-ms", str(400 + number % 977)),
        ("openai-version", "2020-10-01"),
        ("x-ratelimit-limit-requests", "10000"),
        ("x-ratelimit-limit-tokens", "30000000"),
        ("x-ratelimit-remaining-requests", str(9999 - number % 100)),
        ("x-ratelimit-remaining-tokens", str(29_999_000 - number)),
        ("x-request-id", f"req_{hashlib.md5(str(number).encode()).hexdigest()}"),
        ("strict-transport-security", "max-age=31536000; includeSubDomains; preload"),
        ("cf-cache-status", "DYNAMIC"),
        ("X-Content-Type-Options", "nosniff"),
        ("Server", "cloudflare"),
        ("CF-RAY", f"{hashlib.md5(str(number + 1).encode()).hexdigest()[:16]}-FRA"),
        ("alt-svc", 'h3=":443"; ma=86400'),
    )


def uuid7(ns: int, number: int = 0) -> str:
    """A uuidv7 of this time, a different one for each number."""
    random = int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:10]) & ~(0xF << 76) & ~(0x3 << 62)
    value = (ns // 1_000_000) << 80 | 0x7 << 76 | 0x2 << 62 | random
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def body(data: bytes, pieces: int = 1) -> Body:
    """A whole body that came in this many pieces."""
    cuts = [len(data) * n // pieces for n in range(pieces + 1)]
    chunks = tuple(
        Chunk(1_234_567 * (n + 1), start, end - start) for n, (start, end) in enumerate(itertools.pairwise(cuts))
    )
    return Body(data=data, chunks=chunks, size=len(data))


def exchange(
    number: int = 0,
    *,
    run: str = "night-run",
    at: int | None = None,
    request: bytes = b'{"query": "refunds"}',
    response: bytes = b'{"found": 3}',
    url: str = "https://tickets.example.com/v2/search",
    status: int = 200,
    pieces: int = 1,
    **more: Any,
) -> Exchange:
    """An exchange that went well, a second after the one before."""
    started = NOON + number * SECOND if at is None else at
    made = Exchange(
        id=uuid7(started, number),
        run=run,
        request=Request(method="POST", url=url, headers=REQUEST_HEADERS, body=body(request)),
        response=Response(status=status, reason="OK", headers=response_headers(number), body=body(response, pieces)),
        outcome="completed",
        started_at=started,
        first_byte_at=412_345_678,
        ended_at=478_901_234,
        run_evidence=(("credentials", run),),
    )
    return replace(made, **more)


def call(of: Exchange, *, key: str | None = None, **more: Any) -> Call:
    """A tool call made of an exchange."""
    made = Call(
        exchanges=(of.id,),
        kind="tool",
        provider="tickets.example.com",
        dialect="generic",
        operation="execute_tool",
        key=key or f"sha256:{hashlib.sha256(of.request.body.data).hexdigest()}",
        profile="rest/1",
        complete=True,
    )
    return replace(made, **more)


def model_call(of: Exchange, *, tokens: int = 10, tools: Sequence[str] = (), **more: Any) -> Call:
    """A model call made of an exchange."""
    usage = Usage(input_tokens=tokens * 10, output_tokens=tokens)
    asked = tuple(ToolCall(id=f"call_{n}", name=name, arguments={}) for n, name in enumerate(tools))
    settled = {"kind": "model", "provider": "openai", "dialect": "openai_chat", "operation": "chat", "usage": usage}
    return call(
        of, **{**settled, "model_requested": "gpt-5", "model_returned": "gpt-5-2026", "tool_calls": asked, **more}
    )


def tool_exchange(number: int = 0, **more: Any) -> DerivedExchange:
    """A small tool call, ready to be stored."""
    made = exchange(number, **more)
    return DerivedExchange(made, call(made))


TEXT = (
    "refund order customer ticket shipping delayed warehouse Monday invoice total amount currency please check whether"
    " the parcel was returned and tell me what to do next because our policy says thirty days after delivery unless"
    " damaged photo attached confirm address street number city country phone agent escalate manager reply draft"
)
WORDS = TEXT.split()


def prose(seed: str, words: int) -> str:
    """Text that looks like text to a compressor."""
    digest = hashlib.shake_128(seed.encode()).digest(words * 2)
    return " ".join(WORDS[int.from_bytes(digest[n * 2 : n * 2 + 2]) % len(WORDS)] for n in range(words))


def tools(count: int = 12) -> list[Mapping[str, Json]]:
    """Descriptions of tools, about 700 bytes each."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{n}",
                "description": prose(f"tool {n}", 60),
                "parameters": {
                    "type": "object",
                    "properties": {
                        f"argument_{k}": {"type": "string", "description": prose(f"{n}.{k}", 8)} for k in range(3)
                    },
                    "required": ["argument_0"],
                },
            },
        }
        for n in range(count)
    ]


def conversation(name: str, turns: int = 20) -> Iterator[Exchange]:
    """An agent that sends its whole history with each turn; every second answer calls a tool."""
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": prose("system", 300)}]
    for turn in range(turns):
        messages.append({"role": "user", "content": prose(f"{name} user {turn}", 60)})
        request = {"model": "gpt-5", "temperature": 0.2, "messages": messages, "tools": tools()}
        answer = {"role": "assistant", "content": prose(f"{name} assistant {turn}", 120)}
        response = {
            "id": f"chatcmpl-{hashlib.md5(f'{name}{turn}'.encode()).hexdigest()}",
            "object": "chat.completion",
            "created": 1_795_262_400 + turn,
            "model": "gpt-5-2026",
            "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 900 + turn, "completion_tokens": 120, "total_tokens": 1020 + turn},
        }
        number = int.from_bytes(hashlib.md5(f"{name}{turn}".encode()).digest()[:4])
        yield exchange(
            number,
            run=name,
            at=NOON + turn * SECOND,
            url="https://api.openai.com/v1/chat/completions",
            request=json.dumps(request).encode(),
            response=json.dumps(response).encode(),
        )
        messages.append(answer)
