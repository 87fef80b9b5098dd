"""Profiles as people write them, and what they are told when they write them wrong."""

import json
import re
from pathlib import Path

import pytest

from calls.profile import NEVER_KEYS, BadProfile, Profiles, parse
from store.profiles import shipped
from tests.calls.asking import ANTHROPIC, OPENAI, TICKETS, asking

CONTRACT = """
[upstreams]
"api.openai.com" = "http://127.0.0.1:9000"

[[profile]]
name = "tickets/1"
match = { host = "tickets.example.com", method = "POST", path = "/v2/*" }
key = ["$.query", "$.filters"]   # load-bearing
transient = ["$.request_id", "$.sent_at"]
identity = ["$.session"]
secret = ["$.token"]
query = { key = ["page"], transient = ["ts"] }
headers = { key = ["api-version"] }
unknown = "key"                  # or "transient": a field that no list names
"""


def test_the_form_of_the_contract_is_read() -> None:
    [profile] = parse(CONTRACT)
    assert profile.name == "tickets/1"
    assert profile.key == ("$.query", "$.filters")
    assert (profile.match.host, profile.match.method, profile.match.path) == (
        ("tickets.example.com",),
        ("POST",),
        ("/v2/*",),
    )
    assert (profile.query.key, profile.query.transient, profile.headers.key) == (("page",), ("ts",), ("api-version",))
    assert profile.unknown == "key"


def test_a_file_without_profiles_has_none() -> None:
    assert parse("[upstreams]\n") == ()


WRONG = [
    ("[[profile]\n", "line 1"),
    ("[profile]\nname = 'a/1'\n", "two brackets"),
    ("[[profile]]\nkey = []\n", "line 1: a profile needs a name with a version"),
    ("[[profile]]\nname = 'a'\n", "line 2: a profile needs a name with a version"),
    ("[[profile]]\nname = 'a/1'\n\nkeys = []\n", "line 4: a profile has no 'keys': it has "),
    ("[[profile]]\nname = 'a/1'\nkey = ['$.a',\n  '$.b[']\n", "line 4: '$.b[' is not an RFC 9535 path"),
    ("[[profile]]\nname = 'a/1'\nkey = ['model']\n", "line 3: 'model' is not an RFC 9535 path"),
    ("[[profile]]\nname = 'a/1'\nkey = ['$.a']\nsecret = ['$.a']\n", "line 4: $.a is listed twice"),
    ("[[profile]]\nname = 'a/1'\nkey = ['$.a']\nsecret = [\"$['a']\"]\n", "line 4: $['a'] is listed twice"),
    ("[[profile]]\nname = 'a/1'\nkey = 3\n", "line 3: key is a list of texts, not 3"),
    ("[[profile]]\nname = 'a/1'\nunknown = 'drop'\n", "line 3: unknown is"),
    ("[[profile]]\nname = 'a/1'\n[profile.fold]\ndefaults = ['$.a']\n", "line 4: write a default as { path"),
    ("[[profile]]\nname = 'a/1'\nquery = ['a']\n", "line 3: query is a table of lists"),
    ("[[profile]]\nname = 'a/1'\nmatch = { hosts = 'a' }\n", "line 3: match has no 'hosts'"),
    ("[[profile]]\nname = 'a/1'\nheaders = { key = ['User-Agent'] }\n", "line 3: the header user-agent changes with"),
    ("[[profile]]\nname = 'a/1'\n[profile.fold]\nnonces = ['$.a']\n", "line 4: write a nonce as"),
    ("[[profile]]\nname = 'a/1'\n[profile.fold]\ntext = ['a']\n", "line 4: 'a' is not an RFC 9535 path"),
    ("[[profile]]\nname = 'a/1'\n[[profile]]\nname = 'b/1'\nkey = ['x']\n", "line 5: 'x' is not an RFC 9535 path"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_mistake_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadProfile, match=re.escape(message)):
        parse(text)


def test_the_user_s_profiles_are_asked_first_and_the_last_one_takes_everything() -> None:
    profiles = shipped(CONTRACT)
    names = [profiles.match(asking(url, {})).name for url in (TICKETS, OPENAI, ANTHROPIC, "https://x.example/y")]
    assert names == ["tickets/1", "openai_chat/1", "anthropic/1", "rest/1"]


def test_every_condition_of_a_match_must_fit() -> None:
    profiles = shipped(CONTRACT)
    assert profiles.match(asking("https://tickets.example.com/v1/search", {})).name == "rest/1"
    assert profiles.match(asking("https://xtickets.example.com/v2/search", {})).name == "rest/1"


def test_the_digest_changes_with_any_rule_and_with_their_order() -> None:
    base = parse(CONTRACT)
    others = [
        parse(CONTRACT.replace('"$.session"', '"$.sess"')),
        parse(CONTRACT.replace('unknown = "key"', 'unknown = "transient"')),
        parse(CONTRACT + '[profile.fold]\nnull = ["$.a"]\n'),
        (*base, *base),
        (),
    ]
    digests = {Profiles(profiles).digest for profiles in (base, *others)}
    assert len(digests) == len(others) + 1
    assert Profiles(parse(CONTRACT)).digest == Profiles(base).digest


@pytest.mark.parametrize("name", ["accept-encoding", "cookie", "x-stainless-os", "proxy-authorization", "tracestate"])
def test_headers_of_one_sending_are_never_keys(name: str) -> None:
    assert NEVER_KEYS.fullmatch(name)


def test_the_draft_of_field_classes_is_honoured() -> None:
    """`reference/allowlist.json` covers all but three of 5,213 real requests; ours must classify whatever it does."""
    file = Path(__file__).resolve().parents[3] / "shared" / "reference" / "allowlist.json"
    if not file.exists():
        pytest.skip("no draft of field classes beside this checkout (../shared/reference)")
    draft = json.loads(file.read_text())
    profiles = {profile.name: profile for profile in shipped().profiles}
    for surface, name in (("openai.chat", "openai_chat/1"), ("anthropic.messages", "anthropic/1")):
        for kind, ours in (("K", "key"), ("T", "transient"), ("I", "identity")):
            assert {f"$.{field}" for field in draft[surface][kind]} <= set(getattr(profiles[name], ours)), (
                surface,
                kind,
            )
