"""The server labels every answer with the result of its check, and does not start if the check fails."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from playhead_inference.endpoint import BatchInvarianceError, Endpoint

CELL = {"name": "greedy", "answers": 17, "distinct": 1}
HOLDS: dict[str, Any] = {
    "verdict": "holds",
    "fingerprint": "sha256:" + "ab" * 32,
    "refused": [],
    "layers": {"differing": []},
    "patched": [CELL],
    "control": [{**CELL, "distinct": 9}],
}
VARIES = {**HOLDS, "verdict": "varies", "patched": [{**CELL, "distinct": 2}]}
INCONCLUSIVE = {**HOLDS, "verdict": "inconclusive"}
UNCONTROLLED = {**INCONCLUSIVE, "control": []}
UNCOVERED = {**INCONCLUSIVE, "uncovered": ["aten.new_one n×8: it cannot be run"]}
REFUSED = {"verdict": "refused", "fingerprint": HOLDS["fingerprint"], "refused": ["LoRA was not tested"]}


async def start_app(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[TestClient, Any]:
    """A server with the plugin, whose self-check returns this report."""

    async def serve_report(_: Any) -> dict[str, Any]:
        return report

    check = SimpleNamespace(SelfCheck=lambda engine, _: SimpleNamespace(report=lambda: serve_report(engine)))
    monkeypatch.setitem(sys.modules, "playhead_inference.check", check)  # type: ignore[arg-type] # it is only read
    app, endpoint = FastAPI(), Endpoint()

    async def answer(request: Request) -> JSONResponse:
        body = await request.body()
        return JSONResponse({"size": len(body)}, status_code=400 if request.url.path == "/refused" else 200)

    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/refused"):
        app.post(path)(answer)
    app.state.serving = SimpleNamespace(system_fingerprint="vllm-0.32.0")
    endpoint.attach_router(app)
    await endpoint.init_state(None, app.state, None)
    return TestClient(app), app.state


async def test_the_report_is_shown_in_full_and_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    client, state = await start_app(HOLDS, monkeypatch)
    assert client.get("/batch_invariance").json() == HOLDS
    assert state.serving.system_fingerprint == "playhead-abababababababab"
    for path in ("/batch_invariance", "/nowhere"):
        assert client.get(path).headers["x-batch-invariant-fingerprint"] == HOLDS["fingerprint"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/completions", {"prompt": "who", "temperature": 0}, "true"),
        ("/v1/completions", {"prompt": "who", "temperature": 0.8, "seed": 3}, "true"),
        ("/v1/completions", {"prompt": "who", "temperature": 0.8}, "not-claimed; reason=unseeded"),
        (
            "/v1/chat/completions",
            {"messages": [], "temperature": 0, "response_format": {"type": "json_object"}},
            "not-claimed; reason=response_format",
        ),
        ("/v1/embeddings", {"input": "who"}, "not-claimed; reason=path"),
        ("/refused", {"temperature": 0}, "not-claimed; reason=status-400"),
    ],
)
async def test_the_claim_is_of_this_request(
    path: str, body: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = await start_app(HOLDS, monkeypatch)
    assert client.post(path, json=body).headers["x-batch-invariant"] == said


async def test_a_body_that_is_no_json_or_too_large_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = await start_app(HOLDS, monkeypatch)
    assert client.post("/v1/completions", content=b"{").headers["x-batch-invariant"] == "not-claimed; reason=body"
    monkeypatch.setattr("playhead_inference.endpoint.MAX_BODY", 4)
    answer = client.post("/v1/completions", json={"prompt": "who", "temperature": 0})
    assert answer.headers["x-batch-invariant"] == "not-claimed; reason=large-body"
    assert client.get("/batch_invariance").headers["x-batch-invariant"] == "not-claimed; reason=path"


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (VARIES, "2 distinct of 17"),
        (INCONCLUSIVE, "could not have failed"),
        (UNCONTROLLED, "no control run"),
        (UNCOVERED, "aten.new_one"),
        (REFUSED, "LoRA was not tested"),
    ],
)
async def test_what_does_not_hold_does_not_start(
    report: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BatchInvarianceError, match=words):
        await start_app(report, monkeypatch)


@pytest.mark.parametrize("report", [VARIES, INCONCLUSIVE, UNCONTROLLED, UNCOVERED, REFUSED])
async def test_degraded_it_is_served_without_the_claim(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYHEAD_INVARIANCE", "degrade")
    client, state = await start_app(report, monkeypatch)
    answer = client.post("/v1/completions", json={"prompt": "who", "temperature": 0})
    assert answer.headers["x-batch-invariant"] in ("false", "inconclusive")
    assert report["verdict"] in state.serving.system_fingerprint
