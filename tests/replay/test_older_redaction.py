"""A run that was recorded under older redaction rules, or other settings, answers requests that are redacted by the present ones."""

import asyncio
import gzip
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from calls.codec.json import dumps
from calls.model import Exchange, Headers, Request
from calls.redaction.redactor import RedactionRules, Redactor
from calls.redaction.whole_request import redact_request
from replay.answer import Answer
from replay.misses import redacted_again
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.replays import Replays, ReplaySource
from tests.calls.sockets import ASKED, socket
from tests.replay.strategies import JSON, PROFILES, chat, exchange, model_answer, ok, post, run_of
from tests.replay.websocket.test_mcp_questions import call, event, events_at, message, timed_exchange
from tests.replay.websocket.test_session import Client

TICKETS = "https://tickets.example.com/v2/search"
ECHO = "https://api.test/ws"
KEY, OTHER_KEY = b"k" * 32, b"other" * 7
SECRET, OTHER = "ghp_" + "a1B2c3D4" * 4 + "x7Yz", "ghp_" + "Z9y8X7w6" * 4 + "q1Rs"
OLD = Redactor(RedactionRules(credentials=()), key=KEY)
"""As of a version that knew no token in a body."""


def multipart(text: str) -> Request:
    headers: Headers = (("Content-Type", "multipart/form-data; boundary=xyz"),)
    return post(
        TICKETS, f'--xyz\r\nContent-Disposition: form-data; name="a"\r\n\r\n{text}\r\n--xyz--'.encode(), headers
    )


REQUESTS: dict[str, Callable[[str], Request]] = {
    "message": lambda secret: chat(f"my key is {secret}, ok?"),
    "arguments of a tool": lambda secret: chat("a", tools=[{"x": json.dumps({"run": f"curl -H '{secret}'"})}]),
    "query": lambda secret: post(f"{TICKETS}?page=2&q={secret}", b'{"query":"x"}'),
    "path": lambda secret: post(f"{TICKETS}/{secret}/close", b"{}"),
    "base64": lambda secret: post(TICKETS, json.dumps({"file": b64encode(f"a {secret} b".encode()).decode()}).encode()),
    "gzip": lambda secret: post(
        TICKETS, gzip.compress(f'{{"q":"{secret}"}}'.encode()), (*JSON, ("Content-Encoding", "gzip"))
    ),
    "form": lambda secret: post(
        TICKETS, f"a=1&q={secret}".encode(), (("Content-Type", "application/x-www-form-urlencoded"),)
    ),
    "multipart": multipart,
    "stream": lambda secret: post(
        TICKETS, f'data: {{"a":"{secret}"}}\n\n'.encode(), (("Content-Type", "text/event-stream"),)
    ),
}


def old_exchanges(*requests: Request, redactor: Redactor = OLD) -> list[Exchange]:
    """What an older version recorded: the answers say which request they belong to."""
    return [
        exchange(redact_request(request, redactor), ok(b'{"answer":%d}' % number), number=number)
        for number, request in enumerate(requests, 1)
    ]


async def replays_of(exchanges: Sequence[Exchange], redactor: Redactor | None = None, **options: Any) -> Replays:
    replays = Replays(
        redactor=redactor or Redactor(key=KEY),
        profiles=PROFILES,
        options=ReplayOptions(**options),
        on_change=lambda _: None,
    )
    await replays.start([ReplaySource(replay="replay-1", bundle=run_of(*exchanges, profiles=PROFILES))])
    return replays


async def ask(replays: Replays, request: Request) -> Answer:
    answer = await replays.answer(request, run=None, owner="127.0.0.1:1")
    assert answer is not None
    return answer


@pytest.mark.parametrize("redactor", [Redactor(key=KEY), Redactor(key=OTHER_KEY)], ids=["same key", "other key"])
@pytest.mark.parametrize("place", REQUESTS)
async def test_a_recorded_secret_that_is_redacted_now_is_found(place: str, redactor: Redactor) -> None:
    request = REQUESTS[place](SECRET)
    exchanges = old_exchanges(chat("first"), request)
    assert exchanges[1].request == request, "the older version found the secret"
    replays = await replays_of(exchanges, redactor)
    answer = await ask(replays, request)
    assert (answer.status, answer.body) == (200, b'{"answer":2}')
    report: Any = replays.report("replay-1")
    assert (report["served"], report["missed"], report["unused"], report["drift"]) == (1, 0, 1, [])


