"""Secrets and tampering, where other recorders looked at compressed bytes, broke what belonged together, or noticed nothing."""

import gzip
import json
import re
from functools import partial

import brotli
import httpx
import pytest
import zstandard

from calls.codec.encoding import decode_content
from calls.model import Body
from calls.placeholder import PATTERN
from tests.peers.record_and_replay import CHAT, TOOLS, RecordAndReplay, model_answer, whole

pytestmark = pytest.mark.slow

SECRET = "sk-proj-" + "a1B2c3D4" * 5
"""A key that was never valid."""

CODINGS = {"gzip": partial(gzip.compress, mtime=0), "br": brotli.compress, "zstd": zstandard.compress}


def decode_body(body: Body, coding: str) -> str:
    return decode_content(body.data, coding, 1 << 20).decode()


@pytest.mark.parametrize("coding", CODINGS)
def test_07_compressed_bodies_with_a_secret_inside(services: RecordAndReplay, coding: str) -> None:
    """The agent and the upstream get theirs; the record has neither, and can still be opened and replayed."""
    packed = CODINGS[coding]
    answer = json.dumps({"note": f"your key is {SECRET}, keep it"}).encode()
    services.answers("/keys", whole(packed(answer), f"content-encoding: {coding}"))
    asked = json.dumps({"token_of": "me", "text": f"is {SECRET} mine?"}).encode()
    headers = {"content-encoding": coding, "content-type": "application/json", "accept-encoding": coding}
    with services.recording() as agent:
        got = agent.post(f"https://{TOOLS}/keys", content=packed(asked), headers=headers)
    assert SECRET in got.text
    assert services.upstream.asked[0].body == packed(asked)

    [exchange] = services.bundle().exchanges
    assert exchange.response is not None
    for body in (exchange.request.body, exchange.response.body):
        assert body.reencoded
        text = decode_body(body, coding)
        assert SECRET not in text
        assert re.search(PATTERN, text)
    spooled = b"".join(file.read_bytes() for file in (services.recorder.data / "spool").rglob("*.seg"))
    assert SECRET.encode() not in spooled

    replay = services.replay()
    with replay.client() as agent:
        again = agent.post(f"https://{TOOLS}/keys", content=packed(asked), headers=headers)
    assert again.json()["note"] == json.loads(decode_body(exchange.response.body, coding))["note"]
    assert replay.report(1)["verdict"] == "right"


@pytest.mark.parametrize(
    "member",
    [
        "session_token",
        "text",
    ],
)
def test_08_a_secret_that_is_returned_in_step_1_and_sent_in_step_2(services: RecordAndReplay, member: str) -> None:
    """One placeholder stands for it in both, so that the two still belong together; an agent that sends the placeholder it
    was told in the replay is answered, and so is one that has the secret from elsewhere."""
    services.answers("/login", whole(json.dumps({"access_token": SECRET}).encode()))
    services.answers("/me", whole(b'{"name": "Ada"}'))

    def run(client: httpx.Client, own: str | None = None) -> tuple[str, str]:
        token = client.post(f"https://{TOOLS}/login", json={"user": "ada"}).json()["access_token"]
        me = client.post(f"https://{TOOLS}/me", json={member: own or token})
        assert me.status_code == 200, me.text
        return token, me.json()["name"]

    with services.recording() as agent:
        assert run(agent) == (SECRET, "Ada")
    login, me = services.bundle().exchanges
    assert login.response is not None
    token = json.loads(login.response.body.data)["access_token"]
    assert token != SECRET
    assert len(token) == len(SECRET)
    for own in (None, SECRET):
        replay = services.replay()
        with replay.client() as agent:
            assert run(agent, own) == (token, "Ada")
        assert replay.report(2)["verdict"] == "right"
    # But for the letter that says how it was found, it is the same one.
    assert json.loads(me.request.body.data)[member][len("PLAYHEAD_J") :] == token[len("PLAYHEAD_J") :]


def test_16_one_byte_that_is_edited_in_a_file_is_found_and_named(services: RecordAndReplay) -> None:
    services.answers("/v1/chat/completions", whole(model_answer("paid")), whole(model_answer("unpaid")))
    with services.recording() as agent:
        for prompt in ("first?", "second?"):
            agent.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": prompt}]}).raise_for_status()
    edited = services.file().replace(b"unpaid", b"enpaid", 1)
    assert edited != services.file()
    answer = services.player.request("POST", "/import", content=edited)
    assert answer.status_code == 422, answer.text
    assert "line 3 of the bundle is damaged" in answer.json()["detail"]
