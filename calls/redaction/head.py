"""Redact headers and URLs: which values may be seen, and which are credentials.

Of a request's headers only names that are known to be safe stay as they are, since a secret can be in any other. Of a
response's, all but those that are known, or look by their name, to hold a secret: what a server sends back is what
replay is for. Whatever stays is still searched for credentials.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import unquote_plus

from calls.redaction.rules.secret_names import BARE_NAMES, LIKELY_PARAMETERS, SECRET_NAMES, SECRET_PARAMETERS

type Treatment = Literal["seen", "address", "scheme", "cookies", "set-cookie", "binary", "secret"]
type Replace = Callable[[str, str], str]
"""The placeholder for a text, of a kind."""

CREDENTIALS: Final[dict[str, Treatment]] = {
    "authorization": "scheme",
    "proxy-authorization": "scheme",
    "cookie": "cookies",
    "set-cookie": "set-cookie",
    "set-cookie2": "set-cookie",
    **dict.fromkeys(
        (
            *("x-api-key", "api-key", "apikey", "x-goog-api-key", "x-functions-key", "ocp-apim-subscription-key"),
            *("x-amz-security-token", "x-amz-credential", "x-amz-signature", "x-auth-key", "x-access-key"),
            *("openai-organization", "openai-project", "anthropic-organization-id", "x-goog-user-project"),
            *("authentication-info", "proxy-authentication-info", "helicone-auth", "dpop", "x-session-key"),
        ),
        "secret",
    ),
}
"""Hold credentials or the name of a tenant, in both directions, whatever else is said about them."""

_SEEN: Final = (
    *("accept", "accept-charset", "accept-encoding", "accept-language", "accept-ranges", "age", "allow"),
    *("cache-control", "connection", "content-disposition", "content-encoding", "content-language", "content-length"),
    *("content-md5", "content-range", "content-type", "date", "digest", "dnt", "etag", "expect", "expires", "from"),
    *("host", "http2-settings", "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"),
    *(
        "keep-alive",
        "last-event-id",
        "last-modified",
        "max-forwards",
        "pragma",
        "prefer",
        "priority",
        "proxy-connection",
    ),
    *(
        "range",
        "retry-after",
        "save-data",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "upgrade-insecure-requests",
    ),
    *("user-agent", "vary", "via", "warning", "x-http-method-override", "x-requested-with", "x-title", "api-version"),
    *("x-api-version", "x-app", "x-client-name", "x-client-version", "openai-beta", "openai-version"),
    *("anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access", "x-goog-api-client"),
    *("x-goog-api-version", "x-goog-request-params", "x-goog-request-reason", "x-goog-fieldmask", "x-server-timeout"),
    *("x-amz-date", "x-amz-target", "x-amz-content-sha256", "x-amz-user-agent", "x-amzn-trace-id"),
    *("amz-sdk-invocation-id", "amz-sdk-request", "traceparent", "tracestate", "baggage", "b3", "sentry-trace"),
    *("x-request-id", "x-client-request-id", "x-ms-client-request-id", "x-correlation-id", "request-id"),
    *("idempotency-key", "x-idempotency-key", "mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
    *(
        "a2a-version",
        "a2a-extensions",
        "grpc-timeout",
        "grpc-encoding",
        "grpc-accept-encoding",
        "access-control-request-method",
    ),
    *("access-control-request-headers", "x-claude-code-session-id", "x-claude-code-agent-id"),
    *("x-claude-code-parent-agent-id", "session-id", "session_id", "thread-id", "thread_id", "conversation-id"),
    *("conversation_id", "x-codex-parent-thread-id", "x-opencode-session", "x-session-affinity", "x-session-id"),
    *("x-parent-session-id", "x-amp-thread-id", "x-dynamo-session-id", "x-dynamo-parent-session-id"),
    *("ai-gateway-protocol-version", "ai-model-id"),
    *("x-portkey-trace-id", "x-portkey-span-id", "x-portkey-parent-span-id", "x-portkey-provider"),
    *("x-litellm-session-id", "x-litellm-trace-id", "langsmith-trace", "x-langtrace-session-id", "x-bt-parent"),
    *("helicone-session-id", "helicone-session-path", "helicone-session-name", "helicone-request-id"),
    *("sec-websocket-version", "sec-websocket-key", "sec-websocket-extensions", "sec-websocket-protocol"),
)
_SEEN_FAMILIES: Final = (
    "ai-language-model-",
    "x-stainless-",
    "sec-fetch-",
    "sec-ch-",
    "x-amzn-bedrock-",
    "x-fern-",
    "mcp-param-",
)
_ADDRESSES: Final = (
    "location",
    "content-location",
    "referer",
    "origin",
    "http-referer",
    "link",
    "refresh",
    "operation-location",
)

REQUEST: Final[dict[str, Treatment]] = {
    **dict.fromkeys(_SEEN, "seen"),
    **dict.fromkeys(_ADDRESSES, "address"),
    **CREDENTIALS,
}
RESPONSE: Final[dict[str, Treatment]] = {
    **dict.fromkeys(_ADDRESSES, "address"),
    # Says whether a browser may show its cookies: a word, for which fetch() looks.
    "access-control-allow-credentials": "seen",
    **CREDENTIALS,
}

_LOOKS_SECRET: Final = re.compile(
    r"(?:^|[-_.])(?:token|secret|credentials?|auth|cookie|signature|jwt|pwd)$"
    rf"|(?:{'|'.join(name.replace('~', '[-_]?') for name in (*SECRET_NAMES, *BARE_NAMES))})$"
)
"""Names of a response's headers whose values are secret: those of a body's members, and some that only headers have."""


@lru_cache(2048)
def request_treatment(name: str) -> Treatment:
    """How to treat a header of a request, by its name."""
    name = name.lower()
    known = REQUEST.get(name)
    if known is None:
        known = "seen" if name.startswith(_SEEN_FAMILIES) else "secret"
    return known


@lru_cache(2048)
def response_treatment(name: str) -> Treatment:
    """How to treat a header of a response."""
    name = name.lower()
    known = RESPONSE.get(name)
    if known is None:
        known = "secret" if _LOOKS_SECRET.search(name) else "binary" if name.endswith("-bin") else "seen"
    return known


_SCHEMES: Final = frozenset(
    (
        *("basic", "bearer", "digest", "negotiate", "ntlm", "hoba", "mutual", "oauth", "vapid", "dpop", "gnap", "hmac"),
        *("aws4-hmac-sha256", "aws4-ecdsa-p256-sha256", "token", "apikey", "api-key", "key", "bot", "sharedkey"),
        *("sharedaccesssignature", "googlelogin", "splunk", "ssws", "privatetoken", "scram-sha-256", "scram-sha-1"),
    )
)


def keep_scheme(value: str, replace: Replace) -> str:
    """`Bearer …`: the word says what kind of client this is, the rest is secret. What is no known scheme is secret."""
    scheme, space, rest = value.partition(" ")
    if space and scheme.lower() in _SCHEMES:
        return f"{scheme} {replace(rest, 'A')}"
    return replace(value, "A")


def cookies(value: str, replace: Replace) -> str:
    """Every value, and what has no name."""
    return ";".join(_cookie(pair, replace) for pair in value.split(";"))


def set_cookie(value: str, replace: Replace) -> str:
    """The value; attributes stay."""
    pair, semicolon, attributes = value.partition(";")
    return _cookie(pair, replace) + semicolon + attributes


def _cookie(pair: str, replace: Replace) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        lead = pair[: len(pair) - len(pair.lstrip())]
        return lead + replace(pair[len(lead) :], "C")
    return f"{name}={replace(value, 'C')}"


# -- addresses

_ENDS_SECRET: Final = re.compile(
    rf"(?:{'|'.join(name.replace('~', '[_-]?') for name in SECRET_NAMES)})$",
)
_ALWAYS: Final = frozenset(
    spelled
    for name in (*SECRET_PARAMETERS, *BARE_NAMES)
    for spelled in (name.replace("~", joint) for joint in ("", "_", "-"))
)
_KEY_LIKE: Final = 12
_PARTS: Final = re.compile(r"^[^?#]+|[?&#;][^&#;]*")


type IsDeclared = Callable[[str], bool]
"""Whether a profile declares a parameter of this name secret."""


def _none(_name: str) -> bool:
    return False


def address(url: str, replace: Replace, declared: IsDeclared = _none) -> str:
    """A URL without what names or proves who asks: userinfo, and parameters (also behind `#`) that are secret."""
    if "@" in url:
        url = _without_userinfo(url, replace)
    if "=" not in url:
        return url
    return "".join(_parameter(part, replace, declared) if "=" in part else part for part in _split(url))


def _without_userinfo(url: str, replace: Replace) -> str:
    scheme, slashes, rest = url.partition("//")
    if not slashes or "?" in scheme or "#" in scheme:
        return url
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    userinfo, at, _ = authority.rpartition("@")
    if not at:
        return url
    return scheme + slashes + replace(userinfo, "U") + rest[len(userinfo) :]


def _split(url: str) -> Iterator[str]:
    """The path, then each parameter with what separates it; a second `?` belongs to a value."""
    return (match.group() for match in _PARTS.finditer(url))


def _parameter(part: str, replace: Replace, declared: IsDeclared) -> str:
    if part[0] not in "?&#;":
        return part
    written, equals, value = part.partition("=")
    name = unquote_plus(written[1:])
    return written + equals + replace(value, "Q") if is_secret(name, value) or declared(name) else part


def is_secret(name: str, value: str) -> bool:
    """Whether a parameter's value is secret, by its name, and where the name leaves it open by its looks."""
    name = name.lower()
    if name in _ALWAYS or _ENDS_SECRET.search(name):
        return True
    # In bytes, as bodies are searched, so that what one of the two leaves the other does not take the second time.
    long = len(value.encode("utf-8", "replace")) >= _KEY_LIKE
    return name in LIKELY_PARAMETERS and long and any(char in "0123456789" for char in value)
