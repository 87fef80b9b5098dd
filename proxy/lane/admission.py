"""Decide whether the lane can serve an HTTP/1.1 request, and resolve its target and run.

Where a function returns None, the connection is handed to the mitmproxy engine with all its bytes. That engine either
supports the request or reports what is wrong with it.
"""

import ipaddress
import re
from typing import Final, NamedTuple

from calls.model import Headers
from calls.project_runs import RUN_ID
from proxy.capture.connections.destination import CapturedDestination
from proxy.capture.connections.first_bytes import host_name
from proxy.lane.heads import Fields, RequestHead, body_framing, without_fields
from proxy.lane.upstream import UpstreamAddress
from proxy.recording.request_start import HeadMemo
from proxy.recording.run_identity import Identity, identify, is_run_named, parse_credentials
from proxy.wire.access import Credentials
from proxy.wire.config import Origin
from proxy.wire.engine_state import EngineState, OpenedTunnel
from proxy.wire.heads import HEAD_LINES

_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
_NUMBER: Final = r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_AUTHORITY: Final = re.compile(rf"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):{_NUMBER}")
_ABSOLUTE: Final = re.compile(rf"(?i:http)://([A-Za-z0-9._-]+)(?::{_NUMBER})?((?:[/?].*)?)")
_PREFIX: Final = re.compile(r"/~([A-Za-z0-9._:-]{1,128})(?:~([^/?]*))?(?=[/?]|$)")
_DROPPED: Final = frozenset({"proxy-authorization", "proxy-connection"})


class LaneRequest(NamedTuple):
    """A request that the lane serves."""

    target: Origin
    """The origin that the client requested. The record, the Host header and the rules use it."""

    address: UpstreamAddress
    """Where the target is reached."""

    method: str
    url: str
    identity: Identity
    named_run: str | None
    """The run, if the client named it to Playhead."""

    is_chunked: bool
    closes_connection: bool
    """Whether the client closes the connection after this request."""

    has_body: bool
    """Whether anything follows the head, even only the end mark of an empty body."""

    expects_continue: bool
    """Whether the client waits for a 100 response before it sends the body."""

    is_connection_bound: bool
    """Whether it authenticates the connection (NTLM, Negotiate), which then must not be shared."""

    captured: CapturedDestination | None
    """The original destination, if the connection was captured."""

    credentials: Credentials
    h2_fields: Fields
    """The fields for an HTTP/2 upstream."""

    memo: HeadMemo | None
    """What the recorder knows of a head that repeats; None if nobody recognises this one."""

    headers: Headers
    """Without Playhead's own headers."""

    http1_head: bytes
    """The head for an HTTP/1.1 upstream."""

    length: int
    """The length of the body, if it is not chunked."""


class TunnelTarget(NamedTuple):
    """The destination and credentials of a CONNECT tunnel or a captured connection."""

    host: str
    port: int
    credentials: Credentials
    captured: CapturedDestination | None = None
    """The original destination of a captured connection. `host` is then the server name of its handshake, if it has one."""

    def opened_tunnel(self, origin: Origin | None = None, server_name: str | None = None) -> OpenedTunnel:
        """Return the tunnel for the other engine. `origin` is what it serves, once known, and `server_name` is from TLS."""
        secure = origin is not None and origin.scheme == "https"
        return OpenedTunnel(
            host=self.host,
            port=self.port,
            credentials=self.credentials,
            is_http=origin is not None,
            is_tls=secure,
            server_name=server_name,
            captured=self.captured,
        )


