"""Decide before a byte is forwarded whether a request may go on, for which run, and to which upstream."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mitmproxy import http
from mitmproxy.net.http.url import parse_authority
from mitmproxy.net.http.validate import validate_headers

from calls.model import Headers
from proxy.capture.connections.first_bytes import host_name
from proxy.recording.run_identity import OWN_SOURCES, Identity, identify, refusal
from proxy.wire.access import Access
from proxy.wire.config import DEFAULT_PORTS, Origin
from proxy.wire.heads import HEAD_LINES, fields_fault
from proxy.wire.http1_heads import is_length
from proxy.wire.problem import Problem

type Credentials = tuple[str, str]
"""A run and a token; either may be empty."""

_PREFIX = re.compile(rb"/~(?P<run>[A-Za-z0-9._:-]{1,128})(?:~(?P<token>[^/?]*))?(?=[/?]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """A request that may go on."""

    target: Origin
    """Who was asked. The record, the Host header and the rules speak of it."""

    url: str
    method: str
    http_version: str
    headers: Headers
    """Without our own."""

    identity: Identity
    named: str | None
    """The run, where the client named it to us: by credentials, our header or the path."""


_NO_TARGET: Final = re.compile(rb"[\x00-\x20\x7f]")


def sound(request: http.Request) -> None:
    """Raise Problem for a head that no upstream may see."""
    if len(request.headers.fields) > HEAD_LINES:
        raise Problem(431, "head_too_large", f"the request has more than {HEAD_LINES} header fields")
    line = fields_fault([(request.data.method, request.data.path)]) and "its method or its path is none"
    if _NO_TARGET.search(request.data.path):
        # HTTP/1 could not say so, and in a request line of ours it would begin another field (RFC 9113 8.3.1).
        line = "its path holds a blank or a control character"
    if fault := fields_fault(request.headers.fields) or line:
        raise Problem(400, "malformed_head", f"the request's head is malformed ({fault}); it went nowhere")
    lengths = request.headers.get_all("content-length")
    coded = "transfer-encoding" in request.headers
    if not coded and (not lengths or (len(lengths) == 1 and is_length(lengths[0]))):
        return
    try:
        validate_headers(request)
    except ValueError as error:
        raise _malformed_framing() from error
    if lengths:
        raise _malformed_framing()


def _malformed_framing() -> Problem:
    detail = "the request's framing is ambiguous or invalid (Content-Length, Transfer-Encoding); it went nowhere"
    return Problem(400, "malformed_framing", detail)


def path_of_origin(request: http.Request) -> None:
    """Raise Problem for a path that does not begin with /: in the record's URL it would be a part of the host."""
    if not request.data.path.startswith(b"/"):
        raise Problem(400, "bad_path", "the path of a request begins with /; it went nowhere")


def authorize(given: Credentials | None, access: Access, *, reverse: bool = False) -> None:
    """Raise Problem unless the client may use this worker and names a run that can be one."""
    if not access.admits(given):
        detail = (
            "this proxy asks for its recording token: use http://RUN:TOKEN@host:port as the proxy's URL;"
            " `playhead token --recording` prints it, and `playhead env` fills it in"
        )
        raise Problem(401 if reverse else 407, "token_required", detail)
    if wrong := refusal((), given):
        raise Problem(400, "bad_run", wrong)


def unprefixed(request: http.Request) -> Credentials | None:
    """Take `/~RUN/` (or `/~RUN~TOKEN/`) off the path, and say what it told."""
    found = _PREFIX.match(request.data.path)
    if found is None:
        return None
    rest = request.data.path[found.end() :]
    request.data.path = rest if rest.startswith(b"/") else b"/" + rest
    return found["run"].decode(), (found["token"] or b"").decode("latin-1")


def asked_by_proxy_request(request: http.Request) -> Origin:
    """Whom a plain proxy request (absolute form) is for."""
    if not request.host or request.scheme not in DEFAULT_PORTS:
        raise Problem(
            400,
            "not_a_proxy_request",
            "this is a proxy: set it as HTTPS_PROXY, or start Playhead with --reverse ORIGIN to use it as a base URL",
        )
    return Origin(request.scheme, request.host.lower(), request.port)


def asked_in_tunnel(host: str, port: int, sni: str | None, *, secure: bool) -> Origin:
    """Whom requests inside a CONNECT are for: its host, or, where that is an address, the name of the TLS handshake."""
    if sni and _is_address(host):
        host = sni
    return Origin("https" if secure else "http", host.lower(), port)


def named_by(request: http.Request, target: Origin) -> Origin:
    """Whom a request over a captured connection is for: the client chose the connection without us, and Host is its word."""
    name = host_name(request.authority or request.headers.get("host", ""))
    return target if name is None or name == target.host else Origin(target.scheme, name, target.port)


def agree_on_host(request: http.Request, target: Origin, *, rewrite: bool) -> None:
    """Let Host say whom the request is for. Raise Problem where it says something else and may not be rewritten."""
    hosts = request.headers.get_all("host")
    if len(hosts) > 1:
        raise Problem(400, "malformed_head", "the request has more than one Host; it went nowhere")
    named = [*hosts, *filter(None, [request.authority])]
    if rewrite and named == [target.authority] * len(named) and (hosts or (named and request.is_http2)):
        return
    if not rewrite:
        if all(_names(text, target) for text in named):
            return
        detail = f"the request names another host than the connection was made for, {target.authority}; it went nowhere"
        raise Problem(421, "host_mismatch", detail)
    if hosts or not request.is_http2:
        request.headers["Host"] = target.authority
    if request.authority:
        request.authority = target.authority


def asked(
    request: http.Request,
    target: Origin,
    given: Credentials | None,
    owner: str,
    is_only_run: Callable[[str], bool] = lambda _run: False,
) -> AdmittedRequest:
    """Find out who asks, and leave in the request only what is for the upstream."""
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.fields)
    identity = identify(headers, given, owner, is_only_run)
    if identity.wrong:
        raise Problem(400, "bad_run", identity.wrong)
    others = identity.headers
    if others is not headers:
        request.headers = http.Headers([(k.encode("latin-1"), v.encode("latin-1")) for k, v in others])
    return AdmittedRequest(
        target=target,
        url=f"{target}{request.data.path.decode('latin-1')}",
        method=request.data.method.decode("latin-1"),
        http_version=version(request),
        headers=others,
        identity=identity,
        named=next((value for source, value in identity.evidence if source in OWN_SOURCES), None),
    )


def version(message: http.Message) -> str:
    """`HTTP/1.0`, `HTTP/1.1` or `HTTP/2`."""
    return "HTTP/2" if message.is_http2 else message.http_version


def _names(text: str, target: Origin) -> bool:
    # Not the port: Node writes `:80` into requests over connections that it did not make itself.
    try:
        host, _ = parse_authority(text, check=True)
    except ValueError:
        return False
    return host.lower().rstrip(".") == target.host.rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
