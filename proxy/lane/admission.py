"""Decide whether the lane can serve a request; resolve its target and run. The mitmproxy engine gets the others.

Nothing here answers with a reason: where it returns None, the connection goes to mitmproxy with all its bytes, which
either speaks what we do not, or says what is wrong with it.
"""

import ipaddress
import re
from typing import Final, NamedTuple

from calls.model import Headers
from calls.request_identifiers import RUN
from proxy.capture.connections.destination import CapturedDestination
from proxy.capture.connections.first_bytes import host_name
from proxy.lane.heads import Fields, RequestHead, framing, without
from proxy.lane.upstream import Way
from proxy.recording.run_identity import OWN_SOURCES, Credentials, Identity, credentials, identify, names_a_run
from proxy.wire.config import Origin
from proxy.wire.engine_state import BegunTunnel, EngineState
from proxy.wire.heads import HEAD_LINES

_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
_NUMBER: Final = r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_AUTHORITY: Final = re.compile(rf"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):{_NUMBER}")
_ABSOLUTE: Final = re.compile(rf"(?i:http)://([A-Za-z0-9._-]+)(?::{_NUMBER})?((?:[/?].*)?)")
_PREFIX: Final = re.compile(r"/~([A-Za-z0-9._:-]{1,128})(?:~([^/?]*))?(?=[/?]|$)")
_DROPPED: Final = frozenset({"proxy-authorization", "proxy-connection"})


class LaneRequest(NamedTuple):
    """A request that may go on."""

    target: Origin
    """Who was asked. The record, the Host header and the rules speak of it."""

    way: Way
    """How that is reached."""

    method: str
    url: str
    identity: Identity
    named: str | None
    """The run, where the client named it to us."""

    chunked: bool
    closes: bool
    """Whether the client wants no more of the connection."""

    body_follows: bool
    """Whether anything comes behind the head, if only the end of an empty body."""

    expects: bool
    """Whether the client waits for a 100 before it sends its body."""

    bound: bool
    """Whether its authentication is that of a connection, which nobody else may use then."""

    captured: CapturedDestination | None
    """Where its connection went, where it was captured."""

    given: Credentials
    """Run and token, as the client presented them."""

    wire: Fields
    """What an upstream of HTTP/2 gets."""

    headers: Headers
    """Without our own."""

    head: bytes
    """What one of HTTP/1.1 gets."""

    length: int
    """Of the body, where it is not chunked."""


class TunnelTarget(NamedTuple):
    """What a CONNECT has told, or what is known of a captured connection."""

    host: str
    port: int
    given: Credentials
    captured: CapturedDestination | None = None
    """Where a captured connection went; `host` is then what it names in its handshake, if it names anything."""

    def begun(self, within: Origin | None = None, name: str | None = None) -> BegunTunnel:
        """The same for the other engine: `within` is whom it is for, once that is known, by this `name` in its handshake."""
        secure = within is not None and within.scheme == "https"
        return BegunTunnel(
            host=self.host,
            port=self.port,
            given=self.given,
            opened=within is not None,
            secure=secure,
            name=name,
            captured=self.captured,
        )


def connected(head: RequestHead, engine: EngineState) -> TunnelTarget | None:
    """The tunnel that this CONNECT asks for."""
    authority = _AUTHORITY.fullmatch(head.target)
    frame = framing(head)
    if authority is None or frame.length or frame.chunked or frame.odd or len(head.names) > HEAD_LINES:
        return None
    given = credentials(_value(head, "proxy-authorization"))
    if not _authorized(given, engine):
        return None
    tunnel = TunnelTarget(authority[1].strip("[]").lower(), int(authority[2]), given)
    target = Origin("https", tunnel.host, tunnel.port)
    barred = engine.answerer is None and engine.refusal(target) is not None
    return None if barred or engine.is_tunnelled(tunnel.host) else tunnel


def names_to_us(head: RequestHead, engine: EngineState) -> bool:
    """Whether a request outside of a tunnel names a run to us."""
    prefix = _PREFIX.match(head.target) if engine.reverse is not None else None
    return prefix is not None or names_a_run(
        zip(head.names, (value for _, value in head.fields), strict=True),
        credentials(_value(head, "proxy-authorization")),
    )


def in_tunnel(tunnel: TunnelTarget, name: str | None, *, secure: bool) -> Origin:
    """Whom requests in a tunnel are for: its host, or, where that is an address, the name of the TLS handshake."""
    host = name if name and _is_address(tunnel.host) else tunnel.host
    return Origin("https" if secure else "http", host.lower(), tunnel.port)


