"""Calibration of two recordings of the same work, and the proposed rules."""

import json
import random
import tomllib
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.comparison.calibrate import Calibration, Finding, calibrate
from calls.comparison.field_heuristics import Guess
from calls.comparison.proposal import Proposal, ProposedRule, add_proposal, propose_profiles
from calls.model import Exchange, Request, Response
from store.active_profiles import load_profiles
from tests.calls.recorded import body
from tests.calls.sample_requests import ANTHROPIC, OPENAI, PROFILES, TICKETS, VERSION, chat, json_request, request, user


def exchange(asked: Request, result: Any = None, step: int = 0) -> Exchange:
    answer = json.dumps({"ok": True} if result is None else result).encode()
    return Exchange(
        id=f"0198c1d2-0000-7000-8000-{step:012}",
        run="run",
        request=asked,
        response=Response(status=200, headers=(("content-type", "application/json"),), body=body(answer)),
        outcome="completed",
        started_at=step,
        first_byte_at=0,
        ended_at=1,
    )


def run(*asked: Request) -> list[Exchange]:
    return [exchange(one, step=step) for step, one in enumerate(asked)]


def toml(found: Calibration, text: str = "") -> str:
    for proposal in propose_profiles(found.findings):
        text = add_proposal(text, proposal, "Written by a test.")
    return text


def fields(found: Calibration) -> dict[str, str]:
    return {f"{one.part} {one.path}": one.guess.field_class for one in found.findings}


def ids(seed: int) -> random.Random:
    return random.Random(seed)


def fresh(source: random.Random) -> str:
    return str(uuid.UUID(int=source.getrandbits(128), version=4))


def agent(seed: int) -> list[Exchange]:
    """Make the recording of an agent that puts a new value into every request."""
    source = ids(seed)
    session = fresh(source)
    asked = []
    for turn in range(3):
        mark = fresh(source)
        asked += [
            json_request(OPENAI, chat(user(f"question {turn}"), gateway_trace=fresh(source))),
            json_request(
                f"{TICKETS}?page={turn}&ts={1795311900 + seed}",
                {
                    "q": turn,
                    "sentAt": 1795311900 + seed,
                    "who": {"session": session},
                    "ids": [{"is": mark, "re": mark}],
                },
            ),
        ]
    return run(*asked)


def test_rules_are_proposed_under_which_the_recordings_agree() -> None:
    one, other = agent(1), agent(2)
    found = calibrate(one, other, PROFILES)
    assert (found.agreement.pairs, found.agreement.agree, found.agreement.misses) == (6, 0, 6)
    assert fields(found) == {
        "body $.gateway_trace": "transient",
        "query ts": "transient",
        "body $.sentAt": "transient",
        "body $.who.session": "identity",
        "body $.ids[*].is": "id",
        "body $.ids[*].re": "id",
    }
    text = toml(found)
    again = calibrate(one, other, load_profiles(text))
    assert (again.agreement.agree, again.findings) == (6, ())
    names = [profile["name"] for profile in tomllib.loads(text)["profile"]]
    assert names == ["openai_chat-calibrated/1", "tickets.example.com-calibrated/1"]


def test_recordings_that_agree_need_no_rule() -> None:
    found = calibrate(agent(1), agent(1), PROFILES)
    assert found.agreement.agree == 6
    assert found.findings == ()
    assert toml(found) == ""


def test_what_an_earlier_answer_gave_is_no_reason_for_a_rule() -> None:
    def page_through(seed: int) -> list[Exchange]:
        cursor = fresh(ids(seed))
        return [
            exchange(json_request(TICKETS, {"q": 1}), {"next": cursor}, 0),
            exchange(json_request(TICKETS, {"q": 1, "after": cursor}), step=1),
        ]

    found = calibrate(page_through(1), page_through(2), PROFILES)
    assert (found.agreement.agree, found.agreement.echoes, found.agreement.misses) == (1, 1, 0)
    assert "earlier answer" in found.findings[0].guess.reason
    [profile] = tomllib.loads(toml(found))["profile"]
    assert profile.keys() == {"name", "extends", "match", "answer"}, (
        "it is new in each answer, which is no rule for a key"
    )


def test_an_id_in_the_path_does_not_keep_calls_from_being_aligned() -> None:
    def threads(seed: int) -> list[Exchange]:
        thread = fresh(ids(seed))
        first = exchange(json_request(TICKETS, {"q": 1}), {"thread": thread}, 0)
        return [first, exchange(request(f"{TICKETS}/{thread}/runs", b"{}"), step=1)]

    found = calibrate(threads(1), threads(2), PROFILES)
    assert (found.agreement.pairs, found.agreement.echoes) == (2, 1)


