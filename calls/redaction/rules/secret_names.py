"""Names of members, variables, options, columns and parameters whose values are secret."""

from typing import Final

SECRET_NAMES: Final = (
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "db~pass",
    "user~pass",
    "api~key",
    "api~token",
    "api~secret",
    "access~token",
    "refresh~token",
    "auth~token",
    "auth~key",
    "authorization~token",
    "bearer~token",
    "session~token",
    "session~key",
    "security~token",
    "bot~token",
    "private~token",
    "secret~token",
    "secret~key",
    "secret~access~key",
    "secret~value",
    "client~secret",
    "app~secret",
    "consumer~secret",
    "shared~secret",
    "signing~secret",
    "token~secret",
    "webhook~secret",
    "private~key",
    "signing~key",
    "encryption~key",
    "master~key",
    "account~key",
    "service~key",
    "admin~key",
    "role~key",
    "subscription~key",
    "connection~string",
    "license~key",
)
"""Names with secret values, also at the end of a longer name: `openai_api_key`, `userPassword`."""

BARE_NAMES: Final = (
    *("secret", "pwd", "id~token", "authorization", "proxy-authorization", "cookie", "set-cookie"),
    *("http~authorization", "http~cookie", "jsessionid", "csrf~token", "oauth~token", "device~code", "code~verifier"),
)
"""Names with secret values only if they are the whole name."""

LIKELY_NAMES: Final = ("token", "auth", "pass", "credential", "credentials", "jwt")
"""Ambiguous names: their values are secret only if they look like keys."""

SECRET_PARAMETERS: Final = (
    *("sig", "signature", "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature"),
    *("x-goog-credential", "assertion", "client_assertion", "code_verifier", "hapikey", "jwt"),
)
LIKELY_PARAMETERS: Final = ("key", "token", "auth", "appid")
"""Ambiguous parameter names: their values are secret only if they look like keys."""
