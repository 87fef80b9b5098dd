"""With `keep_token_claims`, a web token in an answer keeps its claims, which a client reads in a replay, and loses its signature."""

import base64
import gzip
import json
from collections.abc import Iterator

import google.auth.jwt
import jwt
import pytest

from calls.placeholder import is_placeholder, number_placeholders
from calls.redaction.redactor import Redactor
from calls.redaction.scanning.scanner import RuleTable
from calls.redaction.web_tokens import AnswerRuleTable
from tests.calls.redaction.test_sent_back import FORM, JSON, REDACTOR, URL, key_of, requests_with
from tests.calls.secrets import KEY

JSON_TYPE = "application/json"
CLAIMS = {
    "iss": "https://login.test/",
    "aud": "app-1",
    "sub": "u-17",
    "nonce": "n0",
    "exp": 1_800_000_000,
    "scp": "a b",
}
KEEPER = Redactor(key=KEY, keep_token_claims=True)
SIGNATURE = base64.urlsafe_b64encode(bytes(range(200, 232)) * 2).rstrip(b"=").decode()


def encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def token(claims: object = CLAIMS, signature: str = SIGNATURE, **header: object) -> str:
    return ".".join((encode({"alg": "RS256", "typ": "JWT", "kid": "k1", **header}), encode(claims), signature))


def replayed_token(value: str, name: str = "id_token", media: str = JSON_TYPE, end: str = "") -> str:
    """What a replay serves of a token in an answer."""
    answer = KEEPER.redact_body((json.dumps({name: value}) + end).encode(), media, is_answer=True)[0]
    return str(json.loads(answer)[name])


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("name", ["id_token", "access_token", "anything"])
def test_clients_decode_what_a_replay_serves(name: str, end: str) -> None:
    new = replayed_token(token(), name, end=end)

    assert jwt.decode(new, options={"verify_signature": False}) == CLAIMS
    assert jwt.get_unverified_header(new)["kid"] == "k1"
    assert google.auth.jwt.decode(new, verify=False) == CLAIMS


def test_nothing_of_the_signature_stays() -> None:
    new = replayed_token(token())

    signature = new.rpartition(".")[2]
    assert len(new) == len(token())
    assert signature.startswith("PLAYHEAD_")
    # Strict decoders demand that the last bits are zeros.
    assert base64.urlsafe_b64encode(base64.urlsafe_b64decode(signature + "==")).rstrip(b"=").decode() == signature


def test_equal_tokens_stay_equal_and_those_that_differ_only_in_claims_do_not() -> None:
    other = token({**CLAIMS, "exp": 1_800_000_001})

    assert replayed_token(token(), "id_token")[-30:] == replayed_token(token(), "id_token")[-30:]
    assert replayed_token(token()).rpartition(".")[2] != replayed_token(other).rpartition(".")[2]


def test_secrets_among_the_claims_are_replaced() -> None:
    secret = "sk-proj-" + "a1B2" * 10
    claims = {**CLAIMS, "password": "correct horse 7", "note": f"use {secret}", "jti": "0123456789abcdef", "sid": "s-1"}

    text = json.dumps(jwt.decode(replayed_token(token(claims)), options={"verify_signature": False}))

    for gone in ("correct horse", secret, "0123456789abcdef", "s-1"):
        assert gone not in text
    assert "u-17" in text


def test_without_the_setting_nothing_of_a_token_stays() -> None:
    body = json.dumps({"id_token": token()}).encode()
    new = json.loads(REDACTOR.redact_body(body, JSON_TYPE, is_answer=True)[0])["id_token"]

    assert new.startswith("PLAYHEAD_")
    assert len(new) == len(token())
    assert is_placeholder(new.encode())


def test_personal_data_among_the_claims_is_replaced_where_the_setting_says_so() -> None:
    body = json.dumps({"id_token": token({**CLAIMS, "email": "ada@example.com"})}).encode()
    new = Redactor(key=KEY, personal_data=True, keep_token_claims=True).redact_body(body, JSON_TYPE, is_answer=True)[0]

    found = jwt.decode(json.loads(new)["id_token"], options={"verify_signature": False})

    assert found["email"].startswith("PLAYHEAD_D")
    assert found["sub"] == "u-17"


