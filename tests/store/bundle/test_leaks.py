"""The search for secrets at an export, under newer rules than those of the recording."""

import gzip
import json

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from calls.model import Body, Chunk, Exchange
from calls.redaction.redactor import Redactor
from store.active_profiles import load_profiles
from store.bundle.leaks import Leak, disallowed_leaks, find_leaks, find_run_leaks
from store.foreign.adopt import redact_exchange
from tests.store.exchanges import body, exchange, exchanges

KEY = b"k" * 32
PLAIN = Redactor(key=KEY, profiles=load_profiles(None))
OWN = Redactor(
    key=KEY,
    profiles=load_profiles(
        '[[profile]]\nname = "chat/1"\nmatch = { host = "api.example.com" }\nkey = ["$.model"]\n'
        'secret = ["$.who.badge"]\nquery = { secret = ["ticket"] }\n'
    ),
)
TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


def list_leaks(made: Exchange, redactor: Redactor = PLAIN) -> list[Leak]:
    return list(find_leaks(3, made, redactor))


def places(made: Exchange, redactor: Redactor = PLAIN) -> list[str]:
    return [leak.place for leak in list_leaks(made, redactor)]


def answering(data: bytes, *headers: tuple[str, str]) -> Exchange:
    made = exchange(b"{}", b"")
    assert made.response is not None
    return replace(made, response=replace(made.response, body=body(data), headers=headers))


def test_nothing_is_found_in_what_was_redacted_under_the_same_rules() -> None:
    made = answering(f'{{"key": "{TOKEN}"}}'.encode())
    assert list_leaks(redact_exchange(made, PLAIN)[0]) == []
    assert places(made) == ["3/response/body/key"]


def test_a_placeholder_that_the_limit_of_a_body_cuts_is_no_leak() -> None:
    whole = redact_exchange(answering(f'{{"api_key": "{TOKEN}"'.encode()), PLAIN)[0]
    assert whole.response is not None
    data = whole.response.body.data
    for size in range(data.index(b"PLAYHEAD_"), len(data)):
        cut = replace(body(data[:size]), truncated=True, size=len(data))
        assert list_leaks(replace(whole, response=replace(whole.response, body=cut))) == []
    made = answering(f'{{"api_key": "{TOKEN}", "password": "PLAYHEAD_'.encode())
    assert made.response is not None
    assert places(replace(made, response=replace(made.response, body=replace(made.response.body, truncated=True))))


@pytest.mark.timeout(20)
def test_a_long_run_of_asterisks_in_a_body_that_the_limit_cuts_takes_no_time() -> None:
    made = answering(b"*" * 300_000 + b"x")
    assert made.response is not None
    assert (
        places(replace(made, response=replace(made.response, body=replace(made.response.body, truncated=True)))) == []
    )


@settings(max_examples=50)
@given(exchanges)
def test_redaction_leaves_nothing_to_find(made: Exchange) -> None:
    made = replace(made, error=None, actor=None, run_evidence=())
    clean, withheld = redact_exchange(made, PLAIN)
    assert withheld or list_leaks(clean) == []


def test_a_secret_of_a_profile_that_was_written_since_is_found_by_its_pointer() -> None:
    made = exchange(b'{"model": "m", "who": {"badge": "0815-4711-abc-def"}}', b"{}")
    made = replace(made, request=replace(made.request, url=made.request.url + "?ticket=geheim0123456789"))
    clean = redact_exchange(made, PLAIN)[0]
    assert list_leaks(clean) == []
    assert places(clean, OWN) == ["3/request/url", "3/request/body/who/badge"]


