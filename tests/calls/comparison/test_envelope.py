"""The envelope says what was captured of a run, and what was not."""

from msgspec.structs import replace

from calls.comparison.envelope import MOST_STEPS, MOST_VALUES, EnvelopeBuilder
from calls.model import Body, Call, Exchange, Request, Response
from tests.store.samples import call, exchange, model_call


def model_step(number: int, **more: object) -> tuple[int, Exchange, Call]:
    """A step that asks a model."""
    one = exchange(number)
    called = replace(
        model_call(one), request={"messages": []}, model_requested="gpt-4o", model_returned="gpt-4o-2026-05-13"
    )
    return number, one, replace(called, **more)


def test_what_was_captured_has_its_steps() -> None:
    builder = EnvelopeBuilder()
    builder.add(*model_step(1, params={"temperature": 0, "seed": 7}, system_fingerprint="fp_1"))
    builder.add(*model_step(2, params={"temperature": 0, "seed": 7}, system_fingerprint="fp_2"))
    builder.add(3, exchange(3), call(exchange(3)))
    found = builder.envelope({"git": "4f1c", "team": "support"}, 0)
    assert found["model"] == {
        "values": [{"value": "gpt-4o → gpt-4o-2026-05-13", "count": 2, "steps": [1, 2]}],
        "missing": [],
    }
    assert [one["value"] for one in found["fingerprint"]["values"]] == ["fp_1", "fp_2"]
    assert found["sampling"] == {
        "values": [{"value": "temperature=0, seed=7", "count": 2, "steps": [1, 2]}],
        "missing": [],
    }
    assert found["code"] == {"labels": {"git": "4f1c"}, "missing": []}
    assert found["times"]["first"] == exchange(1).started_at
    assert found["environment"]["values"][0]["steps"] == [1, 2, 3]


def test_what_is_missing_is_a_sentence_with_its_steps() -> None:
    builder = EnvelopeBuilder()
    builder.add(*model_step(1, params={"temperature": 0.5}))
    lost = replace(
        exchange(2), ended_at=None, response=Response(status=200, body=Body(data=b"x", size=9, truncated=True))
    )
    builder.add(2, replace(lost, request=Request(method="GET", url="https://x.example/")), None)
    found = builder.envelope({}, 2)
    assert found["fingerprint"]["missing"] == ["step 1 lacks a fingerprint of the model's configuration"]
    assert found["sampling"]["missing"] == ["step 1 lacks a seed"]
    assert found["times"]["missing"] == ["step 2 lacks the time of the first byte or of the end"]
    assert found["conversation"]["missing"] == [
        "2 exchanges or parts of them passed unrecorded (gaps)",
        "step 2 lacks bytes of its bodies",
    ]
    assert found["environment"]["missing"] == ["step 2 lacks a header that names its client library"]
    assert found["code"]["missing"]
    assert found["retrieval"]["missing"] == ["no retrieval was recorded as a call of its own"]


def test_an_envelope_stays_small() -> None:
    builder = EnvelopeBuilder()
    for number in range(1, 200):
        builder.add(*model_step(number, system_fingerprint=f"fp_{number}" * 200))
    found = builder.envelope({}, 0)
    assert len(found["fingerprint"]["values"]) == MOST_VALUES
    assert found["fingerprint"]["left_out"] == 199 - MOST_VALUES
    assert len(found["model"]["values"][0]["steps"]) == MOST_STEPS
    assert found["sampling"]["missing"][0].endswith("and 179 more lack sampling parameters")


def test_nothing_is_called_missing_that_stands_elsewhere() -> None:
    nested = {
        "generationConfig": {"topP": 0.9, "seed": 3},
        "reasoning": {"effort": "low"},
        "previous_response_id": "r1",
    }
    number, one, called = model_step(1, params={}, request=nested, model_returned=None)
    builder = EnvelopeBuilder()
    builder.add(number, replace(one, redactions=2), called)
    builder.add(*model_step(2, system_fingerprint="f" * 400))
    builder.add(*model_step(3, system_fingerprint="f" * 401))
    found = builder.envelope({"git": "c" * 1000}, 0)
    assert found["sampling"]["values"][0]["value"] == "top_p=0.9, seed=3, reasoning_effort=low"
    assert found["model"]["values"][0]["value"] == "gpt-4o → (none)"
    assert found["model"]["missing"] == ["step 1 lacks the name of the model that answered"]
    assert found["conversation"]["missing"] == [
        "step 1 lacks the earlier turns, which the provider keeps",
        "step 1 lacks secrets, which were replaced before they were stored",
    ]
    assert len(found["fingerprint"]["values"]) == 2
    assert len(found["code"]["labels"]["git"]) == 300
