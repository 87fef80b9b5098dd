"""The rule that ignores a field makes the keys of two requests equal that differ in nothing else."""

import json
from typing import Any

import pytest

from calls.comparison.ignore_rule import propose_ignore_rule
from calls.keys.divergence import differences
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.keys.profile_toml import parse_profiles
from calls.keys.request_document import key_document
from calls.model import Body, Request
from store.active_profiles import load_profiles

PROFILES = load_profiles()

OPENAI = "https://api.openai.com/v1/chat/completions"
TOOL = "https://tickets.example.com/v2/search"


def request(url: str, body: Any) -> Request:
    data = json.dumps(body).encode()
    return Request(
        method="POST", url=url, headers=(("content-type", "application/json"),), body=Body(data=data, size=len(data))
    )


def with_rule(toml: str) -> Profiles:
    return load_profiles(toml)


def rule_for(one: Request, other: Request) -> Any:
    key = make_key(other, PROFILES)
    (difference,) = differences(key_document(make_key(one, PROFILES)), key_document(key))
    return propose_ignore_rule(difference, key)


CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("one", "other", "is_risky"),
    [
        (request(OPENAI, CHAT), request(OPENAI, CHAT | {"messages": [{"role": "user", "content": "ho"}]}), True),
        (request(OPENAI, CHAT), request(OPENAI, CHAT | {"temperature": 1}), True),
        (
            request(TOOL, {"q": "a", "sent_at": "2026-01-01T00:00:00Z"}),
            request(TOOL, {"q": "a", "sent_at": "2026-01-02T00:00:00Z"}),
            False,
        ),
        (request(TOOL, {"items": [{"it's": 1}]}), request(TOOL, {"items": [{"it's": 2}]}), True),
        (request(f"{TOOL}?page=1", {}), request(f"{TOOL}?page=2", {}), True),
        (request(TOOL, {"]]> \"\"\" '''": "a"}), request(TOOL, {"]]> \"\"\" '''": "b"}), True),
    ],
)
def test_with_the_rule_both_have_one_key(one: Request, other: Request, is_risky: bool) -> None:
    rule = rule_for(one, other)
    assert rule.toml.startswith("# proposed"), rule
    assert (rule.note is not None) == is_risky
    assert parse_profiles(rule.toml, PROFILES.profiles)
    profiles = with_rule(rule.toml)
    assert make_key(one, PROFILES).key != make_key(other, PROFILES).key
    assert make_key(one, profiles).key == make_key(other, profiles).key


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (request(TOOL, {}), request(TOOL + "/x", {}), "always count"),
        (request(TOOL, "a"), request(TOOL, "b"), "no fields"),
    ],
)
def test_what_no_rule_can_ignore_says_why(one: Request, other: Request, why: str) -> None:
    rule = rule_for(one, other)
    assert rule.toml is None
    assert why in rule.note