def asked(
    head: RequestHead, engine: EngineState, owner: str, tunnel: TunnelTarget | None, within: Origin | None
) -> LaneRequest | None:
    """What a request asks for; `within` is whom its tunnel is for."""
    frame, names = framing(head), head.names
    if frame.odd or len(names) > HEAD_LINES or head.method == "CONNECT":
        return None
    if names.count("host") != 1 or "upgrade" in names or "http2-settings" in names:
        return None
    place = _tunnelled(head, tunnel, within) if tunnel and within else _placed(head, engine)
    if place is None:
        return None
    if within is None:
        head = _readdressed(head, place)
    identity = identify(head.fields, place.given, owner, engine.config.is_only_run)
    expects = _value(head, "expect").lower()
    if identity.wrong or expects not in ("", "100-continue"):
        return None
    return LaneRequest(
        place.target,
        way_to(engine, place.target, tunnel),
        head.method,
        f"{place.target}{place.path}",
        identity._replace(headers=()),  # they are below
        named_to_us(identity),
        frame.chunked,
        frame.closes,
        frame.chunked or bool(frame.length),
        bool(expects),
        by_connection(_value(head, "authorization")),
        tunnel and tunnel.captured,
        place.given,
        (),
        identity.headers,
        head.raw if identity.headers is head.fields else _without_ours(head),
        frame.length or 0,
    )


def named_to_us(identity: Identity) -> str | None:
    """The run, where the client named it to us."""
    return next((value for source, value in identity.evidence if source in OWN_SOURCES), None)


def by_connection(scheme: str) -> bool:
    """Whether who authenticates so does it once for a connection."""
    return scheme[:9].lower().startswith(("ntlm", "negotiate"))


def way_to(engine: EngineState, target: Origin, tunnel: TunnelTarget | None) -> Way:
    """How whom we contact for the target is reached."""
    contact = engine.contact(target)
    if contact is target and tunnel is not None and (captured := tunnel.captured) is not None:
        # Whom the certificate has to be of is what the handshake named, whatever Host says.
        name = tunnel.host if contact.scheme == "https" else None
        return Way(captured.host, captured.port, name, captured.is_local)
    name = contact.host if contact.scheme == "https" else None
    if contact is target and tunnel is not None:
        return Way(tunnel.host, tunnel.port, name)
    return Way(contact.host, contact.port, name)


def not_ours(head: RequestHead | None, engine: EngineState) -> str:
    """Why a request is not the lane's, in a word for the counters."""
    if head is None:
        return "malformed"
    if "upgrade" in head.names:
        return "upgrade"
    if head.method == "CONNECT":
        return "tunnel" if engine.is_tunnelled(head.target.rpartition(":")[0]) else "refused"
    return "odd"


class _Place(NamedTuple):
    """Whom a request is for, and by whose leave."""

    target: Origin
    path: str
    given: Credentials


def _tunnelled(head: RequestHead, tunnel: TunnelTarget, within: Origin) -> _Place | None:
    if tunnel.captured is not None:
        within = named_by(_value(head, "host"), within)
    there = names(_value(head, "host"), within) and head.target.startswith("/")
    return _Place(within, head.target, tunnel.given) if there else None


def named_by(host: str, within: Origin) -> Origin:
    """Whom a request over a captured connection is for: the client chose the connection without us, and Host is its word."""
    name = host_name(host)
    return within if name is None or name == within.host else Origin(within.scheme, name, within.port)


def names(host: str, within: Origin) -> bool:
    """Whether a request in a tunnel may name this host."""
    # Not the port: Node writes `:80` into requests over connections that it did not make itself.
    return host == within.authority or _PORT.sub("", host).strip("[]").lower().rstrip(".") == within.host.rstrip(".")


def _placed(head: RequestHead, engine: EngineState) -> _Place | None:
    """Outside of a tunnel: by the path's prefix in front of one origin, else by the absolute form."""
    given = credentials(_value(head, "proxy-authorization"))
    if engine.reverse is None:
        found = _ABSOLUTE.fullmatch(head.target)
        if found is None or not _authorized(given, engine):
            return None
        path = found[3] if found[3].startswith("/") else "/" + found[3]
        return _Place(Origin("http", found[1].lower(), int(found[2] or 80)), path, given)
    path = head.target
    if prefix := _PREFIX.match(path):
        given = prefix[1], prefix[2] or ""
        path = path[prefix.end() :]
        path = path if path.startswith("/") else "/" + path
    if not path.startswith("/") or not _authorized(given, engine):
        return None
    return _Place(engine.reverse, path, given)


def _readdressed(head: RequestHead, place: _Place) -> RequestHead:
    """The head as its upstream wants it: the path alone, and in Host whom it is for."""
    lines = head.raw.split(b"\r\n")
    lines[0] = f"{head.method} {place.path} HTTP/1.1".encode("latin-1")
    at, authority, fields = head.names.index("host"), place.target.authority, head.fields
    if fields[at][1] != authority:
        fields = (*fields[:at], ("Host", authority), *fields[at + 1 :])
        lines[at + 1] = b"Host: " + authority.encode()
    return RequestHead(b"\r\n".join(lines), head.method, place.path, fields, head.known)


def _without_ours(head: RequestHead) -> bytes:
    ours = {name for name in head.names if name.startswith("x-playhead-")} | _DROPPED
    return without(head.raw, head.names, frozenset(ours))


def _value(head: RequestHead, name: str) -> str:
    return head.fields[head.names.index(name)][1] if name in head.names else ""


def _authorized(given: Credentials, engine: EngineState) -> bool:
    access = engine.config.access
    if not access.admits(given):
        return False
    return not given or not given[0] or (RUN.fullmatch(given[0]) is not None and access.may_write(given[0], given))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
