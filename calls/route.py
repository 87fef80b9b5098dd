"""Find the provider, dialect and operation of a request by its head, and by its body for protocols of any path."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from calls.codec.canonical import escape_surrogates
from calls.dialects.parts.unclaimed_kinds import asks_about_server
from calls.dialects.protocols import jsonrpc
from calls.dialects.table import DIALECTS
from calls.model import CallKind, Headers, Request

if TYPE_CHECKING:
    from calls.dialects.dialect import Claim, Dialect, Service

_TELEMETRY: Final = re.compile(
    r"api\.smith\.langchain\.com|(.+\.)?(datadoghq\.com|datad0g\.com|posthog\.com|langfuse\.com|sentry\.io|honeycomb\.io)"
    r"|telemetry\..+"
)
"""Hosts of telemetry services. No answer of an agent depends on them."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The service, dialect and operation of a request."""

    provider: str
    """OpenTelemetry's `gen_ai.provider.name` where the host is a known service, else the host itself."""
    dialect: str
    operation: str
    kind: CallKind
    method: str
    host: str
    upstream: str
    """The host as it counts in a key: the provider where the host is one service, else the requested authority."""
    path: str
    key_path: str
    """The path as it counts in a key."""
    model: str | None = None
    """The model, where the path names it."""
    streams: bool | None = None
    """Whether the path asks for a stream; None where it does not determine it."""
    polls: str | None = None
    """The id of the pending work that the request polls for."""


class _Claimants(msgspec.Struct, frozen=True, kw_only=True):
    """The dialects, and what they declare for finding routes."""

    dialects: "tuple[Dialect, ...]"
    headers: frozenset[str]
    """The headers by which dialects recognise requests: `Dialect.claim` is given no others."""

    json_rpc: "tuple[tuple[Dialect, Callable[..., Claim | None]], ...]"
    bodies: "tuple[tuple[Dialect, Callable[[bytes], Claim | None]], ...]"
    by_host: "Mapping[str, Service]"
    by_pattern: "tuple[tuple[re.Pattern[str], Service], ...]"


@cache
def load_claimants() -> _Claimants:
    """Import the dialects. The first request does it, or whoever starts a process that waits for requests."""
    services = tuple(service for dialect in DIALECTS for service in dialect.services)
    return _Claimants(
        dialects=tuple(DIALECTS),
        headers=frozenset(name for dialect in DIALECTS for name in dialect.headers),
        json_rpc=tuple((dialect, dialect.claim_json_rpc) for dialect in DIALECTS if dialect.claim_json_rpc),
        bodies=tuple((dialect, dialect.claim_body) for dialect in DIALECTS if dialect.claim_body),
        by_host={host: service for service in services for host in service.hosts},
        by_pattern=tuple((re.compile(service.host_pattern), service) for service in services if service.host_pattern),
    )


_LONGEST_REMEMBERED: Final = 1024
"""Characters of a path and its headers beyond which a route is not cached."""


def find_route(method: str, host: str, path: str, headers: Headers = (), body: bytes = b"") -> Route:
    """Find the route of a request by its head. The host can have a port; the body matters for protocols that any path may have."""
    method, host = method.upper(), host.lower()
    claimed = _claim_json_rpc(method, headers, body)
    # Of JSON-RPC of any kind, a service that is known by its head says more.
    if claimed is not None and claimed[0].name != "generic":
        return _make_route(method, host, path, *claimed)
    route = _find_route_by_head(method, host, path, headers)
    if route.operation != "request" or route.dialect != "generic":
        return route
    claimed = claimed or _claim_by_shape(method, body)
    return route if claimed is None else _make_route(method, host, path, *claimed)


def _find_route_by_head(method: str, host: str, path: str, headers: Headers) -> Route:
    claim_headers = load_claimants().headers
    lowered = [(low, value) for name, value in headers if (low := name.lower()) in claim_headers]
    if len(path) + sum([len(value) for _, value in lowered]) > _LONGEST_REMEMBERED:
        return _route_by_head(method, host, path, tuple(lowered))
    return _remembered_route(method, host, path, tuple(lowered))


def _route_by_head(method: str, host: str, path: str, headers: Headers) -> Route:
    return _make_route(method, host, path, *_first_claim(method, _split_host(host)[0], path, headers))


# An agent sends requests to the same few places again and again, and each claim takes all dialects.
_remembered_route = lru_cache(1024)(_route_by_head)


def _make_route(method: str, host: str, path: str, dialect: "Dialect", claim: "Claim") -> Route:
    name, port = _split_host(host)
    service = _find_service(name)
    return Route(
        provider=(service.provider if service else None) or claim.provider or name,
        dialect=claim.dialect or dialect.name,
        operation=claim.operation,
        kind=claim.kind or _unclaimed_kind(name, method, path),
        method=method,
        host=name,
        upstream=_provider_by_host(name) or (f"{name}:{port}" if port else name),
        path=path,
        key_path=claim.path or path,
        model=claim.model,
        streams=claim.streams,
        polls=claim.polls,
    )


