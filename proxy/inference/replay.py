"""Send recorded requests again, and compare the answers to the bit.

A recording of any other model can be replayed. One that was made against our own server can be derived again: the same build
gives the same answer to the same request, whatever else it is doing, and whoever doubts a record can ask.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx2

from calls.codec.json import lenient
from calls.codec.lenient_json import elements, members
from calls.derive import derive
from calls.keys.divergence import differences
from calls.keys.profile import Profiles
from calls.model import Body, Exchange, Json, Response, header
from calls.placeholder import MARK
from proxy.errors import Failure
from proxy.wire.config import said_of

type Word = Literal["rederived", "differs", "unknown"]

CLAIM: Final = "x-batch-invariant"
FINGERPRINT: Final = "x-batch-invariant-fingerprint"

_DRAWN: Final = frozenset(("id", "created", "system_fingerprint", "request_id", "prompt_tokens_details"))
"""What an answer says of its own making, and of what happened to lie in the cache, wherever it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """One call asked again."""

    exchange: str
    path: str
    same: bool | None
    """None where it could not be told."""
    reason: str
    pointers: tuple[str, ...] = ()


def claimed(exchange: Exchange) -> bool:
    """Whether its answer came from a server that had shown that it holds."""
    return exchange.response is not None and header(exchange.response.headers, CLAIM) == "true"


async def again(
    exchanges: Iterable[Exchange],
    server: str | None,
    upstreams: Mapping[str, str],
    profiles: Profiles,
    key: str | None = None,
) -> list[Again]:
    """Ask each again that was answered under the claim, one after the other. Raises Failure where there is nobody to ask.

    `key`: what the server wants as a bearer token. The recorded one was redacted.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(trust_env=False, timeout=None, headers=headers) as client:
        return [
            await _again(client, exchange, _origin(exchange, server, upstreams), profiles)
            for exchange in exchanges
            if claimed(exchange)
        ]


def _origin(exchange: Exchange, server: str | None, upstreams: Mapping[str, str]) -> str:
    parts = urlsplit(exchange.request.url)
    origin = server or said_of(parts.hostname or "", upstreams) or f"{parts.scheme}://{parts.netloc}"
    return origin.rstrip("/")


async def _again(client: httpx2.AsyncClient, exchange: Exchange, origin: str, profiles: Profiles) -> Again:
    path = urlsplit(exchange.request.url).path
    assert exchange.response is not None
    if reason := _unaskable(exchange):
        return Again(exchange=exchange.id, path=path, same=None, reason=reason)
    answer = await _asked(client, exchange, origin)
    if answer.status_code in (401, 403):
        raise Failure(
            f"{origin} refused the request ({answer.status_code}): it wants another key. Name the one that it was started with"
            " by --api-key KEY or VLLM_API_KEY"
        )
    if answer.status_code != exchange.response.status:
        return Again(exchange=exchange.id, path=path, same=None, reason=f"the server says {answer.status_code} now")
    if answer.headers.get(CLAIM) != "true":
        return Again(
            exchange=exchange.id, path=path, same=None, reason=f"{origin} makes no claim; it may answer anything"
        )
    pointers = _differing(exchange, answer, profiles)
    if pointers is None:
        return Again(exchange=exchange.id, path=path, same=None, reason="an answer of this kind cannot be read")
    if not pointers:
        return Again(exchange=exchange.id, path=path, same=True, reason="the same to the last bit")
    if answer.headers.get(FINGERPRINT) != header(exchange.response.headers, FINGERPRINT):
        reason = "another build, machine or number of threads answers now; the fingerprints differ"
        return Again(exchange=exchange.id, path=path, same=None, reason=reason, pointers=pointers)
    return Again(
        exchange=exchange.id, path=path, same=False, reason="the same build answers otherwise", pointers=pointers
    )


def _unaskable(exchange: Exchange) -> str | None:
    """Why the request as it is kept is not the one that was asked."""
    if exchange.truncated or exchange.outcome != "completed":
        return "its record is not whole"
    body = exchange.request.body
    if MARK in body.data:
        return "a secret in the request was replaced, so it cannot be asked as it was"
    if header(exchange.request.headers, "content-encoding"):
        return "the request is compressed, which the server does not read"
    asked = members(lenient(body.data))
    if asked.get("seed") is None and asked.get("temperature") != 0:
        return "it samples without a seed, which nothing can repeat"
    return None


async def _asked(client: httpx2.AsyncClient, exchange: Exchange, origin: str) -> httpx2.Response:
    parts = urlsplit(exchange.request.url)
    target = f"{origin}{parts.path}{'?' + parts.query if parts.query else ''}"
    headers = {"content-type": header(exchange.request.headers, "content-type") or "application/json"}
    try:
        return await client.request(
            exchange.request.method, target, content=exchange.request.body.data, headers=headers
        )
    except httpx2.HTTPError as error:
        raise Failure(
            f"nobody answers at {origin} ({error!r}); start it with `playhead inference up`, or name it with --server URL"
        ) from error


def _differing(exchange: Exchange, answer: httpx2.Response, profiles: Profiles) -> tuple[str, ...] | None:
    """Where the answers differ, in the shape that the API would have had without a stream; None where one has no shape."""
    live = Response(
        status=answer.status_code,
        headers=(("content-type", answer.headers.get("content-type", "")),),
        body=Body(data=answer.content, size=len(answer.content)),
    )
    recorded, now = (derive(each, profiles).answer for each in (exchange, replace(exchange, response=live)))
    if recorded is None or now is None:
        return None
    return tuple(found.pointer for found in differences(_settled(recorded), _settled(now)))


def _settled(value: Json) -> Json:
    """An answer without what its server draws anew for each."""
    if isinstance(value, Mapping):
        return {name: _settled(inner) for name, inner in members(value).items() if name not in _DRAWN}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_settled(inner) for inner in elements(value)]
    return value


def judged(found: Sequence[Again]) -> Word:
    """The verdict over a run: one answer that differs decides, and one that could not be told leaves it open."""
    if any(each.same is False for each in found):
        return "differs"
    return "rederived" if found and all(each.same for each in found) else "unknown"


def as_json(run: str, found: Sequence[Again], others: int) -> dict[str, Any]:
    """The report."""
    calls = [
        {
            "exchange": each.exchange,
            "path": each.path,
            "same": each.same,
            "reason": each.reason,
            "pointers": each.pointers,
        }
        for each in found
    ]
    return {"run": run, "verdict": judged(found), "asked": len(found), "without_claim": others, "calls": calls}
