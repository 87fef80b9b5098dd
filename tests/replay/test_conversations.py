"""Conversations with one agent say the same, each about its own matter, and in another order in the replay."""

from collections.abc import Callable, Sequence
from itertools import permutations

import pytest

from calls.codec.json import dumps
from calls.model import Json, Request, Response
from replay.recording import build_recording
from replay.reframing.id_pairs import KnownPairs
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.strategies import JSON, PROFILES, SECOND, chat, exchange, ok, post, run_of

URL = "https://agents.example.com/a2a"
TURNS = 2


def go_on(context: str, message: str) -> Request:
    """A message of an A2A client, whose own id is new each time."""
    parts: Json = [{"kind": "text", "text": "go on"}]
    said: Json = {"kind": "message", "role": "user", "messageId": message, "contextId": context, "parts": parts}
    return post(URL, dumps({"jsonrpc": "2.0", "id": message, "method": "message/send", "params": {"message": said}}))


def reply(text: str) -> Response:
    parts: Json = [{"kind": "text", "text": text}]
    said: Json = {"kind": "message", "role": "agent", "messageId": "a", "parts": parts}
    return ok(dumps({"jsonrpc": "2.0", "id": "x", "result": said}))


def replay_of_conversations(*contexts: str, turns: int = TURNS) -> Session:
    exchanges = [
        exchange(go_on(context, f"then {context} {turn}"), reply(f"{context}, turn {turn}"), number=number)
        for number, (turn, context) in enumerate(((turn, one) for turn in range(turns) for one in contexts), 1)
    ]
    assert exchanges[-1].started_at < 60 * SECOND
    return Session("replay-1", build_recording(run_of(*exchanges), PROFILES), ReplayOptions(), lambda _: None)


async def text_of(session: Session, request: Request) -> str:
    answer = await session.answer(request)
    assert answer is not None
    return (answer.body or b"".join(piece.data for piece in answer.pieces)).decode()


@pytest.mark.parametrize("order", list(permutations("abc")))
async def test_each_conversation_gets_its_own_answers_in_any_order(order: Sequence[str]) -> None:
    session = replay_of_conversations(*"abc")
    for turn in range(TURNS):
        for context in order:
            assert f'"{context}, turn {turn}"' in await text_of(session, go_on(context, f"now {context} {turn}"))
    assert (session.report()["verdict"], session.report()["unused"]) == ("right", 0)


@pytest.mark.parametrize("order", list(permutations("abc")))
async def test_a_conversation_that_the_client_names_anew_stays_one(order: Sequence[str]) -> None:
    session = replay_of_conversations(*"abc")
    stands_for = {}
    for context in "xyz":
        text = await text_of(session, go_on(context, f"now {context}"))
        stands_for[context] = next(one for one in "abc" if f'"{one}, turn 0"' in text)
    assert sorted(stands_for.values()) == ["a", "b", "c"]
    for place in order:
        context = "xyz"["abc".index(place)]
        assert f'"{stands_for[context]}, turn 1"' in await text_of(session, go_on(context, f"next {context}"))
    assert (session.report()["verdict"], session.report()["unused"]) == ("right", 0)


async def test_a_conversation_that_goes_ahead_takes_no_turn_of_another() -> None:
    session = replay_of_conversations(*"ab")
    texts = [await text_of(session, go_on(context, f"now {number}")) for number, context in enumerate("xxyy")]
    answers = ["a, turn 0", "a, turn 1", "b, turn 0", "b, turn 1"]
    assert [answer in text for answer, text in zip(answers, texts, strict=True)] == [True] * 4


async def test_a_replay_that_was_idle_in_between_still_knows_its_conversations() -> None:
    session = replay_of_conversations(*"ab")
    for context in "xy":
        await text_of(session, go_on(context, f"now {context}"))
    resumed = replay_of_conversations(*"ab")
    resumed.resume(session.suspend())
    assert '"b, turn 1"' in await text_of(resumed, go_on("y", "next"))


def test_ids_stand_for_one_another_from_the_first_answer_on() -> None:
    known = KnownPairs()
    assert [known.distance(pairs) for pairs in ((), (("a", "a"),), (("a", "x"),))] == [0, 0, 1]
    known.note((("a", "x"),))
    assert [known.distance(((then, now),)) for then in "ab" for now in "xy"] == [0, 2, 2, 1]
    assert known.find_closer((("b", "x"),), [(("c", "x"),), (("a", "x"),)]) == 1
    assert known.find_closer((("b", "y"),), [(("c", "y"),)]) is None


