"""Headers and URLs: only what is known to be safe in a request, all but secrets in a response."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Headers
from calls.placeholder import PATTERN, is_placeholder
from calls.redaction.redactor import RedactionRules, Redactor
from tests.calls.secrets import KEY, SECRETS, TOKENS

REDACTOR = Redactor(key=KEY)
SECRET = SECRETS[1]

names = st.one_of(
    st.sampled_from(["Authorization", "Cookie", "X-Api-Key", "Accept", "Referer", "X-Own", "Set-Cookie", "Location"]),
    st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20),
)
values = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=30),
    st.sampled_from(
        [*TOKENS, *SECRETS, f"Bearer {SECRET}", f"a={SECRET}; b={SECRET}", f"https://x/?key={SECRET}&sig=x"]
    ),
    st.text(max_size=8),
)
heads = st.lists(st.tuples(names, values), max_size=6).map(tuple)
heads_alike = st.lists(names, max_size=3).flatmap(
    lambda found: st.lists(st.tuples(*[st.tuples(st.just(name), values) for name in found]), min_size=2, max_size=5)
)
bodies = st.lists(
    st.sampled_from([*SECRETS[:3], *TOKENS[:3], "=", "password", " ", "key: ", "\n", "a", "{", "data: x\n\n", "é"]),
    max_size=4,
).map(lambda pieces: "".join(pieces).encode("latin-1", "replace"))


def redact_request(*headers: tuple[str, str]) -> Headers:
    return REDACTOR.redact_request_headers(headers)[0]


def redact_response(*headers: tuple[str, str]) -> Headers:
    return REDACTOR.redact_response_headers(headers)[0]


@pytest.mark.parametrize(
    "name",
    [
        "X-Api-Key",
        "API-KEY",
        "x-goog-api-key",
        "X-Amz-Security-Token",
        "OpenAI-Organization",
        "openai-project",
        "X-Anything",
    ],
)
def test_a_value_that_is_secret_or_unknown_becomes_a_placeholder(name: str) -> None:
    ((kept, value),) = redact_request((name, SECRET))

    assert kept == name
    assert re.fullmatch(PATTERN, value)
    assert len(value) == len(SECRET)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Accept", "text/event-stream"),
        ("Content-Type", "multipart/form-data; boundary=0123456789abcdef0123456789abcdef"),
        ("anthropic-beta", "prompt-caching-2024-07-31,tools-2024-04-04"),
        ("x-stainless-runtime-version", "3.13.0"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("idempotency-key", "stainless-python-retry-0123abcd-0123-4abc-89ab-0123456789ab"),
        ("Host", "api.openai.com"),
        ("X-Claude-Code-Session-Id", "0b4f5c6d-0123-4abc-89ab-0123456789ab"),
    ],
)
def test_a_value_that_is_known_to_be_safe_stays(name: str, value: str) -> None:
    assert redact_request((name, value)) == ((name, value),)


def test_a_scheme_stays_and_what_is_no_scheme_does_not() -> None:
    seen = dict(redact_request(("Authorization", f"Bearer {SECRET}"), ("Proxy-Authorization", f"{SECRET} and more")))

    assert re.fullmatch(f"Bearer {PATTERN}", seen["Authorization"])
    assert re.fullmatch(PATTERN, seen["Proxy-Authorization"])


def test_signed_requests_keep_only_their_algorithm() -> None:
    value = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/x/aws4_request, Signature=0123abcd"

    assert re.fullmatch(f"AWS4-HMAC-SHA256 {PATTERN}", redact_request(("authorization", value))[0][1])


def test_cookies_keep_their_names() -> None:
    assert re.fullmatch(
        f"session={PATTERN}; theme={PATTERN}; \\*\\*\\*\\*",
        redact_request(("Cookie", f"session={SECRET}; theme=dark; bare"))[0][1],
    )
    assert re.fullmatch(
        f"sid={PATTERN}; Path=/; HttpOnly", redact_response(("Set-Cookie", f"sid={SECRET}; Path=/; HttpOnly"))[0][1]
    )


@pytest.mark.parametrize("value", ["a", "7f3a", "0123456789a"])
def test_a_short_cookie_has_a_placeholder_of_its_own(value: str) -> None:
    """Conversations are told apart by it."""
    given, sent, other = (
        redact_response(("Set-Cookie", f"sid={value}; Path=/"))[0][1],
        redact_request(("Cookie", f"sid={value}"))[0][1],
        redact_request(("Cookie", f"sid={value[:-1]}z"))[0][1],
    )
    assert re.fullmatch(f"sid={PATTERN}", sent)
    assert given == f"{sent}; Path=/"
    assert other != sent
    # A client that was given the placeholder sends it in a replay; asterisks are of an older recording.
    for unchanged in (sent, "sid=****", "sid="):
        assert redact_request(("Cookie", unchanged))[0][1] == unchanged


def test_what_a_profile_needs_stays_but_never_a_credential() -> None:
    rules = RedactionRules(kept_headers=frozenset({"x-mode", "authorization", "x-api-key"}))
    said = ("X-Mode", "fast"), ("Authorization", f"Bearer {SECRET}"), ("X-Api-Key", SECRET)

    seen, count = Redactor(rules, KEY).redact_request_headers(said)

    assert dict(seen)["X-Mode"] == "fast"
    assert SECRET not in str(seen)
    assert count == 2


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("name", ["User-Agent", "Referer", "X-Title", "Host", "baggage"])
def test_a_token_is_found_in_a_value_that_stays(name: str, token: str) -> None:
    assert token not in redact_request((name, f"https://x.example/a {token} b"))[0][1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("access-control-allow-credentials", "true"),
        ("x-request-id", "req_0123456789abcdef0123456789abcdef"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-amzn-bedrock-output-token-count", "12"),
        ("WWW-Authenticate", 'Bearer realm="api"'),
        ("etag", '"0123456789abcdef"'),
        ("Server", "cloudflare"),
    ],
)
def test_a_response_keeps_its_headers(name: str, value: str) -> None:
    assert redact_response((name, value)) == ((name, value),)


@pytest.mark.parametrize(
    "name", ["X-Auth-Token", "x-csrf-token", "X-Vault-Secret", "openai-organization", "x-goog-api-key"]
)
def test_a_response_header_that_is_or_looks_secret_does_not_stay(name: str) -> None:
    assert is_placeholder(redact_response((name, SECRET))[0][1].encode())


def test_a_redirect_keeps_its_address_and_loses_its_token() -> None:
    where = redact_response(("Location", f"https://x.example/cb?state=abc&access_token={SECRET}#id_token={SECRET}"))[0][
        1
    ]

    assert re.fullmatch(f"https://x\\.example/cb\\?state=abc&access_token={PATTERN}#id_token={PATTERN}", where)


@pytest.mark.parametrize(
    "parameter",
    [
        *(
            "key",
            "api_key",
            "apikey",
            "API-Key",
            "openai_api_key",
            "token",
            "sig",
            "signature",
            "client_secret",
            "password",
        ),
        *(
            "access_token",
            "X-Amz-Signature",
            "X-Amz-Credential",
            "X-Amz-Security-Token",
            "X-Goog-Signature",
            "api%5Fkey",
        ),
        *("subscription-key", "refresh_token", "id_token", "secret", "jwt"),
    ],
)
def test_a_parameter_that_is_secret_is_replaced(parameter: str) -> None:
    url, count = REDACTOR.redact_url(f"https://x.example/v1/things?a=1&{parameter}={SECRET}&z=2")

    assert re.fullmatch(f"https://x\\.example/v1/things\\?a=1&{parameter}={PATTERN}&z=2", url)
    assert count == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1/chat/completions",
        "https://x.example/search?key=name&page_token=abc&pageToken=0123456789abcdef&max_tokens=100&q=a+b%20c",
        "https://x.example/a?b&c=&=d&&;e=f#frag",
        "https://x.example:8443/a@b?mail=me@x.example",
        "http://[::1]:8080/x?y=http://a:80/b",
        "/relative?x=1",
        "",
    ],
)
def test_an_ordinary_address_stays(url: str) -> None:
    assert REDACTOR.redact_url(url) == (url, 0)


def test_userinfo_is_replaced_whatever_it_is() -> None:
    for userinfo in (f"user:{SECRET}", SECRET, "u:p@ss:w", ":pw"):
        url, count = REDACTOR.redact_url(f"https://{userinfo}@x.example:81/a?b=c@d")

        assert count == 1
        assert userinfo not in url
        assert url.endswith("@x.example:81/a?b=c@d")


def test_a_secret_in_a_path_or_a_host_is_found() -> None:
    for token in TOKENS:
        assert token not in REDACTOR.redact_url(f"https://x.example/hooks/{token}/end")[0]
    assert (
        "AA" + "b" * 20
        not in REDACTOR.redact_url("https://api.telegram.org/bot123456789:AA" + "b1" * 20 + "/sendMessage")[0]
    )


@given(heads)
def test_what_was_redacted_passes_unchanged(headers: Headers) -> None:
    for redact in (REDACTOR.redact_request_headers, REDACTOR.redact_response_headers):
        once = redact(headers)[0]

        assert redact(once) == (once, 0)
        assert [name for name, _ in once] == [name for name, _ in headers]


@given(heads_alike, st.lists(bodies, min_size=5, max_size=5))
def test_heads_of_responses_are_redacted_the_same_beside_any_others(
    said: list[Headers], with_bodies: list[bytes]
) -> None:
    remembering = Redactor(key=KEY)
    for _ in range(2):
        for headers, body in zip(said, with_bodies, strict=False):
            expected = REDACTOR.redact_response_headers(headers)
            head = remembering.redact_response_head(headers)
            assert (head.headers, head.redactions) == expected
            whole = remembering.redact_whole_response(headers, body)
            assert whole is None or (whole.headers, whole.redactions) == expected
            assert (whole is None) is not (REDACTOR.is_clean(body) and head.is_plain)


def test_a_value_that_changes_is_searched_again() -> None:
    remembering = Redactor(key=KEY)
    for value in ("a", TOKENS[0], "b", TOKENS[1], TOKENS[0]):
        headers = (("Date", "today"), ("X-Note", value), ("Content-Type", "application/json"))
        for body in (b"{}", b""):
            whole = remembering.redact_whole_response(headers, body)
            assert whole is not None
            assert (whole.headers, whole.redactions) == REDACTOR.redact_response_headers(headers)
            assert (value in str(whole.headers)) is (len(value) == 1)


@given(st.text(max_size=40), st.sampled_from(["https://x/?", "https://u:p@x/?key=", "/?sig=", "a#token="]))
def test_a_redacted_address_passes_unchanged(text: str, start: str) -> None:
    once, _ = REDACTOR.redact_url(start + text)

    assert REDACTOR.redact_url(once) == (once, 0)


@given(st.text(max_size=60))
def test_words_beside_an_exchange_lose_only_secrets(text: str) -> None:
    assert (
        REDACTOR.redact_text(text) == text
        or "PLAYHEAD_" in REDACTOR.redact_text(text)
        or "*" in REDACTOR.redact_text(text)
    )
    assert TOKENS[0] not in REDACTOR.redact_text(f"cannot connect to {TOKENS[0]}: {text}")


def test_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a key"):
        Redactor()


@pytest.mark.parametrize("direction", [redact_request, redact_response])
def test_a_secret_in_a_headers_name_is_replaced(direction: Callable[..., Headers]) -> None:
    token = TOKENS[0]

    ((name, value),) = direction((f"X-Key-{token}", "1"))
    ((again, _),) = direction((name, value))

    assert token not in name
    assert len(name) == len(f"X-Key-{token}")
    assert again == name


PROTOCOLS = {
    "realtime, openai-insecure-api-key.%s, openai-beta.realtime-v1": True,
    "token, %s": True,
    "Bearer,%s": True,
    "base64url.bearer.authorization.k8s.io.%s, v5.channel.k8s.io": True,
    "graphql-transport-ws, v10.stomp, openai-beta.realtime-v1": False,
    "mqttv3.1, token": False,
}


@pytest.mark.parametrize("form", PROTOCOLS)
def test_a_token_among_the_protocols_of_a_websocket_is_replaced(form: str) -> None:
    secret = "0f3a9c5d7b1e2468" if PROTOCOLS[form] else ""
    value = form % secret if secret else form
    for redact in (REDACTOR.redact_request_headers, REDACTOR.redact_response_headers):
        ((_, new),), count = redact((("Sec-WebSocket-Protocol", value),))
        assert (count, len(new)) == (int(PROTOCOLS[form]), len(value))
        if secret:
            assert new == value.replace(secret, new[value.index(secret) :][: len(secret)])
            assert secret not in new
        assert redact((("Sec-WebSocket-Protocol", new),))[0] == (("Sec-WebSocket-Protocol", new),)


def test_a_parameter_in_brackets_is_named_by_its_last_part() -> None:
    for name in ("user[password]", "data%5Bapi_key%5D", "api_token[]", "a[b][client_secret]"):
        assert "hunter2" not in REDACTOR.redact_url(f"https://a.example/?x=1&{name}=hunter2")[0]
    for name in ("password[hint]", "filter[name]", "[]"):
        url = f"https://a.example/?x=1&{name}=hunter2"
        assert REDACTOR.redact_url(url) == (url, 0)


def test_headers_with_safe_beginnings_are_secret_if_their_names_end_like_a_secret() -> None:
    sent = (("Mcp-Param-Api-Key", "hunter2hunter2"), ("Mcp-Param-City", "Paris in spring"))
    assert REDACTOR.redact_request_headers(sent)[0][1] == sent[1]
    assert "hunter2" not in str(REDACTOR.redact_request_headers(sent))
    assert "aHVudGVy" not in str(REDACTOR.redact_response_headers((("X-Auth-Token-Bin", "aHVudGVyMmh1bnRlcjI"),)))
