"""The server says what its check found, on every answer, and does not start where that is not enough."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from playhead_inference.endpoint import Endpoint, NotInvariant

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
REFUSED = {"verdict": "refused", "fingerprint": HOLDS["fingerprint"], "refused": ["LoRA was not tested"]}


async def started(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[TestClient, Any]:
    """A server with the plugin, whose self-check finds this."""

    async def found(_: Any) -> dict[str, Any]:
        return report

    check = SimpleNamespace(Check=lambda engine: SimpleNamespace(report=lambda: found(engine)))
    monkeypatch.setitem(sys.modules, "playhead_inference.check", check)  # type: ignore[arg-type] # it is only read
    app, endpoint = FastAPI(), Endpoint()
    app.state.serving = SimpleNamespace(system_fingerprint="vllm-0.32.0")
    endpoint.attach_router(app)
    await endpoint.init_state(None, app.state, None)
    return TestClient(app), app.state


async def test_what_was_found_is_told_in_full_and_on_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    client, state = await started(HOLDS, monkeypatch)
    assert client.get("/batch_invariance").json() == HOLDS
    assert state.serving.system_fingerprint == "playhead-true-abababababababab"
    for path in ("/batch_invariance", "/nowhere"):
        answer = client.get(path)
        assert answer.headers["x-batch-invariant"] == "true"
        assert answer.headers["x-batch-invariant-fingerprint"] == HOLDS["fingerprint"]


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (VARIES, "2 distinct of 17"),
        (INCONCLUSIVE, "could not have failed"),
        (UNCONTROLLED, "no control"),
        (REFUSED, "LoRA was not tested"),
    ],
)
async def test_what_does_not_hold_does_not_start(
    report: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotInvariant, match=words):
        await started(report, monkeypatch)


@pytest.mark.parametrize("report", [VARIES, INCONCLUSIVE, UNCONTROLLED, REFUSED])
async def test_degraded_it_is_served_without_the_claim(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYHEAD_INVARIANCE", "degrade")
    client, state = await started(report, monkeypatch)
    assert client.get("/nowhere").headers["x-batch-invariant"] != "true"
    assert "true" not in state.serving.system_fingerprint
