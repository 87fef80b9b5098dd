"""Check the heads of HTTP/2 requests, and convert heads between HTTP/2 and HTTP/1.1.

libnghttp2 has already checked that pseudo-fields are present, names are lower-case tokens, and no field is
connection-specific.
"""

from typing import Final

from calls.model import Headers, header
from proxy.lane.admission import (
    LaneRequest,
    TunnelTarget,
    host_origin,
    is_connection_auth,
    is_same_host,
    upstream_address,
)
from proxy.lane.exchange import DownstreamHead
from proxy.lane.heads import Fields, is_withheld
from proxy.recording.run_identity import identify
from proxy.wire.config import Origin
from proxy.wire.engine_state import EngineState
from proxy.wire.heads import HEAD_LINES
from proxy.wire.http1_heads import is_length
from proxy.wire.problem import Problem
from proxy.wire.run_access import require_write_access
from proxy.wire.trailers import sendable_trailers

# RFC 9113 8.2.2
_CONNECTION_FIELDS: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})


def admitted_h2_request(
    fields: Fields, engine: EngineState, owner: str, tunnel: TunnelTarget, origin: Origin, *, is_bodiless: bool
) -> LaneRequest:
    """Return the request to serve in a tunnel. Raises Problem."""
    pseudo, headers = _split_pseudo_fields(fields)
    method, authority, path = pseudo[":method"], pseudo.get(":authority", ""), pseudo.get(":path", "")
    _check_head(method, path, headers)
    hosts = [value for name, value in headers if name == "host"]
    if tunnel.captured is not None:
        origin = host_origin(authority or next(iter(hosts), ""), origin)
    if not all(is_same_host(host, origin) for host in (authority, *hosts) if host):
        detail = f"the request names another host than its connection, {origin.authority}; it was not forwarded"
        raise Problem(421, "host_mismatch", detail)
    config = engine.config
    project = config.access.project_of(tunnel.credentials)
    identity = identify(headers, tunnel.credentials, owner, config.is_only_run, project)
    if identity.problem:
        raise Problem(400, "bad_run", identity.problem)
    require_write_access(identity.run, tunnel.credentials, config.access)
    length = header(headers, "content-length")
    if length is not None and not is_length(length):
        detail = "the request's Content-Length is not a plain number; the request was not forwarded"
        raise Problem(400, "malformed_framing", detail)
    return LaneRequest(
        target=origin,
        address=upstream_address(engine, origin, tunnel),
        method=method,
        url=f"{origin}{path}",
        identity=identity._replace(headers=()),
        named_run=identity.named_run,
        is_chunked=length is None and not is_bodiless,
        closes_connection=False,
        has_body=not is_bodiless,
        expects_continue=header(headers, "expect") is not None,
        is_connection_bound=is_connection_auth(header(headers, "authorization") or ""),
        credentials=tunnel.credentials,
        h2_fields=_fields_for_upstream(fields, origin.scheme.encode(), headers, identity.headers),
        memo=None,
        headers=identity.headers,
        http1_head=b"",
        length=int(length or 0),
        captured=tunnel.captured,
    )


def _split_pseudo_fields(fields: Fields) -> tuple[dict[str, str], Headers]:
    """Return the pseudo-fields and the other fields. Pseudo-fields come first (RFC 9113 8.3)."""
    pseudo = {name.decode("latin-1"): value.decode("latin-1") for name, value in fields if name[:1] == b":"}
    return pseudo, tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields[len(pseudo) :])


def _check_head(method: str, path: str, headers: Headers) -> None:
    if method == "CONNECT":
        raise Problem(405, "connect_in_tunnel", "CONNECT is not supported within a tunnel: send it to the proxy itself")
    if not path.startswith("/"):
        # With a scheme other than http and https, libnghttp2 accepts `@elsewhere.test/`, and the recorded URL would name that
        # host.
        raise Problem(400, "bad_path", "the request's path does not begin with /; the request was not forwarded")
    if len(headers) > HEAD_LINES:
        raise Problem(431, "head_too_large", f"the request has more than {HEAD_LINES} header fields")


def _fields_for_upstream(fields: Fields, scheme: bytes, headers: Headers, kept_headers: Headers) -> Fields:
    if kept_headers is headers and (b":scheme", scheme) in fields:
        return fields
    names = {name.encode("latin-1") for name, _ in kept_headers}
    return [
        (b":scheme", scheme) if field[0] == b":scheme" else field
        for field in fields
        if field[0][:1] == b":" or field[0] in names
    ]


def http1_request_head(request: LaneRequest) -> bytes:
    """Return the head of a request for an HTTP/1.1 upstream."""
    pseudo, _ = _split_pseudo_fields(request.h2_fields)
    headers = request.headers
    names = [name for name, _ in headers]
    if "host" not in names:
        headers = (("Host", pseudo.get(":authority", "")), *headers)
    if names.count("cookie") > 1:
        # RFC 9113 8.2.3: only HTTP/2 allows several Cookie fields.
        whole = "; ".join(value for name, value in headers if name == "cookie")
        at = next(at for at, (name, _) in enumerate(headers) if name == "cookie")
        headers = (*headers[:at], ("cookie", whole), *(one for one in headers[at:] if one[0] != "cookie"))
    if request.is_chunked:
        headers = (*headers, ("Transfer-Encoding", "chunked"))
    lines = [f"{request.method} {pseudo[':path']} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def downstream_head(fields: Fields) -> DownstreamHead:
    """Return the head of an upstream's HTTP/2 response."""
    pseudo, headers = _split_pseudo_fields(fields)
    if any(is_withheld(name) for name, _ in headers):
        fields = [field for field in fields if not is_withheld(field[0].decode("latin-1"))]
        headers = tuple(field for field in headers if field[0] != "alt-svc")
    return DownstreamHead(int(pseudo[":status"]), "", "HTTP/2", headers, h2_fields=fields)


def h2_response_fields(status: int, headers: Headers) -> Fields:
    """Return a response head as HTTP/2 fields."""
    return [(b":status", str(status).encode()), *h2_fields(headers)]


def h2_fields(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return fields for HTTP/2: names in lower case, without connection-specific fields."""
    lowered = [(name.lower(), value) for name, value in headers]
    return [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in lowered if name not in _CONNECTION_FIELDS
    ]


def h2_trailers(trailers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the trailer fields to forward, for HTTP/2."""
    return h2_fields(sendable_trailers(trailers))


def text_fields(fields: Fields) -> Headers:
    """Return HTTP/2 fields as text."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
