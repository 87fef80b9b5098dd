"""Profiles in TOML, and the error messages for invalid ones."""

import json
import re
import sys
from pathlib import Path

import pytest

from calls.keys.profile import NEVER_KEYS, BadProfile, Profiles
from calls.keys.profile_toml import parse_profiles
from store import active_profiles
from store.active_profiles import built_in_names, load_profiles, parse_built_in, profile_text
from tests.calls.sample_requests import ANTHROPIC, OPENAI, TICKETS, json_request

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
    [profile] = parse_profiles(CONTRACT)
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
    assert parse_profiles("[upstreams]\n") == ()


WRONG = [
    ("[[profile]\n", "line 1"),
    ("[profile]\nname = 'a/1'\n", "two brackets"),
    ("[[profile]]\nkey = []\n", "line 1: invalid name None: write a name with a version"),
    ("[[profile]]\nname = 'a'\n", "line 2: invalid name 'a': write a name with a version"),
    ("[[profile]]\nname = 'a/1'\n\nkeys = []\n", "line 4: unknown setting 'keys' in a profile: use "),
    ("[[profile]]\nname = 'a/1'\nkey = ['$.a',\n  '$.b[']\n", "line 4: '$.b[' is not an RFC 9535 path"),
    ("[[profile]]\nname = 'a/1'\nkey = ['model']\n", "line 3: 'model' is not an RFC 9535 path"),
    ("[[profile]]\nname = 'a/1'\nkey = ['$.a']\nsecret = ['$.a']\n", "line 4: $.a is listed twice"),
    ("[[profile]]\nname = 'a/1'\nkey = ['$.a']\nsecret = [\"$['a']\"]\n", "line 4: $['a'] is listed twice"),
    ("[[profile]]\nname = 'a/1'\nkey = 3\n", "line 3: key must be a list of strings, not 3"),
    ("[[profile]]\nname = 'a/1'\nunknown = 'drop'\n", "line 3: unknown = 'drop' is invalid"),
    ("[[profile]]\nname = 'a/1'\ntelemetry = 'yes'\n", "line 3: telemetry = 'yes' is invalid: write true or false"),
    ("[[profile]]\nname = 'a/1'\n\ntold = true\n", "line 4: the setting told is called telemetry now: write telemetry"),
    ("[[profile]]\nname = 'a/1'\n[profile.fold]\ndefaults = ['$.a']\n", "line 4: invalid default: write { path"),
    ("[[profile]]\nname = 'a/1'\nquery = ['a']\n", "line 3: query must be a table of lists"),
    ("[[profile]]\nname = 'a/1'\nmatch = { hosts = 'a' }\n", "line 3: unknown setting 'hosts' in match"),
    (
        "[[profile]]\nname = 'a/1'\nheaders = { key = ['User-Agent'] }\n",
        "line 3: the header user-agent changes each time",
    ),
    ("[[profile]]\nname = 'a/1'\n[profile.fold]\nnonces = ['$.a']\n", "line 4: invalid nonce: write"),
    ("[[profile]]\nname = 'a/1'\n[profile.fold]\ntext = ['a']\n", "line 4: 'a' is not an RFC 9535 path"),
    ("[[profile]]\nname = 'a/1'\n[[profile]]\nname = 'b/1'\nkey = ['x']\n", "line 5: 'x' is not an RFC 9535 path"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_mistake_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadProfile, match=re.escape(message)):
        parse_profiles(text)


def test_the_user_s_profiles_are_asked_first_and_the_last_one_takes_everything() -> None:
    profiles = load_profiles(CONTRACT)
    names = [profiles.match(json_request(url, {})).name for url in (TICKETS, OPENAI, ANTHROPIC, "https://x.example/y")]
    assert names == ["tickets/1", "openai_chat/1", "anthropic/1", "rest/1"]


def test_every_condition_of_a_match_must_fit() -> None:
    profiles = load_profiles(CONTRACT)
    assert profiles.match(json_request("https://tickets.example.com/v1/search", {})).name == "rest/1"
    assert profiles.match(json_request("https://xtickets.example.com/v2/search", {})).name == "rest/1"


def test_the_digest_changes_with_any_rule_and_with_their_order() -> None:
    base = parse_profiles(CONTRACT)
    others = [
        parse_profiles(CONTRACT.replace('"$.session"', '"$.sess"')),
        parse_profiles(CONTRACT.replace('unknown = "key"', 'unknown = "transient"')),
        parse_profiles(CONTRACT + '[profile.fold]\nnull = ["$.a"]\n'),
        (*base, *base),
        (),
    ]
    digests = {Profiles(profiles).digest for profiles in (base, *others)}
    assert len(digests) == len(others) + 1
    assert Profiles(parse_profiles(CONTRACT)).digest == Profiles(base).digest


@pytest.mark.parametrize("name", ["accept-encoding", "cookie", "x-stainless-os", "proxy-authorization", "tracestate"])
def test_headers_of_one_sending_are_never_keys(name: str) -> None:
    assert NEVER_KEYS.fullmatch(name)


@pytest.mark.parametrize("name", built_in_names())
def test_ours_are_written_as_anybodys_must_be(name: str) -> None:
    """The built-in profiles are checked here, because no process checks them when it starts."""
    assert parse_profiles(profile_text(name)) == parse_profiles(profile_text(name), is_trusted=True) != ()


def test_what_was_parsed_before_is_used_until_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, wanted = tmp_path / "__pycache__" / "profiles.json", Profiles(parse_built_in())
    monkeypatch.setattr(active_profiles, "PARSED", stored)
    for name in built_in_names():
        (tmp_path / f"{name}.toml").write_text(profile_text(name))
    load = active_profiles._built_in_profiles.__wrapped__
    assert not stored.exists()
    assert load() == wanted == load()
    first = stored.read_bytes()
    with monkeypatch.context() as patch:
        patch.delattr(active_profiles, "parse_built_in")
        assert (load(), load().digest) == (wanted, wanted.digest)
    for content in (b"", b'{"sources":[],"profiles":[]}', first[:-9]):
        stored.write_bytes(content)
        assert load() == wanted
        assert stored.read_bytes() == first
    (tmp_path / "new.toml").touch()
    assert load() == wanted
    assert stored.read_bytes() != first
    names, dialects = built_in_names(), tmp_path / "dialects"
    (dialects / "vendor").mkdir(parents=True)
    monkeypatch.setattr(active_profiles, "SOURCES", (*active_profiles.SOURCES, dialects))
    with monkeypatch.context() as patch:
        # A dialect with another precedence or name changes the order.
        patch.setattr(active_profiles, "built_in_names", lambda: names[::-1])
        assert load() == wanted
        (dialects / "vendor" / "new.py").touch()
        assert load() == Profiles(parse_built_in()) != wanted
        (dialects / "vendor" / "__pycache__").mkdir()
        (dialects / "vendor" / "__pycache__" / "new.pyc").touch()
        patch.delattr(active_profiles, "parse_built_in")
        assert load().profiles[0].name == parse_profiles(profile_text(names[-1]))[0].name
    stored.unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert load() == wanted
    assert not stored.exists()


def test_the_draft_of_field_classes_is_honoured() -> None:
    """`reference/allowlist.json` covers all but three of 5,213 real requests; the profiles must classify all its fields."""
    file = Path(__file__).resolve().parents[4] / "shared" / "reference" / "allowlist.json"
    if not file.exists():
        pytest.skip("no draft of field classes beside this checkout (../shared/reference)")
    draft = json.loads(file.read_text())
    profiles = {profile.name: profile for profile in load_profiles().profiles}
    for surface, name in (("openai.chat", "openai_chat/1"), ("anthropic.messages", "anthropic/1")):
        for kind, ours in (("K", "key"), ("T", "transient"), ("I", "identity")):
            assert {f"$.{field}" for field in draft[surface][kind]} <= set(getattr(profiles[name], ours)), (
                surface,
                kind,
            )


EXTENDED = """
[[profile]]
name = "mine/1"
extends = "openai_chat/1"
match = { host = "llm.example.com" }
transient = ["$.seed", "$.messages[*].sent_at"]
query.transient = ["ts"]
"""


def test_a_profile_that_extends_another_takes_over_what_it_does_not_say() -> None:
    [mine] = [profile for profile in load_profiles(EXTENDED).profiles if profile.name == "mine/1"]
    [base] = [profile for profile in load_profiles().profiles if profile.name == "openai_chat/1"]
    assert set(mine.key) == set(base.key) - {"$.seed"}
    assert mine.transient == ("$.seed", "$.messages[*].sent_at", *base.transient)
    assert (mine.match.host, mine.match.dialect) == (("llm.example.com",), ("openai_chat",))
    assert (mine.query.transient, mine.query.key) == (("ts",), ("*",))
    assert (mine.folds, mine.identity, mine.unknown) == (base.folds, base.identity, base.unknown)


def test_headers_and_folds_of_an_extended_profile_can_be_replaced_one_by_one() -> None:
    text = """
    [[profile]]
    name = "mine/1"
    extends = "anthropic/1"
    headers.transient = ["Anthropic-Beta"]
    headers.key = ["x-tenant"]
    fold.id = ["$.messages[*].id"]
    fold.nonces = [{ path = "$.system", starts = "build:" }]
    """
    mine, base = (
        load_profiles(text).profiles[0],
        next(one for one in load_profiles().profiles if one.name == "anthropic/1"),
    )
    assert "anthropic-beta" in base.headers.sets
    assert "anthropic-beta" not in mine.headers.sets
    assert mine.headers.key == ("x-tenant", *base.headers.key)
    assert mine.folds.id == ("$.messages[*].id", *base.folds.id)
    paths = [nonce.path for nonce in mine.folds.nonces]
    assert paths == ["$.system", *(nonce.path for nonce in base.folds.nonces if nonce.path != "$.system")]


def test_a_profile_of_one_s_own_can_be_extended_wherever_it_stands() -> None:
    text = (
        CONTRACT + '[[profile]]\nname = "more/1"\nextends = "later/1"\n[[profile]]\nname = "later/1"\nkey = ["$.a"]\n'
    )
    assert [profile.key for profile in parse_profiles(text)[1:]] == [("$.a",), ("$.a",)]


def test_the_digest_covers_what_is_taken_over() -> None:
    base = '[[profile]]\nname = "mine/1"\nextends = "base/1"\n[[profile]]\nname = "base/1"\nkey = ["$.{}"]\n'
    one, other = (Profiles(parse_profiles(base.replace("{}", name))[:1]) for name in "ab")
    assert one.digest != other.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[profile]]\nname = 'a/1'\nextends = 'b/1'\n", "line 3: unknown profile 'b/1' in extends"),
        ("[[profile]]\nname = 'a/1'\nextends = 'a/1'\n", "line 3: profile 'a/1' extends itself"),
        ("[[profile]]\nname = 'a/1'\nextends = ['b/1']\n", "line 3: invalid extends ['b/1']"),
        ("[[profile]]\nname = 'a/1'\nheaders.transient = ['x']\n", "line 3: unknown setting 'transient' in headers"),
    ],
)
def test_a_profile_that_cannot_be_extended_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadProfile, match=re.escape(message)):
        parse_profiles(text)


def test_two_profiles_that_extend_each_other_are_refused() -> None:
    text = "[[profile]]\nname = 'a/1'\nextends = 'b/1'\n[[profile]]\nname = 'b/1'\nextends = 'a/1'\n"
    with pytest.raises(BadProfile, match="extends itself"):
        parse_profiles(text)
