"""Decide whether a request may be forwarded, for which run, and to which upstream, before any of it is forwarded."""

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
from proxy.recording.run_identity import Identity, identify, identity_problem
from proxy.wire.access import Access, Credentials
from proxy.wire.config import DEFAULT_PORTS, Origin
from proxy.wire.heads import HEAD_LINES, fields_fault
from proxy.wire.http1_heads import is_length
from proxy.wire.problem import Problem
from proxy.wire.run_access import ended_token_problem

_PREFIX = re.compile(rb"/~(?P<run>[A-Za-z0-9._:-]{1,128})(?:~(?P<token>[^/?]*))?(?=[/?]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """A request that may be forwarded."""

    target: Origin
    """The origin that the client requested. The record, the Host header and the rules use it."""

    url: str
    method: str
    http_version: str
    headers: Headers
    """Without Playhead's own headers."""

    identity: Identity
    named_run: str | None
    """The run, if the client named it to Playhead: in credentials, a header or the path."""


_FORBIDDEN_IN_PATH: Final = re.compile(rb"[\x00-\x20\x7f]")


def check_head(request: http.Request) -> None:
    """Raise Problem for a head that must not be forwarded."""
    if len(request.headers.fields) > HEAD_LINES:
        raise Problem(431, "head_too_large", f"the request has more than {HEAD_LINES} header fields")
    line = fields_fault([(request.data.method, request.data.path)]) and "its method or its path is empty or invalid"
    if _FORBIDDEN_IN_PATH.search(request.data.path):
        # Possible in HTTP/2 only; in an HTTP/1 request line it would begin another element (RFC 9113 8.3.1).
        line = "its path contains whitespace or a control character"
    if fault := fields_fault(request.headers.fields) or line:
        raise Problem(400, "malformed_head", f"the request's head is malformed ({fault}); it was not forwarded")
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
    detail = "the request's framing is ambiguous or invalid (Content-Length, Transfer-Encoding); the request was not forwarded"
    return Problem(400, "malformed_framing", detail)


def check_path(request: http.Request) -> None:
    """Raise Problem for a path that does not begin with /: in the recorded URL it would become part of the host."""
    if not request.data.path.startswith(b"/"):
        raise Problem(400, "bad_path", "the request's path does not begin with /; the request was not forwarded")


def authorize(credentials: Credentials, access: Access, *, reverse: bool = False) -> None:
    """Raise Problem unless the client may use this worker, and its run name is valid."""
    status = 401 if reverse else 407
    if access.has_ended_token(credentials):
        raise ended_token_problem(status)
    if not access.is_admitted(credentials):
        detail = (
            "this proxy requires its recording token: use http://RUN:TOKEN@host:port as the proxy's URL;"
            " `playhead token --recording` prints the token, and `playhead env` the whole URL"
        )
        raise Problem(status, "token_required", detail)
    if wrong := identity_problem((), credentials):
        raise Problem(400, "bad_run", wrong)


def strip_run_prefix(request: http.Request) -> Credentials:
    """Remove `/~RUN/` or `/~RUN~TOKEN/` from the path, and return its credentials."""
    found = _PREFIX.match(request.data.path)
    if found is None:
        return None
    rest = request.data.path[found.end() :]
    request.data.path = rest if rest.startswith(b"/") else b"/" + rest
    return found["run"].decode(), (found["token"] or b"").decode("latin-1")


def proxy_request_origin(request: http.Request) -> Origin:
    """Return the origin of a plain proxy request (in absolute form)."""
    if not request.host or request.scheme not in DEFAULT_PORTS:
        raise Problem(
            400,
            "not_a_proxy_request",
            "this port is a proxy: set it as HTTPS_PROXY, or start Playhead with --reverse ORIGIN to use it as a base URL",
        )
    return Origin(request.scheme, request.host.lower(), request.port)


def origin_in_tunnel(host: str, port: int, sni: str | None, *, is_tls: bool) -> Origin:
    """Return the origin of requests in a tunnel: its host or, if that is an address, the server name of the TLS handshake."""
    if sni and _is_address(host):
        host = sni
    return Origin("https" if is_tls else "http", host.lower(), port)


def host_origin(request: http.Request, target: Origin) -> Origin:
    """Return the origin that a request on a captured connection names in Host."""
    name = host_name(request.authority or request.headers.get("host", ""))
    return target if name is None or name == target.host else Origin(target.scheme, name, target.port)


def check_host(request: http.Request, target: Origin, *, can_rewrite: bool) -> None:
    """Set Host to the target. Raise Problem if it names another host and must not be rewritten."""
    hosts = request.headers.get_all("host")
    if len(hosts) > 1:
        raise Problem(400, "malformed_head", "the request has more than one Host header; it was not forwarded")
    host_names = [*hosts, *filter(None, [request.authority])]
    if (
        can_rewrite
        and host_names == [target.authority] * len(host_names)
        and (hosts or (host_names and request.is_http2))
    ):
        return
    if not can_rewrite:
        if all(_is_same_host(text, target) for text in host_names):
            return
        detail = f"the request names another host than its connection, {target.authority}; it was not forwarded"
        raise Problem(421, "host_mismatch", detail)
    if hosts or not request.is_http2:
        request.headers["Host"] = target.authority
    if request.authority:
        request.authority = target.authority


def admit_request(
    request: http.Request,
    target: Origin,
    credentials: Credentials,
    owner: str,
    is_only_run: Callable[[str], bool],
    project: str,
) -> AdmittedRequest:
    """Find the run and actor of a request, and remove Playhead's own headers from it."""
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.fields)
    identity = identify(headers, credentials, owner, is_only_run, project)
    if identity.problem:
        raise Problem(400, "bad_run", identity.problem)
    others = identity.headers
    if others is not headers:
        request.headers = http.Headers([(k.encode("latin-1"), v.encode("latin-1")) for k, v in others])
    return AdmittedRequest(
        target=target,
        url=f"{target}{request.data.path.decode('latin-1')}",
        method=request.data.method.decode("latin-1"),
        http_version=http_version(request),
        headers=others,
        identity=identity,
        named_run=identity.named_run,
    )


def http_version(message: http.Message) -> str:
    """Return `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`."""
    return "HTTP/2" if message.is_http2 else message.http_version


def _is_same_host(text: str, target: Origin) -> bool:
    # Ignore the port: Node writes `:80` into requests over connections that it did not open itself.
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