@pytest.mark.parametrize(
    ("made", "place"),
    [
        (answering(b"", ("Set-Cookie", "sid=0123456789abcdef")), "3/response/headers/set-cookie"),
        (answering(f"data: a\n\ndata: {TOKEN}\n\n".encode()), "3/response/body/line/3"),
        (answering(f'[{{"a/b": ["{TOKEN}"]}}]'.encode()), "3/response/body/0/a~1b/0"),
        (
            answering(gzip.compress(f'{{"t": "{TOKEN}"}}'.encode()), ("content-encoding", "gzip")),
            "3/response/body/t",
        ),
        (replace(answering(b""), error=f"no route with {TOKEN}"), "3/error"),
    ],
)
def test_a_place_says_where_to_look(made: Exchange, place: str) -> None:
    assert places(made) == [place]


def test_a_message_of_a_websocket_is_a_place() -> None:
    data = TOKEN.encode()
    made = answering(b"")
    assert made.response is not None
    talk = Body(data=b"hi" + data, chunks=(Chunk(1, 0, 2, "text"), Chunk(2, 2, len(data), "text")), size=len(data) + 2)
    assert places(replace(made, response=replace(made.response, body=talk))) == ["3/response/body/message/1/line/1"]


def spelled_out(secret: str) -> bytes:
    """Return a chat stream that contains a secret, four letters in each event."""
    parts = [secret[at : at + 4] for at in range(0, len(secret), 4)]
    events = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in parts]
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


def test_what_a_stream_spells_out_is_found_in_its_pieces() -> None:
    made = answering(spelled_out(TOKEN), ("content-type", "text/event-stream"))
    assert len(places(made)) == 10
    assert all(place.startswith("3/response/body/line/") for place in places(made))
    clean = redact_exchange(made, PLAIN)[0]
    assert clean.redactions == 1
    assert list_leaks(clean) == []


def test_so_is_what_the_messages_of_a_websocket_spell_out() -> None:
    said = [b'{"type": "response.text.delta", "delta": "%s"}' % TOKEN[at : at + 8].encode() for at in range(0, 40, 8)]
    chunks = tuple(Chunk(at, sum(map(len, said[:at])), len(one), "text") for at, one in enumerate(said))
    data = b"".join(said)
    made = answering(b"")
    assert made.response is not None
    made = replace(made, response=replace(made.response, body=Body(data=data, size=len(data), chunks=chunks)))
    assert places(made) == [f"3/response/body/message/{n}/delta" for n in range(5)]
    clean = redact_exchange(made, PLAIN)[0]
    assert list_leaks(clean) == []
    assert clean.response is not None
    assert [chunk.size for chunk in clean.response.body.chunks] == [chunk.size for chunk in chunks]


def test_what_only_the_assembled_answer_says_is_found_in_it() -> None:
    # The two pieces are further apart than the search looks back.
    first, *others = spelled_out(f"the key is {TOKEN}").split(b"\n\n")
    data = b"\n\n".join(b"%s\n\n%s" % (b": ping\n\n" * 20_000, event) if event else b"" for event in others)
    made = exchange(b'{"model": "m", "messages": []}', b"", url="https://api.openai.com/v1/chat/completions")
    assert made.response is not None
    headers = (("content-type", "text/event-stream"),)
    made = replace(made, response=replace(made.response, body=body(first + b"\n\n" + data), headers=headers))
    assert places(made) == ["3/response/answer/choices/0/message/content"]


def test_values_are_never_shown() -> None:
    assert TOKEN not in repr(list_leaks(answering(f'{{"a": "{TOKEN}", "{TOKEN}": 1}}'.encode())))


def test_labels_are_searched() -> None:
    assert list(find_run_leaks({"id": "a", "labels": {"x": TOKEN}}, PLAIN)) == [
        Leak(place="run/labels/x", kind="a token or key of a known format")
    ]


def test_a_place_passes_by_its_name_or_a_pattern() -> None:
    leak = Leak(place="3/response/body/choices/0/text", kind="x")
    assert disallowed_leaks([leak], ["3/response/body/*"]) == []
    assert disallowed_leaks([leak], ["*"]) == []
    assert disallowed_leaks([leak], ["4/*", "3/response/body"]) == [leak]