async def test_what_was_recorded_is_not_changed() -> None:
    exchanges = old_exchanges(chat(f"my key is {SECRET}"))
    replays = await replays_of(exchanges)
    await ask(replays, chat(f"my key is {SECRET}"))
    assert SECRET.encode() in exchanges[0].request.body.data


async def test_equal_requests_with_two_secrets_get_their_own_answers() -> None:
    replays = await replays_of(old_exchanges(chat(f"a {SECRET}"), chat(f"a {OTHER}")))
    assert (await ask(replays, chat(f"a {OTHER}"))).body == b'{"answer":2}'
    assert (await ask(replays, chat(f"a {SECRET}"))).body == b'{"answer":1}'
    assert (await ask(replays, chat(f"a {SECRET}"))).status == 424


async def test_what_was_answered_before_the_first_miss_does_not_answer_again() -> None:
    replays = await replays_of(old_exchanges(chat("a"), chat(f"a {SECRET}"), chat("a")))
    assert [(await ask(replays, chat("a"))).body for _ in range(2)] == [b'{"answer":1}', b'{"answer":3}']
    assert (await ask(replays, chat(f"a {SECRET}"))).body == b'{"answer":2}'
    assert (await ask(replays, chat("a"))).status == 424
    report: Any = replays.report("replay-1")
    assert (report["served"], report["missed"], report["unused"]) == (3, 1, 0)


async def test_a_setting_that_redacts_more_than_it_did_finds_what_was_recorded() -> None:
    request = chat("write to ada.lovelace@example.com, she is Ada Lovelace")
    now = Redactor(key=KEY, personal_data=True, names=("Ada Lovelace",))
    replays = await replays_of(old_exchanges(request, redactor=Redactor(key=KEY)), now)
    assert (await ask(replays, request)).status == 200


async def test_a_setting_that_redacts_less_than_it_did_is_named() -> None:
    request = chat("write to ada.lovelace@example.com")
    replays = await replays_of(old_exchanges(request, redactor=Redactor(key=KEY, personal_data=True)))
    problem = json.loads((await ask(replays, request)).body)
    assert problem["playhead"]["reason"] == "redaction_changed"
    assert "as today's rules redact them" in problem["detail"]
    assert "set redact_personal_data or redact_names_file" in problem["playhead"]["fix"]


async def test_a_miss_after_all_shows_no_secret_and_says_what_was_tried() -> None:
    replays = await replays_of(old_exchanges(chat(f"my key is {SECRET}, ok?")))
    answer = await ask(replays, chat(f"my key was {SECRET}, ok?"))
    problem = json.loads(answer.body)
    assert problem["playhead"]["reason"] == "no_match"
    assert "as today's rules redact them" in problem["detail"]
    assert SECRET not in answer.body.decode()


async def test_a_recording_is_redacted_once_at_its_first_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    redact = redacted_again.redact_entries

    def count(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return redact(*arguments)

    monkeypatch.setattr("replay.recording.redact_entries", count)
    replays = await replays_of(old_exchanges(chat("a"), *(chat(f"{n} {SECRET}") for n in range(5))))
    assert (await ask(replays, chat("a"))).status == 200
    assert calls == 0
    answers = await asyncio.gather(*(ask(replays, chat(f"{n} {SECRET}")) for n in range(5)))
    assert [answer.status for answer in answers] == [200] * 5
    assert (await ask(replays, chat("b"))).status == 424
    assert calls == 1


async def test_only_so_much_is_redacted_again_and_the_miss_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redacted_again, "MAX_WITH_SECRETS", 100)
    replays = await replays_of(old_exchanges(*(chat(f"{n} {SECRET}") for n in range(3))))
    assert (await ask(replays, chat(f"0 {SECRET}"))).status == 200
    problem = json.loads((await ask(replays, chat(f"2 {SECRET}"))).body)
    assert "The first 1 of 3 recorded requests" in problem["detail"]


async def test_short_requests_count_for_the_time_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redacted_again, "MAX_WITH_SECRETS", 1200)
    replays = await replays_of(old_exchanges(*(post(f"{TICKETS}?q={SECRET}&n={n}", b"{}") for n in range(4))))
    problem = json.loads((await ask(replays, post(f"{TICKETS}?q={SECRET}&n=4", b"{}"))).body)
    assert "The first 3 of 4 recorded requests" in problem["detail"]


