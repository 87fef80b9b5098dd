"""Answers with the claim can be requested again; those without it are never called the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from calls.keys.profile import Profiles
from calls.model import Body, Exchange, Request, Response
from proxy.errors import Failure
from proxy.inference.replay import has_invariance_claim, repeat_exchanges, report_json, run_verdict
from store.active_profiles import load_profiles
from tests.support.model_server import ModelServer, serving

ASKED = {"model": "tiny", "prompt": "who", "temperature": 0, "logprobs": 5}


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return load_profiles(None)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(ModelServer(claim="true")) as model:
        yield model


def make_exchange(
    answer: Any, asked: dict[str, Any] = ASKED, *, claim: str = "true", data: bytes | None = None
) -> Exchange:
    request, response = (json.dumps(value).encode() for value in (asked, answer))
    headers = (
        ("content-type", "application/json"),
        ("x-batch-invariant", claim),
        ("x-batch-invariant-fingerprint", "sha256:one"),
    )
    return Exchange(
        id="0197",
        run="r",
        request=Request(
            method="POST",
            url="https://api.openai.com/v1/completions",
            headers=(("content-type", "application/json"),),
            body=Body(data=data or request, size=len(request)),
        ),
        response=Response(status=200, headers=headers, body=Body(data=response, size=len(response))),
        outcome="completed",
        started_at=0,
        first_byte_at=1,
        ended_at=2,
    )


async def judge(exchange: Exchange, server: ModelServer, profiles: Profiles) -> tuple[str, str]:
    found = await repeat_exchanges([exchange], server.url, {}, profiles)
    return run_verdict(found), found[0].reason


async def test_the_same_answer_is_derived_again(server: ModelServer, profiles: Profiles) -> None:
    exchange = make_exchange(server.answer(ASKED))
    found = await repeat_exchanges([exchange], None, {"api.openai.com": server.url}, profiles)
    assert run_verdict(found) == "rederived"
    assert server.asked[-1] == ASKED


async def test_one_bit_differs(server: ModelServer, profiles: Profiles) -> None:
    answer = server.answer(ASKED)
    answer["choices"][0]["logprobs"]["token_logprobs"][0] += 1e-12
    found = await repeat_exchanges([make_exchange(answer)], server.url, {}, profiles)
    assert run_verdict(found) == "differs"
    assert found[0].pointers == ("/choices/0/logprobs/token_logprobs/0",)


async def test_another_build_that_differs_is_not_held_against_the_record(
    server: ModelServer, profiles: Profiles
) -> None:
    answer = server.answer(ASKED)
    answer["choices"][0]["text"] = "something else"
    server.fingerprint = "sha256:two"
    assert await judge(make_exchange(answer), server, profiles) == (
        "unknown",
        "another build, machine or number of threads answers now; the fingerprints differ",
    )


@pytest.mark.parametrize("claim", [None, "false", "inconclusive"])
async def test_a_server_without_the_claim_proves_nothing(profiles: Profiles, claim: str | None) -> None:
    with serving(ModelServer(claim=claim)) as server:
        word, reason = await judge(make_exchange(server.answer(ASKED)), server, profiles)
    assert word == "unknown"
    assert "makes no claim" in reason


@pytest.mark.parametrize(
    ("asked", "data", "words"),
    [
        ({**ASKED, "temperature": 0.8}, None, "without a seed"),
        ({"model": "tiny", "prompt": "who"}, None, "without a seed"),
        (ASKED, b'{"prompt": "PLAYHEAD_KABCDEFGH", "temperature": 0}', "a secret"),
    ],
)
async def test_what_cannot_be_asked_again_is_not_asked(
    server: ModelServer, profiles: Profiles, asked: dict[str, Any], data: bytes | None, words: str
) -> None:
    word, reason = await judge(make_exchange({"choices": []}, asked, data=data), server, profiles)
    assert word == "unknown"
    assert words in reason
    assert server.asked == []


async def test_a_seed_makes_a_sample_repeatable(server: ModelServer, profiles: Profiles) -> None:
    asked = {**ASKED, "temperature": 0.8, "seed": 42}
    assert (await judge(make_exchange(server.answer(asked), asked), server, profiles))[0] == "rederived"


async def test_an_answer_that_is_not_whole_is_not_asked_again(server: ModelServer, profiles: Profiles) -> None:
    exchange = replace(make_exchange(server.answer(ASKED)), outcome="client_closed")
    assert await judge(exchange, server, profiles) == ("unknown", "its recording is incomplete")


async def test_answers_without_the_claim_are_counted_and_left(server: ModelServer, profiles: Profiles) -> None:
    exchange = make_exchange(server.answer(ASKED), claim="inconclusive")
    assert not has_invariance_claim(exchange)
    found = await repeat_exchanges([exchange], server.url, {}, profiles)
    assert report_json("r", found, 1) == {"run": "r", "verdict": "unknown", "asked": 0, "without_claim": 1, "calls": []}


async def test_a_key_goes_along_and_a_wrong_one_is_one_sentence(server: ModelServer, profiles: Profiles) -> None:
    exchange = make_exchange(server.answer(ASKED))
    found = await repeat_exchanges([exchange], server.url, {}, profiles, "the-key")
    assert run_verdict(found) == "rederived"
    assert server.keys[-1] == "Bearer the-key"
    server.status = 401
    with pytest.raises(Failure, match="--api-key KEY or VLLM_API_KEY"):
        await repeat_exchanges([exchange], server.url, {}, profiles)
    assert server.keys[-1] is None


async def test_nobody_to_ask_is_one_sentence(server: ModelServer, profiles: Profiles) -> None:
    with pytest.raises(Failure, match="playhead inference up"):
        await repeat_exchanges([make_exchange(server.answer(ASKED))], "http://127.0.0.1:1", {}, profiles)