def test_a_place_that_holds_other_things_elsewhere_is_left_alone() -> None:
    def ask_weather(seed: int) -> list[Exchange]:
        messages = [user("What is the weather?"), user(fresh(ids(seed)))]
        return run(json_request(OPENAI, chat(*messages)))

    [finding] = calibrate(ask_weather(1), ask_weather(2), PROFILES).findings
    assert finding.guess.field_class == "key"
    assert "different kinds of values" in finding.guess.reason


def test_a_rule_cannot_reach_into_arguments_or_bytes_or_the_path() -> None:
    def call_function(value: str) -> dict[str, Any]:
        function = {"name": "f", "arguments": json.dumps({"at": value})}
        calls = [{"id": "c", "type": "function", "function": function}]
        return chat(user("hi"), {"role": "assistant", "content": None, "tool_calls": calls})

    def make_run(seed: int) -> list[Exchange]:
        name = fresh(ids(seed))
        return run(
            json_request(OPENAI, call_function(name)),
            request(TICKETS, name.encode(), ("content-type", "text/plain")),
            request(f"{TICKETS}/{name}", method="GET"),
        )

    found = calibrate(make_run(1), make_run(2), PROFILES)
    assert found.agreement.pairs == 3
    assert {one.guess.field_class for one in found.findings} == {"key"}
    reasons = " ".join(one.guess.reason for one in found.findings)
    assert "a string of JSON" in reasons
    assert "no fields" in reasons
    assert "part of the URL or method" in reasons


def test_an_id_that_the_client_made_is_its_own_though_answers_repeat_it() -> None:
    """The id is sent in step 1, before any answer, and each answer echoes it."""

    def session(seed: int) -> list[Exchange]:
        mark = fresh(ids(seed))
        asked = [
            json_request(TICKETS, {"q": turn, "session": mark, "note": f"session {mark} is on"}) for turn in range(4)
        ]
        return [
            exchange(one, {"session": mark, "said": f"session {mark} is on"}, step) for step, one in enumerate(asked)
        ]

    found = calibrate(session(1), session(2), PROFILES)
    assert fields(found)["body $.session"] == "identity"
    assert found.agreement.echoes == 0
    assert fields(found)["answer $.session"] == "transient"


def test_an_id_that_an_answer_gave_is_the_server_s_unless_the_request_was_under_way() -> None:
    def session(seed: int, ended_at: int) -> list[Exchange]:
        mark = fresh(ids(seed))
        first = exchange(json_request(TICKETS, {"q": 1}), {"ticket": mark}, 0)
        second = exchange(json_request(TICKETS, {"q": 2, "ticket": mark}), None, 5)
        return [replace(first, first_byte_at=ended_at), second]

    assert calibrate(session(1, 4), session(2, 4), PROFILES).agreement.echoes == 1
    assert calibrate(session(1, 6), session(2, 6), PROFILES).agreement.echoes == 0


def test_what_two_good_answers_differ_in_is_proposed_to_be_ignored() -> None:
    def make_run(seed: int) -> list[Exchange]:
        result = {"total": 3, "served_at": 1795311900 + seed, "tickets": [{"id": "T-1", "trace": fresh(ids(seed))}] * 2}
        return [exchange(json_request(TICKETS, {"q": 1}), {**result, "tookMs": 10 + seed, "note": f"words {seed}"})]

    found = calibrate(make_run(1), make_run(2), PROFILES)
    assert fields(found) == {
        "answer $.served_at": "transient",
        "answer $.tickets[*].trace": "transient",
        "answer $.tookMs": "transient",
    }
    [profile] = tomllib.loads(toml(found))["profile"]
    assert profile["answer"]["ignore"] == ["$.served_at", "$.tickets[*].trace", "$.tookMs"]
    after = load_profiles(toml(found))
    assert not calibrate(make_run(1), make_run(2), after).findings
    assert after.digest != PROFILES.digest
    assert load_profiles(toml(found).replace("$.tookMs", "$.took")).digest == after.digest, "it is part of no key"


def test_headers_that_a_profile_declares_can_be_taken_back() -> None:
    def make_run(seed: int) -> list[Exchange]:
        return run(json_request(ANTHROPIC, chat(user("hi")), VERSION, ("anthropic-beta", f"trace-{fresh(ids(seed))}")))

    found = calibrate(make_run(1), make_run(2), PROFILES)
    assert fields(found) == {"headers anthropic-beta": "transient"}
    assert 'headers.transient = [\n  "anthropic-beta",' in toml(found)
    assert calibrate(make_run(1), make_run(2), load_profiles(toml(found))).agreement.agree == 1


def test_parallel_calls_are_aligned_whatever_their_order() -> None:
    def make_run(*order: str) -> list[Exchange]:
        return run(
            *(json_request(TICKETS, {"q": f"Look for {word} in the archive", "nonce": order[0]}) for word in order)
        )

    found = calibrate(make_run("apples", "pears", "plums"), make_run("plums", "apples", "pears"), PROFILES)
    assert fields(found) == {"body $.nonce": "transient"}


