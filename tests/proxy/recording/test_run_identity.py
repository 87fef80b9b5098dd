"""The run of a request: the strongest source names it, all evidence is kept, and Playhead's own fields are not forwarded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Headers
from calls.project_runs import RUN_ID
from proxy.recording.run_identity import identify, identity_problem

OWNER = "start-1.conn-7"
UUID = "0b4f5c6d-0123-4abc-89ab-0123456789ab"

# Strongest first.
PLACES: tuple[tuple[str, str, str, str], ...] = (
    ("X-Playhead-Bound-Run", "bound-1", "x-playhead-bound-run", "bound-1"),
    ("x-playhead-run", "mine-1", "x-playhead-run", "mine-1"),
    ("baggage", "a=b, gen_ai.conversation.id=conv%2D1;p=1, session.id=s", "baggage/gen_ai.conversation.id", "conv-1"),
    ("X-Claude-Code-Session-Id", UUID, "x-claude-code-session-id", UUID),
    ("session_id", "s-1", "session_id", "s-1"),
    ("x-codex-turn-metadata", '{"session_id": "turn-1"}', "x-codex-turn-metadata/session_id", "turn-1"),
    ("thread-id", "t-1", "thread-id", "t-1"),
    ("x-parent-session-id", "root-1", "x-parent-session-id", "root-1"),
    ("x-opencode-session", "o-1", "x-opencode-session", "o-1"),
    ("X-Amp-Thread-Id", "amp-1", "x-amp-thread-id", "amp-1"),
    ("Helicone-Session-Id", "h-1", "helicone-session-id", "h-1"),
    ("x-portkey-trace-id", "p-1", "x-portkey-trace-id", "p-1"),
    ("x-litellm-session-id", "l-1", "x-litellm-session-id", "l-1"),
    ("langsmith-trace", f"20260101T000000000000Z{UUID}.20260101T000001000000Zchild", "langsmith-trace", UUID),
    ("x-session-id", "x-1", "x-session-id", "x-1"),
)


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_the_strongest_place_names_the_run_and_all_are_kept(first: int) -> None:
    places = PLACES[first:]
    headers = tuple((name, value) for name, value, _, _ in reversed(places))

    found = identify(headers, None, OWNER)

    assert found.run == places[0][3]
    assert [pair for pair in found.evidence if pair[0] in {place[2] for place in places}] == [
        (source, run) for _, _, source, run in places
    ]
    assert found.evidence[-1] == ("owner", OWNER)


def test_credentials_are_stronger_than_a_header_but_for_the_one_that_binds_a_request() -> None:
    headers = (("X-Playhead-Run", "other"), ("X-Playhead-Bound-Run", "ticket"))
    found = identify(headers[:1], ("mine", "token"), OWNER)
    assert found.run == "mine"
    assert found.evidence == (("credentials", "mine"), ("x-playhead-run", "other"), ("owner", OWNER))
    bound = identify(headers, ("mine", "token"), OWNER)
    assert bound.run == "ticket"
    assert bound.evidence == (("x-playhead-bound-run", "ticket"), *found.evidence)
    assert bound.headers == ()
    fork = identify(headers, ("mine", "token"), OWNER, lambda run: run == "mine")
    assert (fork.run, fork.headers) == ("mine", ()), "a program does not leave a fork by binding runs"


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_no_url_can_hold_is_refused(name: str) -> None:
    assert identity_problem((), (name, "")) is not None
    assert identify((("x-session-id", name),), None, OWNER).run.startswith("id:")
    assert identity_problem((), ("...", "")) is None


def test_a_token_alone_names_no_run() -> None:
    assert identify((), ("", "token"), OWNER).run == OWNER


def test_nobody_named_is_the_owner_of_the_connection() -> None:
    assert identify((("Accept", "*/*"),), None, OWNER)[:4] == (OWNER, (("owner", OWNER),), None, None)


@pytest.mark.parametrize(
    ("headers", "run", "actor"),
    [
        # Codex: every thread sends the root's session, and each sub-agent has its own thread.
        ((("session-id", "root"), ("thread-id", "root")), "root", None),
        ((("session-id", "root"), ("thread-id", "t-2")), "root", "t-2"),
        ((("session-id", "root"), ("thread-id", "t-2"), ("x-openai-subagent", "collab_spawn")), "root", "t-2"),
        ((("session-id", "root"), ("thread-id", "root"), ("x-openai-subagent", "compact")), "root", "compact"),
        ((("x-codex-parent-thread-id", "t-1"), ("thread-id", "t-2")), "t-1", "t-2"),
        # opencode: each sub-agent has its own session, and sends its parent's.
        ((("x-parent-session-id", "ses_1"), ("x-session-id", "ses_2")), "ses_1", "ses_2"),
        ((("x-session-id", "ses_1"),), "ses_1", None),
        ((("x-openai-subagent", "review"),), OWNER, None),
    ],
)
def test_a_sub_agent_is_an_actor_of_the_run_that_it_works_for(headers: Headers, run: str, actor: str | None) -> None:
    found = identify(headers, None, OWNER)
    assert (found.run, found.actor) == (run, actor)


def test_a_trace_is_evidence_and_no_run() -> None:
    headers = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)

    found = identify(headers, None, OWNER)

    assert found.run == OWNER
    assert found.evidence == (("traceparent", "0af7651916cd43dd8448eb211c80319c"), ("owner", OWNER))
    assert found.headers == headers


def test_what_is_ours_goes_no_further() -> None:
    headers = (
        ("Host", "x.example"),
        ("X-PLAYHEAD-Run", "r"),
        ("x-playhead-step", "3"),
        ("X-Playhead-Actor", "planner"),
        ("X-Playhead-Anything", "else"),
        ("Proxy-Authorization", "Basic cjp0"),
        ("Authorization", "Bearer x"),
        ("Accept", "a"),
        ("accept", "b"),
    )

    found = identify(headers, None, OWNER)

    assert found.headers == (("Host", "x.example"), ("Authorization", "Bearer x"), ("Accept", "a"), ("accept", "b"))
    assert (found.step, found.actor) == (3, "planner")


def test_a_sub_agent_of_claude_code_is_the_actor() -> None:
    assert identify((("x-claude-code-agent-id", "agent-9"),), None, OWNER).actor == "agent-9"


@pytest.mark.parametrize("name", ["a b", "ä", "../../etc", "x" * 129, "user_1/session", "'; drop table runs --"])
def test_a_foreign_name_that_is_no_id_becomes_one(name: str) -> None:
    one = identify((("x-session-id", name),), None, OWNER)
    two = identify((("x-session-id", name + "!"),), None, OWNER)

    assert RUN_ID.fullmatch(one.run)
    assert one.run == identify((("x-session-id", name),), None, OWNER).run != two.run
    assert one.evidence[0] == ("x-session-id", name)


@pytest.mark.parametrize("value", ["", "  ", "x" * 513, "a\x00b", "a\x1b[2J", "\x7f"])
def test_what_cannot_be_an_identifier_is_passed_over(value: str) -> None:
    assert identify((("x-session-id", value), ("x-amp-thread-id", "t")), None, OWNER).run == "t"


@pytest.mark.parametrize(
    ("headers", "credentials", "words"),
    [
        ((), ("no spaces", "t"), "invalid run name 'no spaces' (credentials)"),
        ((("X-Playhead-Run", "ä"),), None, "(x-playhead-run): use 1 to 128"),
        ((("X-Playhead-Run", ""),), None, "invalid run name '' (x-playhead-run)"),
        ((("X-Playhead-Run", "x" * 129),), None, "invalid run name"),
        ((("X-Playhead-Step", "-1"),), None, "invalid step '-1' (X-Playhead-Step)"),
        ((("X-Playhead-Step", "٣"),), None, "invalid step"),
        ((("X-Playhead-Actor", "a\x00"),), None, "invalid X-Playhead-Actor"),
    ],
)
def test_invalid_identity_fields_get_a_reason(
    headers: Headers, credentials: tuple[str, str] | None, words: str
) -> None:
    assert words in str(identity_problem(headers, credentials))
    assert RUN_ID.fullmatch(identify(headers, credentials, OWNER).run)


def test_nothing_wrong_is_nothing_to_refuse() -> None:
    assert (
        identity_problem((("X-Playhead-Run", "a.B:1_-"), ("X-Playhead-Step", "0"), ("x-session-id", "ä")), ("r", "t"))
        is None
    )
    assert identity_problem((), ("", "t")) is None


text = st.text(st.characters(max_codepoint=255), max_size=40)


@given(st.lists(st.tuples(st.sampled_from([name for name, *_ in PLACES]), text), max_size=8), st.tuples(text, text))
def test_any_head_has_an_identity(headers: list[tuple[str, str]], credentials: tuple[str, str]) -> None:
    found = identify(tuple(headers), credentials, OWNER)

    assert RUN_ID.fullmatch(found.run)
    assert not any(name.lower().startswith("x-playhead-") for name, _ in found.headers)


@pytest.mark.parametrize("value", ["{", "[" * 100_000, "null", '{"session_id": 5}', "[]"])
def test_metadata_that_is_no_metadata_is_passed_over(value: str) -> None:
    assert identify((("x-codex-turn-metadata", value),), None, OWNER).run == OWNER