async def test_what_is_held_of_redacted_requests_counts_as_memory() -> None:
    recording = build_recording(run_of(*old_exchanges(chat("a"), chat(f"a {SECRET}")), profiles=PROFILES), PROFILES)
    assert recording.redacted_again(Redactor(key=KEY)).size > recording.size
    clean = build_recording(run_of(*old_exchanges(chat("a")), profiles=PROFILES), PROFILES)
    assert clean.redacted_again(Redactor(key=KEY)).size == clean.size


async def test_a_stream_of_mcp_waits_for_requests_to_an_address_that_is_redacted_now() -> None:
    url = f"https://tools.example.com/mcp?q={SECRET}"
    listen = Request(method="GET", url=url, headers=(("Mcp-Session-Id", "a"),))
    begin = post(url, dumps(call(1, "a")), (*JSON, ("Mcp-Session-Id", "a")))
    replays = await replays_of(
        [
            timed_exchange(1, listen, events_at((30, event(message(method="notifications/message")))), 0, 60),
            timed_exchange(2, begin, events_at((39, event(message(id=1, result={})))), 10, 40),
        ]
    )
    stream = await ask(replays, listen)
    assert stream.pieces[0].sendable_data(0) is None
    await ask(replays, begin)
    assert stream.pieces[0].sendable_data(0) is not None


async def test_a_replay_that_was_suspended_goes_on_with_such_a_recording() -> None:
    bundle = run_of(*old_exchanges(chat(f"a {SECRET}"), chat(f"b {SECRET}")), profiles=PROFILES)

    async def load(name: str) -> ReplaySource | None:
        return ReplaySource(replay=name, bundle=bundle)

    clock = [0.0]
    replays = Replays(
        redactor=Redactor(key=KEY),
        profiles=PROFILES,
        options=ReplayOptions(),
        load=load,
        on_change=lambda _: None,
        now=lambda: clock[0],
    )
    for number, prompt in enumerate("ab", 1):
        answer = await replays.answer(chat(f"{prompt} {SECRET}"), run="run-1", owner="127.0.0.1:1")
        assert answer is not None
        assert answer.body == b'{"answer":%d}' % number
        clock[0] += 10_000
        replays.suspend_idle()
    report: Any = replays.report("run-1")
    assert report["verdict"] == "right"


async def test_a_model_answer_is_streamed_from_such_a_recording_too() -> None:
    one = exchange(redact_request(chat(f"a {SECRET}"), OLD), model_answer("A"))
    replays = await replays_of([one])
    answer = await ask(replays, chat(f"a {SECRET}", stream=True))
    assert answer.status == 200
    assert "reframed" in dict(answer.headers)["Playhead"]


async def open_socket(replays: Replays, url: str) -> Client:
    return Client(await ask(replays, Request(method="GET", url=url, headers=ASKED)))


def conversation(url: str, *words: str) -> Exchange:
    said: list[Any] = [
        pair for word in words for pair in (("request", {"say": word}), ("response", {"said": len(word)}))
    ]
    return socket(*said, url=url, name="0199aaaa-0000-7000-8000-000000000001", started_at=1)


async def test_the_messages_of_a_websocket_are_found_as_they_are_redacted_now() -> None:
    replays = await replays_of([conversation(ECHO, "hello", f"it is {SECRET}", "bye")])
    client = await open_socket(replays, ECHO)
    heard = [client.say(word) for word in ("hello", f"it is {SECRET}", "bye")]
    assert heard == [[{"said": 5}], [{"said": 46}], [{"said": 3}]]
    report: Any = replays.report("replay-1")
    assert (report["served"], report["missed"], report["verdict"]) == (1, 0, "right")


async def test_a_websocket_is_found_by_its_address_as_it_is_redacted_now() -> None:
    url = f"{ECHO}?q={SECRET}"
    client = await open_socket(await replays_of([conversation(url, f"it is {SECRET}")]), url)
    assert client.say(f"it is {SECRET}") == [{"said": 46}]


async def test_another_message_of_a_websocket_is_a_miss_without_the_secret() -> None:
    replays = await replays_of([conversation(ECHO, f"it is {SECRET}")])
    client = await open_socket(replays, ECHO)
    frames = client.say(f"it was {SECRET}")
    assert frames[-1].kind == "close"
    report: Any = replays.report("replay-1")
    assert report["missed"] == 1
    assert SECRET not in json.dumps(report)
