"""What a token allows: its project, its scopes, its end; and what the audit log notes."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from msgspec.structs import replace

from calls.derive import derive_call
from calls.events import ReplayReported
from calls.redaction.call import Clean
from store.access import audit_log
from store.access.api_tokens import SCOPES, ApiTokens, Scope
from store.api.app import ROUTERS
from store.api.gate import RULES
from store.api.guard import is_tokenless
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from tests.store.running_store import PROFILES, RunningStore, is_problem, open_store
from tests.store.samples import exchange

HOUR = 3600 * 10**9
TEAM = "the-token-of-the-team"


class Keys:
    """Tokens of a data directory, and their headers."""

    def __init__(self, directory: Path) -> None:
        self.tokens = ApiTokens(directory / "tokens.json")

    def create(self, *scopes: Scope, project: str = "default", expires_at: int | None = None) -> dict[str, str]:
        name = f"{project}-{'-'.join(scopes)}-{expires_at}".replace(":", "-")
        token, _ = self.tokens.create(name, project, scopes, time.time_ns(), expires_at)
        return {"authorization": f"Bearer {token}"}


def test_each_route_has_a_rule_and_each_rule_a_route() -> None:
    routes = {
        f"{method} {prefix}{route.path}"
        for prefix, router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert {name for name in routes if not is_tokenless(*name.split(" "))} == set(RULES), "say it in store/api/gate.py"


WORDS = ("promptword", "answerword", "argumentword", "headerword", "queryword", "resultword")
"""Content of the one call of project `north`. The word of a header, of an argument …"""


def night_call() -> DerivedExchange:
    request = {
        "model": "gpt-5",
        "messages": [
            {"role": "user", "content": "promptword"},
            {"role": "tool", "tool_call_id": "call_0", "content": "resultword"},
        ],
        "stop": ["promptword"],
    }
    call = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"why": "argumentword"}'}}
    answer = {"role": "assistant", "content": "answerword", "tool_calls": [call]}
    response = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-5",
        "choices": [{"index": 0, "message": answer, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
    one = exchange(
        1,
        run="night",
        url="https://api.openai.com/v1/chat/completions?trace=queryword",
        request=json.dumps(request).encode(),
        response=json.dumps(response).encode(),
    )
    headers = (*one.request.headers, ("x-notes", "headerword"))
    one = replace(one, request=replace(one.request, headers=headers))
    return DerivedExchange(one, derive_call(one, PROFILES))


@asynccontextmanager
async def night_recorded(
    tmp_path: Path, database: Database, clean: Clean = str
) -> AsyncIterator[tuple[RunningStore, Keys, str]]:
    """Serve the API with one call in project `north`; yield the id of the call, too."""
    keys, derived = Keys(tmp_path), night_call()
    async with open_store(
        tmp_path / "spool", database, tokens=[TEAM], api_tokens=keys.tokens, clean=clean
    ) as running_store:
        await BatchWriter(database, project="north", profile=PROFILES.digest, signal=running_store.signal).write_batch(
            [derived], replays=[ReplayReported("again", b'{"id": "again", "run": "night", "note": "answerword"}')]
        )
        await running_store.followers.wait_until_caught_up()
        yield running_store, keys, derived.exchange.id


def fill_route(route: str, names: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: names[found[1]], route)


def get_routes(call: str) -> Iterator[tuple[str, str]]:
    """Yield each route that reads what was recorded, with the ids of the recorded run and call.

    Not `/v1/preload`, which asks for a secret beside the token (tests/proxy/worker/test_preloaded_recordings.py).
    """
    others = ("/v1/events", "/v1/audit", "/v1/retention", "/v1/preload")
    names = {"run": "night", "a": "night", "b": "night", "call": call, "exchange": call, "replay": "again"}
    queries = {"GET /v1/stats": ["group_by=run"], "GET /v1/marks": ["run=night"], "GET /v1/search": ["q=promptword"]}
    queries["GET /v1/runs/{run}/spans"] = ["", "content=true"]
    queries["GET /v1/verifications"] = ["run=night"]
    queries["GET /v1/calls/{call}/snippet"] = ["as=curl", "as=jsonl"]
    queries["GET /v1/calls"] = ["", "fields=*", "fields=text,tool_calls", "q=promptword"]
    queries["GET /v1/runs/{run}/calls"] = ["", "fields=*", "fields=params"]
    for name in RULES:
        method, _, path = name.partition(" ")
        if method == "GET" and path.startswith("/v1/") and path not in others:
            for query in queries.get(name, [""]):
                yield name, f"{fill_route(path, names)}{'?' if query else ''}{query}"


async def test_a_token_without_bodies_sees_no_content_anywhere(tmp_path: Path, database: Database) -> None:
    async with night_recorded(tmp_path, database) as (running_store, keys, call):
        metadata = keys.create("runs:read", project="north")
        bodies = keys.create("runs:read", "bodies:read", "replay", project="north")
        shown = 0
        for name, path in get_routes(call):
            for accept in ("application/json", "application/x-ndjson"):
                answer = await running_store.api.get(path, headers=metadata | {"accept": accept})
                assert answer.status_code in (200, 403), (path, answer.text)
                leaked = [word for word in WORDS if word.encode() in answer.content]
                assert answer.status_code == 403 or not leaked, (path, leaked)
                # The words in rows are packed, so they would not be found.
                assert answer.status_code == 403 or not path.endswith("/rows"), path
                if answer.status_code == 403:
                    assert RULES[name].scopes != ("runs:read",) or "?" in path
                    is_problem(answer, 403, "scope_missing")
            answer = await running_store.api.get(path, headers=bodies)
            assert answer.status_code == 200, (path, answer.text)
            shown += any(word.encode() in answer.content for word in WORDS)
        assert shown > 10, "the test would prove nothing"
        one = (await running_store.api.get(f"/v1/calls/{call}", headers=metadata)).json()
        assert [tool["name"] for tool in one["tool_calls"]] == ["refund"]
        assert one["usage"]["input_tokens"] == 9
        assert one["path"] == "/v1/chat/completions"


async def test_another_project_looks_as_if_it_did_not_exist(tmp_path: Path, database: Database) -> None:
    async with night_recorded(tmp_path, database) as (running_store, keys, call):
        south, north = keys.create(*SCOPES, project="south"), keys.create(*SCOPES, project="north")
        absent = call[:-1] + ("0" if call[-1] != "0" else "1")

        async def body(path: str, headers: dict[str, str]) -> tuple[int, str]:
            answer = await running_store.api.get(path, headers=headers)
            text = re.sub(rf"{call}|{absent}|night|again|morning", "ID", answer.text)
            return answer.status_code, re.sub(r'"next":"[^"]*"', "", text)

        for _, path in get_routes(call):
            other = path.replace(call, absent).replace("night", "morning").replace("again", "morning")
            assert await body(path, south) == await body(other, south), path
            if "ID" in (await body(path, north))[1] and path.count("/") > 2:
                assert (await body(path, south))[0] == 404, path
        for project in ("north", "nowhere"):
            refused = is_problem(await running_store.api.get(f"/v1/runs?project={project}", headers=south), 404)
            assert refused["detail"] == f"there is no project {project}, or the token may not see it"
        for method in ("PATCH", "DELETE", "PUT"):
            answer = await running_store.api.request(
                method, "/v1/runs/night", headers=south, json={} if method != "DELETE" else None
            )
            assert answer.status_code == (200 if method == "PUT" else 404)
        assert (await running_store.api.get("/v1/runs/night", headers=north)).json()["calls"] == 1
        assert (await running_store.api.get("/v1/runs/night", headers=south)).json()["calls"] == 0


async def test_a_token_of_all_projects_names_one(tmp_path: Path, database: Database) -> None:
    async with night_recorded(tmp_path, database) as (running_store, keys, _):
        for headers in ({"authorization": f"Bearer {TEAM}"}, keys.create("runs:read", project="*")):
            answers = [
                await running_store.api.get("/v1/runs", params=query, headers=headers)
                for query in ({}, {"project": "north"}, {"project": "nowhere"})
            ]
            counts = [len(answer.json()["items"]) if answer.status_code == 200 else answer.text for answer in answers]
            assert counts == [0, 1, 0]
            assert (await running_store.api.get("/metrics", headers=headers)).status_code == 200
            is_problem(await running_store.api.get("/v1/runs?project=UPPER", headers=headers), 422, "invalid_request")
            is_problem(
                await running_store.api.get("/v1/runs?project=a&project=b", headers=headers), 400, "repeated_parameter"
            )
        is_problem(await running_store.api.get("/metrics", headers=keys.create("runs:read", project="north")), 403)


async def test_each_scope_is_needed_for_its_routes(tmp_path: Path, database: Database) -> None:
    async with open_store(
        tmp_path / "spool", database, tokens=[TEAM], api_tokens=(keys := Keys(tmp_path)).tokens
    ) as running_store:
        headers = {scope: keys.create(scope) for scope in SCOPES}
        names = dict.fromkeys(("run", "a", "b", "replay", "canary"), "r") | dict.fromkeys(("call", "exchange"), "0" * 8)
        for name, rule in RULES.items():
            method, path = fill_route(name, names).split(" ")
            for scope in SCOPES:
                is_for_all_projects = rule.needs_all_projects and scope in (*rule.scopes, "admin")
                if path == "/v1/events" or is_for_all_projects:
                    continue
                answer = await running_store.api.request(method, path, headers=headers[scope])
                is_allowed = not rule.scopes or scope in rule.scopes or scope == "admin"
                assert (answer.status_code == 403) is not is_allowed, (name, scope, answer.text)
        is_problem(await running_store.api.get("/v1/nothing", headers=headers["runs:read"]), 404, "not_found")


async def test_expired_and_revoked_tokens_are_refused_at_once(tmp_path: Path, database: Database) -> None:
    async with open_store(
        tmp_path / "spool", database, tokens=[TEAM], api_tokens=(keys := Keys(tmp_path)).tokens
    ) as running_store:
        past, future = (keys.create("runs:read", expires_at=time.time_ns() + ahead) for ahead in (-HOUR, HOUR))
        assert (
            "expired"
            in is_problem(await running_store.api.get("/v1/runs", headers=past), 401, "token_expired")["detail"]
        )
        assert (await running_store.api.get("/v1/runs", headers=future)).status_code == 200
        keys.tokens.revoke(keys.tokens.list_tokens()[1].id, time.time_ns())
        is_problem(await running_store.api.get("/v1/runs", headers=future), 401, "token_revoked")
        is_problem(
            await running_store.api.get("/v1/runs", headers={"authorization": "Bearer ph_made-up"}),
            401,
            "token_required",
        )
        (tmp_path / "tokens.json").write_text("{")
        is_problem(await running_store.api.get("/v1/runs", headers=future), 503, "tokens_unreadable")
        assert (await running_store.api.get("/v1/runs", headers={"authorization": f"Bearer {TEAM}"})).status_code == 200


async def test_the_audit_log_says_who_read_what(tmp_path: Path, database: Database) -> None:
    def clean(text: str) -> str:
        return text.replace("secret", "PLAYHEAD")

    async with night_recorded(tmp_path, database, clean) as (running_store, keys, call):
        metadata, bodies = keys.create("runs:read", project="north"), keys.create("bodies:read", project="north")
        admin = keys.create("admin", project="north")
        for headers in (metadata, bodies):
            await running_store.api.get(f"/v1/exchanges/{call}/response", headers=headers)
            await running_store.api.get(f"/v1/calls/{call}", headers=headers)
        await running_store.api.get("/v1/runs/night/bundle", headers=bodies)
        await running_store.api.get("/v1/runs/night/diff/secret", headers=bodies)
        await running_store.api.delete("/v1/runs/night", headers=admin)
        await running_store.api.get("/v1/runs", headers={"authorization": f"Bearer {TEAM}"})
        entries = (await running_store.api.get("/v1/audit", headers=admin)).json()["items"]
        noted = [(one["token"], one["action"], one["subject"], one["status"]) for one in reversed(entries)]
        assert noted == [
            ("north-runs-read-None", "read", call, 403),
            ("north-bodies-read-None", "read", call, 200),
            ("north-bodies-read-None", "read", call, 403),
            ("north-bodies-read-None", "export", "night", 200),
            ("north-bodies-read-None", "read", "night", 404),
            ("north-bodies-read-None", "read", "PLAYHEAD", 404),
            ("north-admin-None", "delete", "night", 200),
        ]
        assert entries[0]["path"] == "/v1/runs/night"
        assert entries[1]["path"] == "/v1/runs/night/diff/PLAYHEAD"
        found: dict[str, Any] = {}
        for query, count in (("action=export", 1), (f"subject={call}", 3), ("token=nobody", 0), ("limit=2", 2)):
            found = (await running_store.api.get(f"/v1/audit?{query}", headers=admin)).json()
            assert len(found["items"]) == count
        rest = (
            await running_store.api.get("/v1/audit", params={"limit": 500, "cursor": found["next"]}, headers=admin)
        ).json()
        assert found["items"] + rest["items"] == entries
        is_problem(
            await running_store.api.get("/v1/runs", params={"cursor": found["next"]}, headers=admin), 422, "bad_cursor"
        )
        is_problem(
            await running_store.api.get("/v1/audit", params={"cursor": found["next"], "action": "read"}, headers=admin),
            422,
            "bad_cursor",
        )
        south = (await running_store.api.get("/v1/audit", headers=keys.create("admin", project="south"))).json()
        assert south["items"] == []


async def test_what_cannot_be_noted_is_refused_and_does_not_wait(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with night_recorded(tmp_path, database) as (running_store, keys, call):
        metadata, admin = keys.create("runs:read", project="north"), keys.create("admin", project="north")
        with monkeypatch.context() as patched:
            patched.setattr(audit_log, "MAX_WAITING", 0)
            for headers in (metadata, admin):
                is_problem(
                    await running_store.api.get(f"/v1/exchanges/{call}", headers=headers), 503, "database_unavailable"
                )
            assert (await running_store.api.get("/v1/runs", headers=metadata)).status_code == 200
        assert (await running_store.api.get("/v1/audit", headers=admin)).json()["items"] == []


async def test_a_stream_of_events_ends_with_its_token(tmp_path: Path, database: Database) -> None:
    async with night_recorded(tmp_path, database) as (running_store, keys, _):
        headers = keys.create("runs:read", project="north")
        async with (
            asyncio.timeout(60),
            running_store.api.stream("GET", "/v1/events", headers=headers) as response,
        ):
            lines = response.aiter_lines()
            assert await anext(lines) == ": connected"
            keys.tokens.revoke(keys.tokens.list_tokens()[0].id, time.time_ns())
            running_store.signal.send()
            assert [line async for line in lines if line and not line.startswith("retry")] == []
        is_problem(await running_store.api.get("/v1/events", headers=headers), 401, "token_revoked")
