"""What programs report: questions to people, which are answered once, and effects."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from calls.effects.items import encode_items
from calls.effects.questions import ANSWERED, ASKED, PERSON, PersonAnswer, PersonQuestion, questions_for_program
from calls.events import EffectBatch
from store.access.api_tokens import ApiTokens, Scope
from store.bundle.stored_effects import EffectQueries
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.query.runs import Runs
from store.questions import AlreadyAnswered, Questions, question_id
from tests.store.otlp.recorded import decode_spans
from tests.store.running_store import PROFILES, is_problem, open_store

METADATA: Scope = "runs:read"
REFUND = {"prompt": "Refund 120 EUR?", "asked_from": "agent.py:12"}


def clean(text: str) -> str:
    return text.replace("sk-secret", "[redacted]")


async def test_a_question_waits_until_it_is_answered_once(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, clean=clean) as running_store:
        api = running_store.api

        async def ask(run: str = "r", **more: Any) -> dict[str, Any]:
            response = await api.post(f"/v1/runs/{run}/questions", json=REFUND | more)
            assert response.status_code == 201, response.text
            asked: dict[str, Any] = response.json()
            return asked

        is_problem(await api.post("/v1/runs/r/answers", json={"value": "yes"}), 404, "unknown_run")
        asked = await ask()
        assert asked == await ask(), "asked again, it is the same"
        assert (asked["run"], asked["prompt"], asked["answer"]) == ("r", REFUND["prompt"], None)
        second = await ask(number=1, prompt="With key sk-secret?")
        assert second["prompt"] == "With key [redacted]?"
        waiting = (await api.get("/v1/waiting")).json()["items"]
        assert waiting == [asked, second]
        assert (await api.get("/v1/waiting?run=other")).json()["items"] == []
        assert (await api.get("/v1/waiting?project=other")).json()["items"] == []

        is_problem(await api.post("/v1/runs/r/answers", json={"value": "yes"}), 409, "several_questions")
        wrong = {"value": "yes", "question": "0" * 16}
        is_problem(await api.post("/v1/runs/r/answers", json=wrong), 404, "unknown_question")
        given = {"value": "yes, with sk-secret", "question": asked["question"], "by": "ann"}
        answered = (await api.post("/v1/runs/r/answers", json=given)).json()
        assert (answered["answer"]["value"], answered["answer"]["by"]) == ("yes, with [redacted]", "ann")
        is_problem(await api.post("/v1/runs/r/answers", json=given | {"value": "no"}), 409, "already_answered")
        assert (await ask())["answer"] == answered["answer"]
        assert (await api.post("/v1/runs/r/answers", json={"value": "no"})).json()["question"] == second["question"]
        is_problem(await api.post("/v1/runs/r/answers", json={"value": "no"}), 409, "already_answered")
        assert (await api.get("/v1/waiting")).json()["items"] == []

        # A run that continues it gets the answer, which keeps who gave it and when; another question waits.
        await api.put("/v1/runs/next", json={"parent": "r"})
        await api.put("/v1/runs/last", json={"parent": "next"})
        assert (await ask("last"))["answer"] == answered["answer"]
        assert (await ask("last", prompt="Refund 7 EUR?"))["answer"] is None
        assert [one["run"] for one in (await api.get("/v1/waiting")).json()["items"]] == ["last"]

        # It is part of the record: what a replay gets, and what is proven and erased.
        batches = [one async for one in EffectQueries(database, "default").batches("last")]
        assert [(one["prompt"], one.get("value")) for one in questions_for_program(batches)] == [
            (REFUND["prompt"], "yes, with [redacted]"),
            ("Refund 7 EUR?", None),
        ]
        assert '"process":"person"' in (await api.get("/v1/runs/last/bundle")).text
        await Runs(database).delete("last")
        assert (await api.get("/v1/waiting")).json()["items"] == []


async def test_what_a_bundle_of_a_stranger_says_of_people_harms_nothing(tmp_path: Path, database: Database) -> None:
    asked: dict[str, Any] = {"question": "q", "prompt": "Sure?", "branch": "", "number": 0}
    strange: list[dict[str, Any]] = [
        {"kind": ASKED},
        {"kind": ASKED, "args": {"prompt": "without an id"}},
        {"kind": ANSWERED, "args": {"question": 7}, "results": ["x"]},
        {"kind": ANSWERED, "args": {"question": "q", "at": "-1"}, "results": ["x"]},
        {"kind": ANSWERED, "args": {"question": "q", "at": "1"}},
        {"kind": "person.left", "args": {"question": "q"}},
        {"kind": ASKED, "args": asked},
    ]
    batches = [
        EffectBatch("r", str(uuid.uuid4()), number, PERSON, number, 1, encode_items([item]))
        for number, item in enumerate(strange)
    ]
    await BatchWriter(database, profile=PROFILES.digest).write_batch((), effects=batches)
    async with open_store(tmp_path / "spool", database) as running_store:
        assert (await running_store.api.get("/v1/runs/r")).json()["waiting"] == 1
        assert [one["prompt"] for one in (await running_store.api.get("/v1/waiting")).json()["items"]] == ["Sure?"]


async def test_of_two_answers_at_once_one_is_valid(database: Database) -> None:
    writer, questions = BatchWriter(database, profile=PROFILES.digest), Questions(database, "default")
    question = PersonQuestion(id=question_id("Sure?", "", 0), run="r", prompt="Sure?", asked_from="", asked_at=1)
    await questions.ask(question, writer)

    class Late(Questions):
        """Reads before the other one has written."""

        async def list_run(self, run: str) -> list[PersonQuestion]:
            found = await super().list_run(run)
            if found[0].answer is None:
                await questions.answer(run, question.id, PersonAnswer(value="no", by="ben", at=3), writer)
            return found

    with pytest.raises(AlreadyAnswered) as error:
        await Late(database, "default").answer("r", question.id, PersonAnswer(value="yes", by="ann", at=2), writer)
    assert error.value.question.answer == PersonAnswer(value="no", by="ben", at=3)


async def test_a_program_reports_effects_without_its_secrets(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, clean=clean) as running_store:

        async def report(process: str = "langgraph", **more: Any) -> Response:
            item = {"kind": "langgraph.node", "args": {"name": "route"}, "results": ["with sk-secret"]} | more
            return await running_store.api.post(
                "/v1/runs/r/effects", json={"process": process, "number": 0, "items": [item]}
            )

        assert (await report()).json() == {"count": 1}
        (effect,) = (await running_store.api.get("/v1/runs/r/effects")).json()["items"]
        assert (effect["kind"], effect["results"]) == ("langgraph.node", ["with [redacted]"])
        for process, more in (("person", {}), ("command", {}), ("langgraph", {"results": [0.5]})):
            is_problem(await report(process, **more), 422, "invalid_effects")
        # "0" is the first process with the effects hook, whose effects a replay serves.
        is_problem(await report("0"), 422, "invalid_request")


async def test_effects_without_their_content_for_who_may_not_read_it(tmp_path: Path, database: Database) -> None:
    """In pages, in sums, and as events of the exported span of the run."""
    tokens = ApiTokens(tmp_path / "tokens.json")
    async with open_store(tmp_path / "spool", database, tokens=["full"], api_tokens=tokens) as running_store:
        full = {"authorization": "Bearer full"}
        metadata = {"authorization": f"Bearer {tokens.create('m', 'default', [METADATA], 1, None)[0]}"}
        item = {"kind": "langgraph.node", "at": "graph.py:3", "args": {"name": "to-ann"}, "results": ["for-ann"]}
        body = {"process": "langgraph", "number": 0, "items": [item]}
        assert (await running_store.api.post("/v1/runs/r/effects", json=body, headers=full)).status_code == 201

        async def read(path: str, headers: dict[str, str]) -> Any:
            return (await running_store.api.get(f"/v1/runs/r{path}", headers=headers)).json()["items"][0]

        nothing = dict.fromkeys(("args", "results", "error", "text"))
        shown = await read("/effects", full)
        assert (shown["args"], shown["results"], shown["text"]) == ({"name": "to-ann"}, ["for-ann"], "for-ann")
        assert await read("/effects", metadata) == shown | nothing
        summed = await read("/effects/sums", full)
        (kind,) = summed["kinds"]
        assert (kind["names"], kind["text"], kind["count"]) == (["to-ann"], "for-ann", 1)
        assert await read("/effects/sums", metadata) == summed | {"kinds": [kind | {"names": None, "text": None}]}

        for content, parts in ((True, ("to-ann", "for-ann")), (False, ())):
            answer = await running_store.api.get(f"/v1/runs/r/spans?content={str(content).lower()}", headers=full)
            (span,) = decode_spans([answer.content])
            (event,) = span.events
            assert event.name == "playhead.effect"
            assert "graph.py:3" in str(event)
            assert "langgraph.node" in str(event)
            assert [part for part in ("to-ann", "for-ann") if part in str(event)] == list(parts)


ODD: list[Any] = [
    *("", 7, True, None, [1, "a"], {"a": {"b": [1, None]}}),
    *({"$bytes": text} for text in ("a", "!!", 3)),
    *({"$float": text} for text in ("x", "nan")),
    *({"$int": text} for text in ("y", "12")),
]


async def test_what_a_program_says_of_effects_is_refused_or_shown(tmp_path: Path, database: Database) -> None:
    """Nobody who reads a run meets an effect that breaks what shows it."""
    async with open_store(tmp_path / "spool", database) as running_store:
        kinds = ("open", "os.environ", "time.time", "stdout", "process.start", "process.exit", "x")
        batches: list[list[dict[str, Any]]] = [
            *([{"kind": kind, "results": [odd], "args": {"name": odd}} for kind in kinds] for odd in ODD),
            [{"kind": "content", "results": ["x"]}],
            [{"kind": "content", "content": 3}, {"kind": "time.time", "first": "5", "ns": [1], "error": {}}],
            [{"kind": "x", "error": {"type": 3, "args": {"$bytes": "!"}}}],
        ]
        refused = 0
        for run in ("a", "b"):
            for number, items in enumerate(batches):
                body = {"process": "langgraph", "number": number, "items": items}
                response = await running_store.api.post(f"/v1/runs/{run}/effects", json=body)
                assert response.status_code in (201, 422), response.text
                refused += response.status_code == 422
        assert refused == 2 * 7, "three of $bytes, one each of $float and $int, a content without a number, an error"
        for path in ("", "/effects?limit=500", "/effects/sums", "/spans?content=true", "/bundle", "/diff/b"):
            assert (await running_store.api.get(f"/v1/runs/a{path}")).status_code == 200, path
