"""Check the heads of HTTP/2 requests, and convert heads between HTTP/2 and HTTP/1.1.

libnghttp2 has seen to it that pseudo-fields are there, names are lower-case tokens and nothing is connection-specific.
"""

from typing import Final

from calls.model import Headers, header
from proxy.lane.admission import LaneRequest, TunnelTarget, by_connection, named_by, named_to_us, names, way_to
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
_OF_CONNECTION: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})


def asking(
    fields: Fields, engine: EngineState, owner: str, tunnel: TunnelTarget, within: Origin, *, bodiless: bool
) -> LaneRequest:
    """What a request in a tunnel asks for. Raises Problem."""
    pseudo, headers = _apart(fields)
    method, authority, path = pseudo[":method"], pseudo.get(":authority", ""), pseudo.get(":path", "")
    _sound(method, path, headers)
    hosts = [value for name, value in headers if name == "host"]
    if tunnel.captured is not None:
        within = named_by(authority or next(iter(hosts), ""), within)
    if not all(names(host, within) for host in (authority, *hosts) if host):
        detail = f"the request names another host than the connection was made for, {within.authority}; it went nowhere"
        raise Problem(421, "host_mismatch", detail)
    identity = identify(headers, tunnel.given, owner, engine.config.is_only_run)
    if identity.wrong:
        raise Problem(400, "bad_run", identity.wrong)
    require_write_access(identity.run, tunnel.given, engine.config.access)
    length = header(headers, "content-length")
    if length is not None and not is_length(length):
        detail = "the request's Content-Length is not a plain number; it went nowhere"
        raise Problem(400, "malformed_framing", detail)
    return LaneRequest(
        target=within,
        way=way_to(engine, within, tunnel),
        method=method,
        url=f"{within}{path}",
        identity=identity._replace(headers=()),
        named=named_to_us(identity),
        chunked=length is None and not bodiless,
        closes=False,
        body_follows=not bodiless,
        expects=header(headers, "expect") is not None,
        bound=by_connection(header(headers, "authorization") or ""),
        given=tunnel.given,
        wire=_for_upstream(fields, within.scheme.encode(), headers, identity.headers),
        headers=identity.headers,
        head=b"",
        length=int(length or 0),
        captured=tunnel.captured,
    )


def _apart(fields: Fields) -> tuple[dict[str, str], Headers]:
    """The pseudo-fields, and the others; the first have to stand before these (RFC 9113 8.3)."""
    pseudo = {name.decode("latin-1"): value.decode("latin-1") for name, value in fields if name[:1] == b":"}
    return pseudo, tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields[len(pseudo) :])


def _sound(method: str, path: str, headers: Headers) -> None:
    if method == "CONNECT":
        raise Problem(405, "connect_in_tunnel", "there is a connection already: CONNECT is for the proxy itself")
    if not path.startswith("/"):
        # With another scheme than http and https, libnghttp2 lets `@elsewhere.test/` pass, and the record would name that host.
        raise Problem(400, "bad_path", "the path of a request begins with /; it went nowhere")
    if len(headers) > HEAD_LINES:
        raise Problem(431, "head_too_large", f"the request has more than {HEAD_LINES} header fields")


def _for_upstream(fields: Fields, scheme: bytes, headers: Headers, kept: Headers) -> Fields:
    if kept is headers and (b":scheme", scheme) in fields:
        return fields
    names = {name.encode("latin-1") for name, _ in kept}
    return [
        (b":scheme", scheme) if field[0] == b":scheme" else field
        for field in fields
        if field[0][:1] == b":" or field[0] in names
    ]


def http1_request(asked: LaneRequest) -> bytes:
    """The head for an upstream that speaks HTTP/1.1."""
    pseudo, _ = _apart(asked.wire)
    headers = asked.headers
    names = [name for name, _ in headers]
    if "host" not in names:
        headers = (("Host", pseudo.get(":authority", "")), *headers)
    if names.count("cookie") > 1:
        # RFC 9113 8.2.3: only HTTP/2 may have them apart.
        whole = "; ".join(value for name, value in headers if name == "cookie")
        at = next(at for at, (name, _) in enumerate(headers) if name == "cookie")
        headers = (*headers[:at], ("cookie", whole), *(one for one in headers[at:] if one[0] != "cookie"))
    if asked.chunked:
        headers = (*headers, ("Transfer-Encoding", "chunked"))
    lines = [f"{asked.method} {pseudo[':path']} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def from_http2(fields: Fields) -> DownstreamHead:
    """The head of an HTTP/2 response."""
    pseudo, headers = _apart(fields)
    if any(is_withheld(name) for name, _ in headers):
        fields = [field for field in fields if not is_withheld(field[0].decode("latin-1"))]
        headers = tuple(field for field in headers if field[0] != "alt-svc")
    return DownstreamHead(int(pseudo[":status"]), "", "HTTP/2", headers, wire=fields)


def wired(status: int, headers: Headers) -> Fields:
    """A response's head in HTTP/2."""
    return [(b":status", str(status).encode()), *as_fields(headers)]


def as_fields(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Fields as HTTP/2 has them: in lower case, and without what speaks of a connection."""
    lowered = [(name.lower(), value) for name, value in headers]
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lowered if name not in _OF_CONNECTION]


def as_trailers(trailers: Headers) -> list[tuple[bytes, bytes]]:
    """Those trailer fields that are passed on, as HTTP/2 has them."""
    return as_fields(sendable_trailers(trailers))


def as_text(fields: Fields) -> Headers:
    """Fields as our model has them."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