AGENT = "https://bedrock-agent-runtime.eu-west-1.amazonaws.com/agents/A1/agentAliases/B1/sessions"


def ask_agent(session: str) -> Request:
    return post(f"{AGENT}/{session}/text", dumps({"inputText": "go on"}))


def ask_model(session: str) -> Request:
    return chat("go on", user=session)


def ask_with_metadata(session: str) -> Request:
    return chat("go on", metadata={"session_id": session, "worker": "w1"})


@pytest.mark.parametrize("ask", [ask_agent, ask_model, ask_with_metadata])
@pytest.mark.parametrize("order", list(permutations("abc")))
async def test_a_conversation_that_a_path_or_a_field_names_anew_stays_one(
    ask: Callable[[str], Request], order: Sequence[str]
) -> None:
    # The turns of the three conversations overlap.
    exchanges = [
        exchange(ask(f"{one}-then"), ok(dumps({"said": f"{one}{turn}"})), number=number, ended_at=SECOND * 9 // 4)
        for number, (turn, one) in enumerate(((turn, one) for turn in range(TURNS) for one in "abc"), 1)
    ]
    session = Session("replay-1", build_recording(run_of(*exchanges), PROFILES), ReplayOptions(), lambda _: None)
    for turn, conversations in enumerate(("abc", order)):
        for one in conversations:
            assert f"{one}{turn}" in await text_of(session, ask(f"{one}-now"))
        # Of the first turn, only the order says which conversation is which.
        assert session.report()["ambiguous"] == 3
    assert (session.report()["verdict"], session.report()["unused"]) == ("right", 0)


async def test_an_id_that_all_conversations_share_decides_nothing() -> None:
    exchanges = [exchange(ask_model("then"), ok(b"{}"), number=number, ended_at=9 * SECOND) for number in (1, 2, 3)]
    session = Session("replay-1", build_recording(run_of(*exchanges), PROFILES), ReplayOptions(), lambda _: None)
    for user in ("now", "now", "then"):
        await text_of(session, ask_model(user))
    assert session.report()["ambiguous"] == 3


async def test_a_field_that_changes_within_a_conversation_leaves_the_recorded_order() -> None:
    def ask(worker: str) -> Request:
        return chat("go on", metadata={"worker": worker})

    exchanges = [
        exchange(ask(f"then {n % 2}"), ok(dumps({"said": f"answer {n}"})), number=n + 1, started_at=n * SECOND)
        for n in range(4)
    ]
    session = Session("replay-1", build_recording(run_of(*exchanges), PROFILES), ReplayOptions(), lambda _: None)
    texts = [await text_of(session, ask(f"now {worker}")) for worker in (0, 1, 1, 0)]
    assert [f"answer {n}" in text for n, text in enumerate(texts)] == [True] * 4


SAY = "https://shop.example.com/v1/say"
HASH = "https://space.example.com/gradio_api/queue/data"


def digest_of(name: str) -> str:
    """The end of a placeholder, which is the same for the same secret."""
    return {"a": "AAAABBBBCCCC", "b": "BBBBCCCCDDDD", "c": "CCCCDDDDEEEE"}[name[0]] + name[1:].upper()


def say(*head: tuple[str, str]) -> Request:
    return post(SAY, b'{"say": "go on"}', (*JSON, ("authorization", "Bearer PLAYHEAD_CSHAREDBYALLTHREE"), *head))


def ask_with_cookie(name: str, kind: str = "C") -> Request:
    return say(("Cookie", f"lang=**; PHPSESSID=PLAYHEAD_{kind}{digest_of(name)}; seen=***"))


def ask_with_token(name: str, kind: str = "C") -> Request:
    return post(SAY, b'{"say": "go on"}', (*JSON, ("authorization", f"Bearer PLAYHEAD_{kind}{digest_of(name)}")))


def ask_with_web_token(name: str, kind: str = "C") -> Request:
    # In a request it is replaced as a whole; in an answer, and so in a replay, only its signature is.
    claims = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." if kind == "W" else ""
    return post(SAY, b'{"say": "go on"}', (*JSON, ("authorization", f"Bearer {claims}PLAYHEAD_J{digest_of(name)}")))


def ask_with_url(name: str, kind: str = "C") -> Request:
    return post(f"{SAY}?access_token=PLAYHEAD_{kind}{digest_of(name)}", b'{"say": "go on"}')


def ask_with_secret_header(name: str, kind: str = "C") -> Request:
    return say(("X-Chat-Id", f"PLAYHEAD_{kind}{digest_of(name)}"))


def ask_with_header(name: str) -> Request:
    return say(("X-Conversation-Id", name))


def ask_with_query(name: str) -> Request:
    return Request(method="GET", url=f"{HASH}?session_hash={name}")


def replay_of_turns(ask: Callable[[str], Request], turns: str, names: dict[str, str]) -> Session:
    """A replay of these turns of conversations, of which neighbours overlapped."""
    counts = dict.fromkeys(turns, 0)
    exchanges = []
    for number, one in enumerate(turns, 1):
        counts[one] += 1
        said = ok(dumps({"said": f"{one}{counts[one]}"}))
        exchanges.append(exchange(ask(names[one]), said, number=number, ended_at=SECOND * 9 // 4))
    return Session("replay-1", build_recording(run_of(*exchanges), PROFILES), ReplayOptions(), lambda _: None)


@pytest.mark.parametrize(
    "ask", [ask_with_cookie, ask_with_token, ask_with_web_token, ask_with_url, ask_with_secret_header]
)
@pytest.mark.parametrize("kind", ["C", "W"])
@pytest.mark.parametrize("turns", ["abcabc", "cbaabc", "ccbbaa", "bacbac"])
async def test_a_conversation_with_a_secret_that_an_answer_gave_gets_its_own_answers(
    ask: Callable[..., Request], kind: str, turns: str
) -> None:
    session = replay_of_turns(ask, "abcabc", {one: one for one in "abc"})
    counts = dict.fromkeys(turns, 0)
    for one in turns:
        counts[one] += 1
        assert f"{one}{counts[one]}" in await text_of(session, ask(one, kind))
    report = session.report()
    assert (report["verdict"], report["unused"], report["ambiguous"]) == ("right", 0, 0)


@pytest.mark.parametrize("ask", [ask_with_cookie, ask_with_secret_header, ask_with_header, ask_with_query])
@pytest.mark.parametrize("turns", ["abcabc", "abccba", "abccab"])
async def test_a_conversation_to_which_a_client_gives_another_name_stays_one(
    ask: Callable[[str], Request], turns: str
) -> None:
    session = replay_of_turns(ask, "abcabc", {one: f"{one}2" for one in "abc"})
    counts = dict.fromkeys(turns, 0)
    for one in turns:
        counts[one] += 1
        assert f"{one}{counts[one]}" in await text_of(session, ask(f"{one}3"))
    assert (session.report()["verdict"], session.report()["unused"]) == ("right", 0)


async def test_a_session_that_asks_more_often_than_it_did_gets_what_is_left_and_that_is_ambiguous() -> None:
    session = replay_of_turns(ask_with_cookie, "ab", {one: one for one in "ab"})
    texts = [await text_of(session, ask_with_cookie("a")) for _ in "aa"]
    assert ["a1" in texts[0], "b1" in texts[1]] == [True, True]
    assert session.report()["ambiguous"] == 1


async def test_tokens_that_are_new_with_every_request_leave_the_recorded_order() -> None:
    session = replay_of_turns(ask_with_token, "abc", {one: f"{one}2" for one in "abc"})
    texts = [await text_of(session, ask_with_token(one)) for one in ("c3", "b3", "a3")]
    assert [said in text for said, text in zip(("a1", "b1", "c1"), texts, strict=True)] == [True] * 3


async def test_the_token_that_is_renewed_earlier_skips_nothing_it_did_not_ask() -> None:
    # A client that signs its own tokens renews them by the clock.
    session = replay_of_turns(ask_with_token, "aabb", {"a": "a2", "b": "b2"})
    texts = [await text_of(session, ask_with_token(one)) for one in ("a3", "b3", "b3", "b3")]
    assert [said in text for said, text in zip(("a1", "a2", "b1", "b2"), texts, strict=True)] == [True] * 4


def test_so_many_ids_are_noted_at_most() -> None:
    known = KnownPairs()
    for number in range(100_001):
        known.note((("a", f"now-{number}"),))
    assert known.distance((("a", "now-99999"),)) == 0
    assert known.distance((("b", "now-100000"),)) == 1