def tunnel_target(head: RequestHead, engine: EngineState) -> TunnelTarget | None:
    """Return the tunnel that a CONNECT requests, or None if the lane cannot serve it."""
    authority = _AUTHORITY.fullmatch(head.target)
    frame = body_framing(head)
    if authority is None or frame.length or frame.is_chunked or frame.is_unsupported or len(head.names) > HEAD_LINES:
        return None
    credentials = parse_credentials(_field_value(head, "proxy-authorization"))
    if not _is_authorized(credentials, engine):
        return None
    tunnel = TunnelTarget(authority[1].strip("[]").lower(), int(authority[2]), credentials)
    target = Origin("https", tunnel.host, tunnel.port)
    is_refused = engine.answerer is None and engine.refusal(target) is not None
    return None if is_refused or engine.is_tunnelled(tunnel.host) else tunnel


def expect_run(engine: EngineState, credentials: Credentials) -> None:
    """Have the answerer prepare for the run that the requests in an admitted tunnel will most likely name."""
    if engine.answerer is not None and credentials and RUN_ID.fullmatch(credentials[0]):
        engine.answerer.expect_run(engine.config.access.full_run_name(credentials[0], credentials))


def has_named_run(head: RequestHead, engine: EngineState) -> bool:
    """Return whether a request outside of a tunnel names its run."""
    prefix = _PREFIX.match(head.target) if engine.reverse is not None else None
    return prefix is not None or is_run_named(
        zip(head.names, (value for _, value in head.fields), strict=True),
        parse_credentials(_field_value(head, "proxy-authorization")),
    )


def origin_in_tunnel(tunnel: TunnelTarget, server_name: str | None, *, is_tls: bool) -> Origin:
    """Return the origin of requests in a tunnel: its host or, if that is an address, the server name of the TLS handshake."""
    host = server_name if server_name and _is_address(tunnel.host) else tunnel.host
    return Origin("https" if is_tls else "http", host.lower(), tunnel.port)


def admitted_request(
    head: RequestHead, engine: EngineState, owner: str, tunnel: TunnelTarget | None, origin: Origin | None
) -> LaneRequest | None:
    """Return the request to serve, or None if the lane cannot. `origin` is what its tunnel serves, if there is one."""
    frame, names = body_framing(head), head.names
    if frame.is_unsupported or len(names) > HEAD_LINES or head.method == "CONNECT":
        return None
    if names.count("host") != 1 or "upgrade" in names or "http2-settings" in names:
        return None
    destination = _tunnel_destination(head, tunnel, origin) if tunnel and origin else _plain_destination(head, engine)
    if destination is None:
        return None
    if origin is None:
        head = _rewritten_head(head, destination)
    credentials, config = destination.credentials, engine.config
    project = config.access.project_of(credentials)
    identity = identify(head.fields, credentials, owner, config.is_only_run, project)
    expects = _field_value(head, "expect").lower()
    if identity.problem or expects not in ("", "100-continue"):
        return None
    return LaneRequest(
        destination.target,
        upstream_address(engine, destination.target, tunnel),
        head.method,
        f"{destination.target}{destination.path}",
        identity._replace(headers=()),  # kept in `headers`
        identity.named_run,
        frame.is_chunked,
        frame.closes_connection,
        frame.is_chunked or bool(frame.length),
        bool(expects),
        is_connection_auth(_field_value(head, "authorization")),
        tunnel and tunnel.captured,
        destination.credentials,
        (),
        None,
        identity.headers,
        head.raw if identity.headers is head.fields else _head_without_own_fields(head),
        frame.length or 0,
    )


def is_connection_auth(scheme: str) -> bool:
    """Return whether an authentication scheme authenticates the whole connection."""
    return scheme[:9].lower().startswith(("ntlm", "negotiate"))


def upstream_address(engine: EngineState, target: Origin, tunnel: TunnelTarget | None) -> UpstreamAddress:
    """Return the address at which a target is reached."""
    contact = engine.contacted_origin(target)
    if contact is target and tunnel is not None and (captured := tunnel.captured) is not None:
        # The certificate must match the server name of the client's handshake, whatever Host says.
        name = tunnel.host if contact.scheme == "https" else None
        return UpstreamAddress(captured.host, captured.port, name, captured.is_local)
    name = contact.host if contact.scheme == "https" else None
    if contact is target and tunnel is not None:
        return UpstreamAddress(tunnel.host, tunnel.port, name)
    return UpstreamAddress(contact.host, contact.port, name)