def test_a_call_without_a_counterpart_is_named() -> None:
    one = run(json_request(TICKETS, {"q": 1}), request("https://elsewhere.example/", method="GET"))
    assert calibrate(one, one[:1], PROFILES).unpaired_steps == ((2,), ())


def test_a_profile_of_one_s_own_is_extended_before_it_is_asked() -> None:
    own = '# Tickets.\n[[profile]]\nname = "tickets/1"\nmatch = { host = "tickets.example.com" }\nkey = ["$"]\n'

    def make_run(seed: int) -> list[Exchange]:
        return run(json_request(TICKETS, {"q": 1, "ref": fresh(ids(seed))}))

    text = toml(calibrate(make_run(1), make_run(2), load_profiles(own)), own)
    assert [profile["name"] for profile in tomllib.loads(text)["profile"]] == ["tickets-calibrated/1", "tickets/1"]
    assert text.endswith(own)
    assert calibrate(make_run(1), make_run(2), load_profiles(text)).agreement.agree == 1


def test_a_profile_of_ours_is_added_to_and_its_comments_stay() -> None:
    def make_run(seed: int, **more: str) -> list[Exchange]:
        return run(json_request(TICKETS, {"q": 1, "ref": fresh(ids(seed)), **more}))

    first = toml(calibrate(make_run(1), make_run(2), PROFILES))
    mine = first.replace("transient = [", "# We looked at this.\ntransient = [ # all fine") + "\n# The end.\n"
    one, other = (make_run(seed, session=fresh(ids(seed + 9))) for seed in (1, 2))
    more = [make_run(seed, stamp=fresh(ids(seed + 99))) for seed in (1, 2)]
    text = toml(calibrate(one, other, load_profiles(mine)), mine)
    text = toml(calibrate(more[0], more[1], load_profiles(text)), text)
    [profile] = tomllib.loads(text)["profile"]
    assert profile["name"] == "tickets.example.com-calibrated/3"
    assert profile["transient"] == ["$.stamp", "$.ref"]
    assert profile["identity"] == ["$.session"]
    assert "# We looked at this.\n" in text
    assert text.endswith("\n# The end.\n")


@pytest.mark.parametrize(
    "line", ['transient = ["$.a", "$.b"]', "transient = []", "transient = [\n]", "transient=[ # x\n'$.c']"]
)
def test_a_list_is_added_to_however_it_is_written(line: str) -> None:
    text = f'[[profile]]\nname = "t-calibrated/4"\n{line}\n\n[tunnel]\nhosts = ["a"]\n'
    rule = ProposedRule("transient", '"$.new"', "a reason")
    made = add_proposal(text, Proposal(stem="t-calibrated", extends="t-calibrated/4", host=None, rules=(rule,)), "")
    [before], [after] = (tomllib.loads(one)["profile"] for one in (text, made))
    assert after["transient"] == ["$.new", *before["transient"]]
    assert after["name"] == "t-calibrated/5"
    assert tomllib.loads(made)["tunnel"] == {"hosts": ["a"]}


keys = st.sampled_from(["transient", "identity", "secret", "query.transient", "headers.transient", "fold.id"])
rules = st.builds(ProposedRule, keys, st.sampled_from(['"$.a"', "\"$['ä']\"", '"$.b[*].c"']), st.just("why"))
texts = st.sampled_from(
    [
        "",
        "# Only a comment.",
        "[upstreams]\n",
        '[tunnel]\nhosts = ["x"]\n\n# Mine.\n[[profile]]\nname = "own/1"\nkey = ["$"]\n[profile.fold]\nnull = ["$.a"]\n',
    ]
)


@given(
    texts,
    st.lists(rules, min_size=1, max_size=4, unique_by=lambda rule: rule.entry),
    st.sampled_from(["rest/1", "own/1"]),
)
def test_every_line_that_was_there_stays(text: str, wanted: Sequence[ProposedRule], extends: str) -> None:
    if extends == "own/1" and "own/1" not in text:
        extends = "rest/1"
    proposal = Proposal(stem="new-calibrated", extends=extends, host="h", rules=tuple(wanted))
    made = add_proposal(text, proposal, "about")
    assert "new-calibrated/1" in [profile.name for profile in load_profiles(made).profiles]
    rest = iter(made.splitlines())
    assert all(line in rest for line in text.splitlines())
    before, after = tomllib.loads(text), tomllib.loads(made)
    assert [one for one in after.pop("profile") if one["name"] != "new-calibrated/1"] == before.pop("profile", [])
    assert after == before


def test_strange_names_and_reasons_are_written_so_that_they_can_be_read() -> None:
    guess = Guess("transient", 'looks "odd"')
    found = Finding(
        profile="rest/1", host="::1", part="body", path="$['a\\'\"\x7f\n']", guess=guess, times=1, of=1, one=1, other=2
    )
    [proposal] = propose_profiles([found])
    assert tomllib.loads(add_proposal("", proposal, "x"))["profile"][0]["transient"] == [found.path]