def _split_host(host: str) -> tuple[str, str]:
    """Return a host without its port, and the port."""
    name, _, port = host.rpartition(":") if re.search(r":\d*$", host) else (host, "", "")
    return name, port


def route_request(request: Request, frame: bytes | None = None) -> Route:
    """Find the route of a request. `frame` is the text of its body, an object, without the values of large members."""
    host, path, _ = split_url(request.url)
    may_be_claimed = frame is None or jsonrpc.may_be_json_rpc(frame)
    if frame is not None and not may_be_claimed:
        may_be_claimed = any(_may_claim(dialect, frame) for dialect, _ in load_claimants().bodies)
    body = request.body.data if may_be_claimed else b""
    return find_route(escape_surrogates(request.method), host, path, request.headers, body)


@lru_cache(maxsize=256)
def split_url(url: str) -> tuple[str, str, str]:
    """Split a URL into authority (without a default port), normalized path and raw query. An invalid URL is all path."""
    url = escape_surrogates(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", url, ""
    default = _DEFAULT_PORTS.get(parts.scheme)
    return host if port in (None, default) else f"{host}:{port}", normalize_path(parts.path) or "/", parts.query


_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")


def normalize_path(path: str) -> str:
    """Decode every escape of a character that needs none (RFC 3986 6.2.2.2, and the other `pchar`s)."""
    return _ESCAPE.sub(_unescape, path) if "%" in path else path


def _unescape(match: re.Match[str]) -> str:
    if match[1] is None:
        return "%25"  # not an escape, but it could become one with the characters decoded next to it
    character = chr(int(match[1], 16))
    plain = character.isascii() and (character.isalnum() or character in "-._~!$&'()*+,;=:@")
    return character if plain else match[0].upper()


def _claim_json_rpc(method: str, headers: Headers, body: bytes) -> "tuple[Dialect, Claim] | None":
    """Find the claim on a JSON-RPC message, which can be sent to any path."""
    if method != "POST" or (called := jsonrpc.called_methods(body)) is None:
        return None
    claims = ((dialect, claim_json_rpc(headers, called)) for dialect, claim_json_rpc in load_claimants().json_rpc)
    return next(((dialect, claim) for dialect, claim in claims if claim), None)


def _claim_by_shape(method: str, body: bytes) -> "tuple[Dialect, Claim] | None":
    """Find the claim on a body that says what protocol it is of by its members."""
    if method != "POST" or not body:
        return None
    for dialect, claim_body in load_claimants().bodies:
        if _may_claim(dialect, body) and (claim := claim_body(body)):
            return dialect, claim
    return None


def _may_claim(dialect: "Dialect", body: bytes) -> bool:
    return body.startswith(dialect.body_start) and dialect.body_mark in body


def _first_claim(method: str, host: str, path: str, headers: Headers) -> "tuple[Dialect, Claim]":
    from calls import telemetry

    if (reported := telemetry.report_path(method, host, path, headers)) is not None:
        from calls.dialects import generic
        from calls.dialects.dialect import Claim

        return generic.DIALECT, Claim(operation=telemetry.OPERATION, kind="other", path=reported)
    return next(find_claims(method, host, path, headers))


def find_claims(method: str, host: str, path: str, headers: Headers) -> "Iterator[tuple[Dialect, Claim]]":
    """Find every dialect that claims a request with this head, in order. The last one is `generic`, which claims all."""
    claims = ((dialect, dialect.claim(method, host, path, headers)) for dialect in load_claimants().dialects)
    return ((dialect, claim) for dialect, claim in claims if claim)


@lru_cache(1024)
def _find_service(host: str) -> "Service | None":
    by_pattern = (service for pattern, service in load_claimants().by_pattern if pattern.fullmatch(host))
    return load_claimants().by_host.get(host) or next(by_pattern, None)


def _provider_by_host(host: str) -> str | None:
    """The provider that a key names in place of the host."""
    service = load_claimants().by_host.get(host)
    return service.provider if service else None


def serves_only_models(host: str) -> bool:
    """Whether a host is a model service and nothing else."""
    service = _find_service(host)
    return host in load_claimants().by_host or (service is not None and service.only_models)


def _unclaimed_kind(host: str, method: str, path: str) -> CallKind:
    """The kind of a request that no dialect claims."""
    if service := _find_service(host):
        return service.unclaimed_kind(method, path)
    return "other" if _TELEMETRY.fullmatch(host) or asks_about_server(method, host, path) else "tool"
