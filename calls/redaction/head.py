"""Redact headers and URLs: decide which values are stored and which are credentials.

A request header is stored unchanged only if its name is known to be safe, since any other may contain a secret. A response
header is stored unchanged unless it is known, or its name suggests, to contain a secret: replay needs what the server sent.
Values that are stored unchanged are still searched for credentials.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Final, Literal
from urllib.parse import unquote_plus

from calls.placeholder import MIN_SIZE, is_placeholder
from calls.redaction.rules.secret_names import BARE_NAMES, LIKELY_PARAMETERS, SECRET_NAMES, SECRET_PARAMETERS

type Treatment = Literal["seen", "address", "scheme", "cookies", "set-cookie", "protocols", "binary", "secret"]
type Replace = Callable[[str, str], str]
"""Returns the placeholder for a text, given its kind."""

CREDENTIALS: Final[dict[str, Treatment]] = {
    "authorization": "scheme",
    "proxy-authorization": "scheme",
    "cookie": "cookies",
    "set-cookie": "set-cookie",
    "set-cookie2": "set-cookie",
    "sec-websocket-protocol": "protocols",
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
"""Headers with credentials or the name of a tenant, in requests and responses; profiles cannot change their treatment."""

_SAFE_REQUEST_HEADERS: Final = (
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
    *("sec-websocket-version", "sec-websocket-key", "sec-websocket-extensions"),
)
_SAFE_REQUEST_PREFIXES: Final = (
    "ai-language-model-",
    "x-stainless-",
    "sec-fetch-",
    "sec-ch-",
    "x-amzn-bedrock-",
    "x-fern-",
    "mcp-param-",
)
_URL_HEADERS: Final = (
    "location",
    "content-location",
    "referer",
    "origin",
    "http-referer",
    "link",
    "refresh",
    "operation-location",
)

REQUEST_TREATMENTS: Final[dict[str, Treatment]] = {
    **dict.fromkeys(_SAFE_REQUEST_HEADERS, "seen"),
    **dict.fromkeys(_URL_HEADERS, "address"),
    **CREDENTIALS,
}
RESPONSE_TREATMENTS: Final[dict[str, Treatment]] = {
    **dict.fromkeys(_URL_HEADERS, "address"),
    # A boolean that browsers check: whether fetch() may use cookies.
    "access-control-allow-credentials": "seen",
    **CREDENTIALS,
}


@cache
def secret_header() -> re.Pattern[str]:
    """Match names of response headers with secret values: names of secret members in bodies, and some that only headers have."""
    names = "|".join(name.replace("~", "[-_]?") for name in (*SECRET_NAMES, *BARE_NAMES))
    return re.compile(rf"(?:^|[-_.])(?:token|secret|credentials?|auth|cookie|signature|jwt|pwd)$|(?:{names})$")


@lru_cache(2048)
def request_treatment(name: str) -> Treatment:
    """Return how to treat a request header, by its name."""
    name = name.lower()
    treatment = REQUEST_TREATMENTS.get(name)
    if treatment is None:
        is_safe = name.startswith(_SAFE_REQUEST_PREFIXES) and not secret_header().search(name)
        treatment = "seen" if is_safe else "secret"
    return treatment


@lru_cache(2048)
def response_treatment(name: str) -> Treatment:
    """Return how to treat a response header, by its name."""
    name = name.lower()
    treatment = RESPONSE_TREATMENTS.get(name)
    if treatment is None:
        is_secret = secret_header().search(name.removesuffix("-bin"))
        treatment = "secret" if is_secret else "binary" if name.endswith("-bin") else "seen"
    return treatment


_SCHEMES: Final = frozenset(
    (
        *("basic", "bearer", "digest", "negotiate", "ntlm", "hoba", "mutual", "oauth", "vapid", "dpop", "gnap", "hmac"),
        *("aws4-hmac-sha256", "aws4-ecdsa-p256-sha256", "token", "apikey", "api-key", "key", "bot", "sharedkey"),
        *("sharedaccesssignature", "googlelogin", "splunk", "ssws", "privatetoken", "scram-sha-256", "scram-sha-1"),
    )
)


def redact_authorization(value: str, replace: Replace) -> str:
    """Keep a known scheme (`Bearer …`) and replace the rest; without a known scheme, everything is replaced."""
    scheme, space, rest = value.partition(" ")
    if space and scheme.lower() in _SCHEMES:
        return f"{scheme} {replace(rest, 'A')}"
    return replace(value, "A")


def redact_cookies(value: str, replace: Replace) -> str:
    """Replace every value, and every part without a name."""
    return ";".join(_redact_cookie(pair, replace) for pair in value.split(";"))


def redact_set_cookie(value: str, replace: Replace) -> str:
    """Replace the value; attributes stay."""
    pair, semicolon, attributes = value.partition(";")
    return _redact_cookie(pair, replace) + semicolon + attributes


def _redact_cookie(pair: str, replace: Replace) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        lead = pair[: len(pair) - len(pair.lstrip())]
        return lead + replace(pair[len(lead) :], "C")
    return f"{name}={_replace_cookie_value(value, replace)}"


def _replace_cookie_value(value: str, replace: Replace) -> str:
    """Replace a value. A short one gets a longer placeholder, since conversations are told apart by their cookies.

    Headers, unlike bodies, have no length to keep.
    """
    if len(value) < MIN_SIZE and value and not is_placeholder(value.encode("utf-8", "replace")):
        return replace(value.ljust(_SHORTEST_COOKIE, "\0"), "C")
    return replace(value, "C")


_SHORTEST_COOKIE: Final = 24
"""Characters of the placeholder of a cookie: 14 of them tell secrets apart."""


_BEFORE_TOKEN: Final = (
    *(
        "token",
        "bearer",
        "access_token",
        "access-token",
        "auth",
        "auth_token",
        "authorization",
        "jwt",
        "authentication",
    ),
    *("apikey", "api-key", "api_key", "x-api-key", "openai-insecure-api-key"),
)
"""Protocols that announce a token."""
_ANNOUNCED_TOKEN: Final = re.compile(rf"(?i)((?:.*\.)?(?:{'|'.join(_BEFORE_TOKEN)})\.(?:k8s\.io\.)?)(.+)")


def redact_protocols(value: str, replace: Replace) -> str:
    """Replace the tokens among the protocols of a WebSocket, the one place where a browser can put them.

    A token is an item of its own (`token, 1f2e…`, Deepgram's), or the end of one (`base64url.bearer.authorization.k8s.io.…`).
    """
    items: list[str] = []
    is_announced = False
    for item in value.split(","):
        text = item.strip()
        announced = _ANNOUNCED_TOKEN.fullmatch(text)
        if is_announced and text:
            item = item.replace(text, replace(text, "A"))
        elif announced:
            item = item.replace(text, announced[1] + replace(announced[2], "A"))
        is_announced = text.lower() in _BEFORE_TOKEN
        items.append(item)
    return ",".join(items)


# -- addresses


@cache
def secret_suffix() -> re.Pattern[str]:
    """Match names of parameters with secret values."""
    return re.compile(rf"(?:{'|'.join(name.replace('~', '[_-]?') for name in SECRET_NAMES)})$")


_SECRET_PARAMETER_NAMES: Final = frozenset(
    spelled
    for name in (*SECRET_PARAMETERS, *BARE_NAMES)
    for spelled in (name.replace("~", joint) for joint in ("", "_", "-"))
)
_MIN_KEY_LENGTH: Final = 12
_URL_PARTS: Final = re.compile(r"^[^?#]+|[?&#;][^&#;]*")


type IsDeclared = Callable[[str], bool]
"""Returns whether a profile declares a parameter of this name secret."""


def _is_never_declared(_name: str) -> bool:
    return False


def redact_url(url: str, replace: Replace, is_declared: IsDeclared = _is_never_declared) -> str:
    """Replace the userinfo and the secret parameters of a URL, including those after `#`."""
    if "@" in url:
        url = _redact_userinfo(url, replace)
    if "=" not in url:
        return url
    return "".join(_redact_parameter(part, replace, is_declared) if "=" in part else part for part in _split_url(url))


def _redact_userinfo(url: str, replace: Replace) -> str:
    scheme, slashes, rest = url.partition("//")
    if not slashes or "?" in scheme or "#" in scheme:
        return url
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    userinfo, at, _ = authority.rpartition("@")
    if not at:
        return url
    return scheme + slashes + replace(userinfo, "U") + rest[len(userinfo) :]


def _split_url(url: str) -> Iterator[str]:
    """Yield the path, then each parameter with its separator; a second `?` belongs to a value."""
    return (match.group() for match in _URL_PARTS.finditer(url))


def _redact_parameter(part: str, replace: Replace, is_declared: IsDeclared) -> str:
    if part[0] not in "?&#;":
        return part
    written, equals, value = part.partition("=")
    name = unquote_plus(written[1:])
    return written + equals + replace(value, "Q") if is_secret(name, value) or is_declared(name) else part


def _bare_parameter_name(name: str) -> str:
    """Return the last part of a name with brackets: `password` for `user[password]`, `token` for `token[]`."""
    if "[" not in name:
        return name
    return name.removesuffix("[]").removesuffix("]").rpartition("[")[2]


def is_secret(name: str, value: str) -> bool:
    """Return whether a parameter's value is secret, by its name or, for an ambiguous name, by the value."""
    name = _bare_parameter_name(name.lower())
    if name in _SECRET_PARAMETER_NAMES or secret_suffix().search(name):
        return True
    # Measured in bytes, like the search of bodies, so that both searches decide the same when a value passes twice.
    is_long = len(value.encode("utf-8", "replace")) >= _MIN_KEY_LENGTH
    return name in LIKELY_PARAMETERS and is_long and any(char in "0123456789" for char in value)
