"""Send recorded requests to the batch-invariant server again, and compare the answers bit by bit.

The same build of that server gives the same answer to the same request under any load, so its recordings can be verified.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx2
from msgspec.structs import replace

from calls.codec.json import parse_json_leniently
from calls.codec.lenient_json import as_array, as_object
from calls.derive import derive_call
from calls.keys.divergence import differences
from calls.keys.profile import Profiles
from calls.model import Body, Exchange, Json, Response, header
from calls.placeholder import PREFIX
from proxy.errors import Failure
from proxy.wire.config import value_for_host

type Word = Literal["rederived", "differs", "unknown"]

CLAIM: Final = "x-batch-invariant"
FINGERPRINT: Final = "x-batch-invariant-fingerprint"

_VOLATILE_FIELDS: Final = frozenset(("id", "created", "system_fingerprint", "request_id", "prompt_tokens_details"))
"""Fields at any depth of an answer that are new for each answer, or that depend on the server's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedCall:
    """The result of repeating one call."""

    exchange: str
    path: str
    same: bool | None
    """Whether the answers are the same; None if that cannot be determined."""
    reason: str
    pointers: tuple[str, ...] = ()


def has_invariance_claim(exchange: Exchange) -> bool:
    """Whether the answer came from a server that claims batch invariance after its self-check."""
    return exchange.response is not None and header(exchange.response.headers, CLAIM) == "true"


async def repeat_exchanges(
    exchanges: Iterable[Exchange],
    server: str | None,
    upstreams: Mapping[str, str],
    profiles: Profiles,
    key: str | None = None,
) -> list[RepeatedCall]:
    """Repeat each exchange whose server claimed invariance, one after the other. Raises Failure if no server answers.

    `key`: the server's bearer token. The recorded one was redacted.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(trust_env=False, timeout=None, headers=headers) as client:
        return [
            await _repeat_exchange(client, exchange, _target_origin(exchange, server, upstreams), profiles)
            for exchange in exchanges
            if has_invariance_claim(exchange)
        ]


def _target_origin(exchange: Exchange, server: str | None, upstreams: Mapping[str, str]) -> str:
    parts = urlsplit(exchange.request.url)
    origin = server or value_for_host(parts.hostname or "", upstreams) or f"{parts.scheme}://{parts.netloc}"
    return origin.rstrip("/")


async def _repeat_exchange(
    client: httpx2.AsyncClient, exchange: Exchange, origin: str, profiles: Profiles
) -> RepeatedCall:
    path = urlsplit(exchange.request.url).path
    assert exchange.response is not None
    if reason := _not_repeatable_reason(exchange):
        return RepeatedCall(exchange=exchange.id, path=path, same=None, reason=reason)
    answer = await _send_recorded_request(client, exchange, origin)
    if answer.status_code in (401, 403):
        raise Failure(
            f"{origin} refused the request ({answer.status_code}) because it needs another key: pass the one that it was"
            " started with by --api-key KEY or VLLM_API_KEY"
        )
    if answer.status_code != exchange.response.status:
        return RepeatedCall(
            exchange=exchange.id, path=path, same=None, reason=f"the server answers {answer.status_code} now"
        )
    if answer.headers.get(CLAIM) != "true":
        return RepeatedCall(
            exchange=exchange.id, path=path, same=None, reason=f"{origin} makes no claim; it may answer anything"
        )
    pointers = _differing_pointers(exchange, answer, profiles)
    if pointers is None:
        return RepeatedCall(exchange=exchange.id, path=path, same=None, reason="answers of this API cannot be compared")
    if not pointers:
        return RepeatedCall(exchange=exchange.id, path=path, same=True, reason="the same to the last bit")
    if answer.headers.get(FINGERPRINT) != header(exchange.response.headers, FINGERPRINT):
        reason = "another build, machine or number of threads answers now; the fingerprints differ"
        return RepeatedCall(exchange=exchange.id, path=path, same=None, reason=reason, pointers=pointers)
    return RepeatedCall(
        exchange=exchange.id, path=path, same=False, reason="the same build answers otherwise", pointers=pointers
    )


def _not_repeatable_reason(exchange: Exchange) -> str | None:
    """Explain why a recorded request cannot be repeated; None if it can."""
    if exchange.is_truncated or exchange.outcome != "completed":
        return "its recording is incomplete"
    body = exchange.request.body
    if PREFIX in body.data:
        return "a secret in the request was redacted, so the original request is not known"
    if header(exchange.request.headers, "content-encoding"):
        return "the request is compressed, which the server does not support"
    request = as_object(parse_json_leniently(body.data))
    if request.get("seed") is None and request.get("temperature") != 0:
        return "it samples without a seed, so its answer cannot be repeated"
    return None


async def _send_recorded_request(client: httpx2.AsyncClient, exchange: Exchange, origin: str) -> httpx2.Response:
    parts = urlsplit(exchange.request.url)
    target = f"{origin}{parts.path}{'?' + parts.query if parts.query else ''}"
    headers = {"content-type": header(exchange.request.headers, "content-type") or "application/json"}
    try:
        return await client.request(
            exchange.request.method, target, content=exchange.request.body.data, headers=headers
        )
    except httpx2.HTTPError as error:
        raise Failure(
            f"no server answers at {origin} ({error!r}): start it with `playhead inference up`, or name it with --server URL"
        ) from error


def _differing_pointers(exchange: Exchange, answer: httpx2.Response, profiles: Profiles) -> tuple[str, ...] | None:
    """Return the JSON pointers at which the assembled answers differ; None if one cannot be assembled."""
    live = Response(
        status=answer.status_code,
        headers=(("content-type", answer.headers.get("content-type", "")),),
        body=Body(data=answer.content, size=len(answer.content)),
    )
    recorded, now = (derive_call(each, profiles).answer for each in (exchange, replace(exchange, response=live)))
    if recorded is None or now is None:
        return None
    return tuple(
        found.pointer for found in differences(_without_volatile_fields(recorded), _without_volatile_fields(now))
    )


def _without_volatile_fields(value: Json) -> Json:
    """Remove the volatile fields from an answer."""
    if isinstance(value, Mapping):
        return {
            name: _without_volatile_fields(inner)
            for name, inner in as_object(value).items()
            if name not in _VOLATILE_FIELDS
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_volatile_fields(inner) for inner in as_array(value)]
    return value


def run_verdict(calls: Sequence[RepeatedCall]) -> Word:
    """Judge a run: "differs" if any answer differs, "unknown" if any could not be compared."""
    if any(each.same is False for each in calls):
        return "differs"
    return "rederived" if calls and all(each.same for each in calls) else "unknown"


def report_json(run: str, repeated_calls: Sequence[RepeatedCall], others: int) -> dict[str, Any]:
    """Return the report as JSON."""
    calls = [
        {
            "exchange": each.exchange,
            "path": each.path,
            "same": each.same,
            "reason": each.reason,
            "pointers": each.pointers,
        }
        for each in repeated_calls
    ]
    return {
        "run": run,
        "verdict": run_verdict(repeated_calls),
        "asked": len(repeated_calls),
        "without_claim": others,
        "calls": calls,
    }