def handover_reason(head: RequestHead | None, engine: EngineState) -> str:
    """Return why the lane does not serve a request, in one word for the counters."""
    if head is None:
        return "malformed"
    if "upgrade" in head.names:
        return "upgrade"
    if head.method == "CONNECT":
        return "tunnel" if engine.is_tunnelled(head.target.rpartition(":")[0]) else "refused"
    return "odd"


class _Destination(NamedTuple):
    """The target of a request, and its credentials."""

    target: Origin
    path: str
    credentials: Credentials


def _tunnel_destination(head: RequestHead, tunnel: TunnelTarget, origin: Origin) -> _Destination | None:
    if tunnel.captured is not None:
        origin = host_origin(_field_value(head, "host"), origin)
    is_for_target = is_same_host(_field_value(head, "host"), origin) and head.target.startswith("/")
    return _Destination(origin, head.target, tunnel.credentials) if is_for_target else None


def host_origin(host: str, origin: Origin) -> Origin:
    """Return the origin that a request on a captured connection names in Host."""
    name = host_name(host)
    return origin if name is None or name == origin.host else Origin(origin.scheme, name, origin.port)


def is_same_host(host: str, origin: Origin) -> bool:
    """Return whether a Host value means the origin of the tunnel."""
    # Ignore the port: Node writes `:80` into requests over connections that it did not open itself.
    return host == origin.authority or _PORT.sub("", host).strip("[]").lower().rstrip(".") == origin.host.rstrip(".")


def _plain_destination(head: RequestHead, engine: EngineState) -> _Destination | None:
    """Return the target of a request outside of a tunnel: the reverse proxy's origin, else the absolute URL's."""
    credentials = parse_credentials(_field_value(head, "proxy-authorization"))
    if engine.reverse is None:
        found = _ABSOLUTE.fullmatch(head.target)
        if found is None or not _is_authorized(credentials, engine):
            return None
        path = found[3] if found[3].startswith("/") else "/" + found[3]
        return _Destination(Origin("http", found[1].lower(), int(found[2] or 80)), path, credentials)
    path = head.target
    if prefix := _PREFIX.match(path):
        credentials = prefix[1], prefix[2] or ""
        path = path[prefix.end() :]
        path = path if path.startswith("/") else "/" + path
    if not path.startswith("/") or not _is_authorized(credentials, engine):
        return None
    return _Destination(engine.reverse, path, credentials)


def _rewritten_head(head: RequestHead, destination: _Destination) -> RequestHead:
    """Return the head with the path alone as its target, and the target's authority in Host."""
    lines = head.raw.split(b"\r\n")
    lines[0] = f"{head.method} {destination.path} HTTP/1.1".encode("latin-1")
    at, authority, fields = head.names.index("host"), destination.target.authority, head.fields
    if fields[at][1] != authority:
        fields = (*fields[:at], ("Host", authority), *fields[at + 1 :])
        lines[at + 1] = b"Host: " + authority.encode()
    return RequestHead(b"\r\n".join(lines), head.method, destination.path, fields, head.field_names)


def _head_without_own_fields(head: RequestHead) -> bytes:
    ours = {name for name in head.names if name.startswith("x-playhead-")} | _DROPPED
    return without_fields(head.raw, head.names, frozenset(ours))


def _field_value(head: RequestHead, name: str) -> str:
    return head.fields[head.names.index(name)][1] if name in head.names else ""


def _is_authorized(credentials: Credentials, engine: EngineState) -> bool:
    access = engine.config.access
    if not access.is_admitted(credentials):
        return False
    return (
        not credentials
        or not credentials[0]
        or (
            RUN_ID.fullmatch(credentials[0]) is not None
            and access.can_write(access.full_run_name(credentials[0], credentials), credentials)
        )
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