@pytest.mark.parametrize(
    "whole",
    [
        token(alg="none"),
        token(alg="None"),
        token(alg="dir", enc="A256GCM"),
        token(zip="DEF"),
        token(signature=""),
        token(signature="short"),
        token([1, 2]),
        token("eyJ"),
        token() + ".x1" + "y2" * 20,
        token({**CLAIMS, "groups": ["0123456789abcdef"] * 500}),
        f"{encode({'user': 17, 'csrf': 'x1'})}.aVbC3w.{SIGNATURE[:27]}",  # a session of Flask
    ],
)
def test_other_tokens_are_replaced_as_a_whole(whole: str) -> None:
    assert replayed_token(whole).startswith("PLAYHEAD_J")
    assert "eyJ" not in replayed_token(whole)


def test_tokens_of_requests_are_replaced_as_a_whole() -> None:
    for _, headers, data in requests_with("access_token", token()):
        new = KEEPER.redact_body(data, dict(headers).get("content-type"))[0]
        assert b"eyJ" not in new


def requests_that_send_it_back(value: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...], bytes]]:
    yield from requests_with("access_token", value)
    yield from requests_with("anything", value)
    yield f"{URL}/{value}/x", (), b""
    yield f"{URL}?anything={value}", (), b""
    yield URL, (("x-custom", value), ("cookie", f"s={value}"), ("authorization", f"Bearer {value}")), b""
    yield URL, JSON, json.dumps({"text": f"the token is {value}, and {value} again"}).encode()
    yield URL, JSON, json.dumps({"text": f"it is {value}."}).encode()
    yield URL, FORM, f"grant_type=refresh&assertion={value}".encode()


def test_a_token_that_is_sent_back_has_the_key_of_the_recorded_one() -> None:
    new = replayed_token(token())
    for recorded, replayed in zip(requests_that_send_it_back(token()), requests_that_send_it_back(new), strict=True):
        key, url, body = key_of(*recorded)
        assert SIGNATURE not in url
        assert SIGNATURE.encode() not in body
        assert (key_of(*replayed)[0], recorded) == (key, recorded)


def test_a_placeholder_passes_unchanged() -> None:
    for end in ("", "\n"):
        body = (json.dumps({"id_token": replayed_token(token()), "n": 1}) + end).encode()
        for is_answer in (False, True):
            assert KEEPER.redact_body(body, JSON_TYPE, is_answer=is_answer) == (body, 0, False)
    assert is_placeholder(replayed_token(token()).encode())
    assert number_placeholders(f"a {replayed_token(token())} b") == "a PLAYHEAD:1 b"


@pytest.mark.parametrize("media", [JSON_TYPE, "text/event-stream", "application/x-ndjson", "text/plain"])
def test_where_the_network_cuts_the_answer_does_not_matter(media: str) -> None:
    data = f"data: {json.dumps({'id_token': token(), 'n': 1})}\n\n".encode()
    whole = KEEPER.redact_body(data, media, is_answer=True)[0]
    assert SIGNATURE.encode() not in whole
    assert whole.count(b".PLAYHEAD_") == 1
    for at in range(len(data)):
        body = KEEPER.new_body_redactor(media, is_answer=True)
        pieces = [*body.feed(data[:at], 0), *body.feed(data[at:], 1), *body.finish()]
        assert b"".join(piece.data for piece in pieces) == whole, at


def test_a_token_that_a_model_spells_out_is_replaced_as_a_whole() -> None:
    text = f"It is {token()} now"
    events = [{"choices": [{"index": 0, "delta": {"content": text[at : at + 7]}}]} for at in range(0, len(text), 7)]
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()

    new = KEEPER.redact_body(data, "text/event-stream", is_answer=True)[0]

    output = "".join(
        json.loads(line[6:])["choices"][0]["delta"]["content"] for line in new.decode().splitlines() if line
    )
    assert output.startswith("It is PLAYHEAD_T")
    assert "eyJ" not in output
    assert KEEPER.redact_body(new, "text/event-stream", is_answer=True) == (new, 0, False)


def test_compressed_answers_keep_the_claims_too() -> None:
    data = gzip.compress(json.dumps({"id_token": token()}).encode())

    new = json.loads(gzip.decompress(KEEPER.redact_body(data, JSON_TYPE, "gzip", is_answer=True)[0]))

    assert jwt.decode(new["id_token"], options={"verify_signature": False}) == CLAIMS
    assert SIGNATURE not in new["id_token"]


def test_the_expressions_for_answers_are_those_for_requests() -> None:
    # To compile them takes as long as the start of a worker, and others stand still meanwhile.
    for_requests, for_answers = RuleTable(), AnswerRuleTable()
    assert for_answers._last.__self__ is for_requests._last.__self__
    assert for_answers._tail.__self__ is for_requests._tail.__self__
