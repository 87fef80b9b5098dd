"""Authentication of the REST API, and arbitrary input, which never makes the store server fail."""

import asyncio
import re
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.trust.ca import ensure_ca
from store import datadir
from store.api.app import create_app
from store.api.deps import Deps
from store.api.guard import PUBLIC, is_loopback, is_tokenless
from store.api.parameters import refuse_unknown_parameters
from store.database.connection import Database
from store.query.call_reader import CallReader
from tests.store.running_store import (
    PROFILES,
    RunningStore,
    import_bundle,
    is_problem,
    make_ingester,
    open_store,
    serving_api,
)
from tests.support.examples import many_examples

TOKEN = "a-token-of-the-team"


def routes(database: Database, spools: Path) -> list[tuple[str, str]]:
    """Return every method and path of the API."""
    app = create_app(
        Deps(store_server=make_ingester(spools, database), database=database, profiles=PROFILES, clean=str),
        {"team": TOKEN},
    )
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) == len(app.routes), "a bare route would know no dependencies"
    for route in routes:
        used = [each.call for each in route.dependant.dependencies]
        assert used[:1] == [refuse_unknown_parameters], f"{route.path} does not refuse unknown parameters"
    return [(method, re.sub(r"\{\w+(:path)?\}", "x", route.path)) for route in routes for method in route.methods or ()]


async def test_every_route_asks_for_the_token_of_the_api(tmp_path: Path, database: Database) -> None:
    data = datadir.open_data_dir(tmp_path / "data")
    own, recording, run = data.api_token(), data.recording_token(), data.run_tokens().claim("r")
    async with open_store(tmp_path / "spool", database, tokens=[own], follows=False) as running_store:
        asked = routes(database, tmp_path / "spool")
        assert len(asked) > 20
        asked += [("GET", "/nothing"), ("DELETE", "/v1/runs"), ("OPTIONS", "/v1/runs/r"), ("TRACE", "/v1/runs/r")]
        schemes = (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {own}",
            f"Bearer {recording}",
            f"Bearer {run}",
            f"Bearer x{own}",
        )
        for method, path in asked:
            for scheme in schemes:
                answer = await running_store.api.request(
                    method, path, headers={"authorization": scheme} if scheme else {}
                )
                if path in PUBLIC:
                    is_problem(answer, 404, "no_certificate")
                elif path == "/v1/session" and method == "POST":
                    is_problem(answer, 422, "invalid_request")
                elif path.startswith("/assets/"):
                    is_problem(answer, 404, "not_found")
                elif is_tokenless(method, path):
                    assert answer.status_code == 200
                elif method == "HEAD":
                    assert answer.status_code == 401
                else:
                    problem = is_problem(answer, 401, "token_required")
                    assert "`playhead token` prints it" in problem["detail"]
                    assert answer.headers["www-authenticate"] == "Bearer"


async def test_no_body_is_waited_for_without_the_token(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store:
        reader, writer = await asyncio.open_connection("127.0.0.1", running_store.api.base_url.port)
        writer.write(b"PUT /v1/runs/r HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_the_right_token_opens_them(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, tokens=["another", TOKEN], follows=False) as running_store:
        running_store.api.headers["authorization"] = f"bearer {TOKEN}"
        for path in ("/v1/runs", "/docs", "/openapi.json", "/metrics"):
            assert (await running_store.api.get(path)).status_code == 200


@pytest.mark.parametrize("tokens", [(), (TOKEN,)])
async def test_certificates_are_for_everybody_and_nothing_else_in_their_files_is(
    tmp_path: Path, database: Database, tokens: tuple[str, ...]
) -> None:
    authority = ensure_ca(tmp_path)
    certificate = authority.certificate.read_bytes()
    authority.certificate.write_bytes((tmp_path / "ca.key").read_bytes() + certificate)
    async with serving_api(make_ingester(tmp_path / "spool", database), database, tokens=tokens, keys=tmp_path) as api:
        for path, content in (("/ca.pem", certificate), ("/ca-bundle.pem", authority.bundle.read_bytes())):
            answer = await api.get(path, headers={"host": "host.docker.internal:8081"})
            assert (answer.status_code, answer.content) == (200, content)
            assert answer.headers["content-type"] == "application/pem-certificate-chain"
            assert (await api.get(path, headers={"origin": "https://evil.example"})).status_code == 403
        assert (await api.get("/ca.key", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 404


FOREIGN = ("evil.example", "evil.example:8081", "127.0.0.1.evil.example", "", "10.0.0.1", "[::2]", "[")
OURS = ("localhost:1", "127.0.0.1", "127.8.8.8:80", "[::1]:8081", "playhead.localhost")


async def test_only_a_loopback_name_is_ours(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        for host in FOREIGN:
            is_problem(await running_store.api.get("/v1/runs", headers={"host": host}), 403, "foreign_host")
        for host in OURS:
            assert (await running_store.api.get("/v1/runs", headers={"host": host})).status_code == 200, host


async def test_with_a_token_the_store_server_may_have_any_name(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store:
        headers = {"host": "store:8081", "authorization": f"Bearer {TOKEN}"}
        assert (await running_store.api.get("/v1/runs", headers=headers)).status_code == 200


ELSEWHERE: tuple[dict[str, str], ...] = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)


async def test_a_page_of_another_site_is_refused(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        for headers in ELSEWHERE:
            answer = await running_store.api.post(
                "/v1/import", content=b"", headers={"content-type": "text/plain"} | headers
            )
            is_problem(answer, 403, "foreign_origin")


async def test_our_own_page_is_not(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        origin = str(running_store.api.base_url).rstrip("/")
        headers = {"origin": origin, "sec-fetch-site": "same-origin"}
        assert (await running_store.api.put("/v1/runs/a", headers=headers)).status_code == 200


FILTERS = (
    *("since", "until", "label", "model", "provider", "tool", "host", "status", "incomplete", "q", "kind", "dialect"),
    *("operation", "actor", "key", "min_cost", "min_duration", "error", "parent"),
)

BAD = (
    ("GET", "/nothing", 404),
    ("GET", "/v1/runs/unknown", 404),
    ("GET", "/v1/runs/unknown/calls", 404),
    ("GET", "/v1/runs/unknown/bundle", 404),
    ("GET", "/v1/runs/unknown/gaps", 404),
    ("PATCH", "/v1/runs/unknown", 422),
    ("GET", "/v1/calls/unknown", 404),
    ("GET", "/v1/calls/00000000-0000-0000-0000-000000000000", 404),
    ("GET", "/v1/calls/unknown/explain", 404),
    ("GET", "/v1/calls/unknown/snippet?as=curl", 404),
    ("GET", "/v1/calls/unknown/snippet", 422),
    ("GET", "/v1/calls/unknown/snippet?as=powershell", 422),
    ("GET", "/v1/exchanges/unknown", 404),
    ("GET", "/v1/exchanges/unknown/request", 404),
    ("GET", "/v1/exchanges/%00/response", 404),
    ("GET", "/v1/exchanges/unknown/chunks", 404),
    ("GET", "/v1/replays/unknown", 404),
    ("POST", "/v1/runs", 405),
    ("GET", "/v1/runs/a%20b", 422),
    ("GET", f"/v1/runs/{'a' * 129}", 422),
    ("GET", "/v1/runs?limit=0", 422),
    ("GET", "/v1/runs?limit=many", 422),
    ("GET", "/v1/runs?cursor=x", 422),
    ("GET", "/v1/runs?cursor=%00", 422),
    ("GET", "/v1/runs?cursor=WzFlOTk5LCJhIl0=", 422),
    ("GET", "/v1/runs?cursor=WzEsIlx1MDAwMCJd", 422),
    ("GET", "/v1/runs?cursor=Wzk5OTk5OTk5OTk5OTk5OTk5OTk5OSwiYSJd", 422),
    ("GET", "/v1/calls?cursor=WzEsImEiXQ==", 422),
    ("GET", "/v1/runs?since=yesterday", 422),
    ("GET", "/v1/runs?since=2026-02-30T00:00:00Z", 422),
    ("GET", "/v1/runs?since=2026-01-01T00:00:00", 422),
    ("GET", "/v1/runs?status=0", 422),
    ("GET", "/v1/runs?q=a%00b", 422),
    ("GET", "/v1/runs?label=a%00b", 422),
    ("GET", "/v1/runs?label==b", 422),
    ("GET", "/v1/runs?label=!", 422),
    ("GET", "/v1/runs?incomplete=perhaps", 422),
    *(
        ("GET", f"/v1/{path}?{query}", status)
        for path in ("runs", "calls")
        for query, status in (
            ("modle=gpt-5", 400),
            ("since=2026-01-01T00:00:00Z&since=2026-01-02T00:00:00Z", 400),
            ("min_cost=1&min_cost=2", 400),
            ("limit=501", 422),
            ("limit=999999999999999999999999", 422),
            ("kind=agent", 422),
            ("key=sha256:00", 422),
            ("min_cost=free", 422),
            ("min_cost=-1", 422),
            ("min_cost=NaN", 422),
            ("min_cost=1e-400", 422),
            ("min_cost=1e400", 422),
            ("min_duration=Infinity", 422),
            ("min_duration=-1", 422),
            ("error=often", 422),
            ("status=200&status=0", 422),
            ("label=a=1&label=a=2", 422),
            ("&".join(f"model={number}" for number in range(51)), 422),
            *((f"{name}=", 422) for name in FILTERS),
        )
    ),
    ("POST", "/v1/import", 422),
    ("POST", "/v1/import?as=a/b", 422),
    ("POST", "/v1/replays", 422),
)


async def test_a_bad_request_is_a_problem_that_says_so(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        for method, path, status in BAD:
            problem = is_problem(await running_store.api.request(method, path), status)
            assert len(problem["detail"]) > 20
            assert "[A-Za-z" not in problem["detail"], "an expression is no explanation"


async def test_a_method_that_a_path_does_not_have_is_answered_with_those_that_it_has(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        for path, methods in (
            ("/v1/runs/a", "DELETE, GET, PATCH, PUT"),
            ("/v1/runs", "GET"),
            ("/v1/session", "DELETE, GET, POST"),
        ):
            answer = await running_store.api.request("OPTIONS", path)
            is_problem(answer, 405)
            assert answer.headers["allow"] == methods


BAD_BODIES = (b"", b"{", b"[]", b'{"labels":{"a":1}}', b'{"name":"\\u0000"}', b'{"unknown":1}', b"\xff")

BAD_WORDS: tuple[tuple[str, object, str], ...] = (
    ("/v1/runs/a/forks", {"id": "x/y"}, "body.id: invalid run id"),
    ("/v1/replays", {"run": "x/y"}, "body.run: invalid run id"),
    ("/v1/rekey", {"runs": ["x/y"]}, "body.runs.0: invalid run id"),
    ("/v1/replays", {"run": "a", "allowed_hosts": ["a b"]}, "use a host such as"),
    ("/v1/replays", [], "body: send a JSON object"),
)


async def test_a_bad_body_is_a_problem(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await running_store.api.put("/v1/runs/a")
        for body in BAD_BODIES:
            headers = {"content-type": "application/json"}
            answer = await running_store.api.patch("/v1/runs/a", content=body, headers=headers)
            is_problem(answer, 400 if body == b"\xff" else 422)
        for path, sent, words in BAD_WORDS:
            problem = is_problem(await running_store.api.post(path, json=sent), 422)
            assert words in problem["detail"], problem["detail"]
            assert "[A-Za-z" not in problem["detail"], "an expression is no explanation"
        plain = is_problem(await running_store.api.post("/v1/replays", content=b'{"run":"a"}'), 422)
        assert "with the header content-type: application/json" in plain["detail"]


async def test_no_query_makes_the_store_server_fail(tmp_path: Path, database: Database) -> None:
    words = st.text(max_size=12) | st.sampled_from(
        ["%", "_", "\\", "'; drop table runs", "\ud7ff", "2026-01-01T00:00:00Z"]
    )
    names = st.sampled_from(
        [
            "limit",
            "cursor",
            "since",
            "until",
            "label",
            "model",
            "provider",
            "tool",
            "host",
            "status",
            "incomplete",
            "q",
            "settled",
            *FILTERS,
        ]
    )
    paths = st.sampled_from(
        ["/v1/runs", "/v1/calls", "/v1/runs/{}", "/v1/calls/{}", "/v1/exchanges/{}/chunks", "/v1/replays/{}"]
    )
    loop = asyncio.get_running_loop()
    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)

        @settings(max_examples=many_examples(150), suppress_health_check=list(HealthCheck))
        @given(paths, words, st.dictionaries(names, words, max_size=3))
        def ask(path: str, word: str, query: dict[str, str]) -> None:
            url = path.replace("{}", quote(word, safe="") or "x")
            answer = asyncio.run_coroutine_threadsafe(running_store.api.get(url, params=query), loop).result()
            assert answer.status_code < 500, answer.text

        await asyncio.to_thread(ask)


async def test_a_store_server_without_its_database_says_so(tmp_path: Path, database: Database) -> None:
    store_server = make_ingester(tmp_path, Database("postgresql://nobody@127.0.0.1:1/none"))
    away = Database("postgresql://nobody@127.0.0.1:1/none")
    async with serving_api(store_server, away) as api:
        problem = is_problem(await api.get("/v1/runs"), 503, "database_unavailable")
        assert "spools" in problem["detail"]
        assert (await api.get("/healthz")).status_code == 200
        ready = await api.get("/readyz")
        assert (ready.status_code, list(ready.json()["troubles"])) == (503, ["database"])
    await away.close()


async def test_our_own_failure_is_a_problem_that_tells_no_secrets(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise ZeroDivisionError("sk-secret")

    monkeypatch.setattr(CallReader, "call", fails)
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        problem = is_problem(await running_store.api.get("/v1/calls/x"), 500, "store_server_failed")
        assert "secret" not in str(problem)


async def test_every_answer_is_kept_out_of_caches_and_frames(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        for path in ("/healthz", "/docs", "/v1/runs", "/nothing"):
            headers = (await running_store.api.get(path)).headers
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]


async def test_the_page_loads_nothing_from_anywhere(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        page = (await running_store.api.get("/docs")).text
        assert not re.search(r"<script|<link|<img|https?://", page)
        paths = (await running_store.api.get("/openapi.json")).json()["paths"]
        assert {"/v1/runs/{run}/bundle", "/v1/exchanges/{exchange}/response", "/v1/replays/{replay}"} <= set(paths)
        assert all(path.replace("{", "").split("/")[1] in page for path in paths)


@pytest.mark.parametrize(
    ("host", "ours"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_what_loopback_is(host: str, ours: bool) -> None:
    assert is_loopback(host) == ours


async def test_replays_are_made_only_where_workers_replay(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        run = (await import_bundle(running_store))["id"]
        problem = is_problem(await running_store.api.post("/v1/replays", json={"run": run}), 409, "not_replaying")
        assert f"playhead replay {run} -- COMMAND" in problem["detail"]
        problem = is_problem(
            await running_store.api.put(f"/v1/runs/{run}", json={"mode": "auto"}), 409, "not_switchable"
        )
        assert "playhead up --mode auto" in problem["detail"]
        # The run has no mode of its own.
        assert (await running_store.api.put(f"/v1/runs/{run}", json={"mode": None})).status_code == 200


async def made_replay(running_store: RunningStore, **wanted: str) -> httpx2.Response:
    return await running_store.api.post("/v1/replays", json=wanted)


async def test_a_replay_has_an_id_of_its_own_and_a_report(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, mode="auto", follows=False) as running_store:
        run = (await import_bundle(running_store))["id"]
        one, two = await made_replay(running_store, run=run), await made_replay(running_store, run=run)
        assert (one.status_code, two.status_code) == (201, 201)
        assert one.json()["id"] != two.json()["id"]
        report = (await running_store.api.get(one.headers["location"])).json()
        assert (report["run"], report["verdict"], report["served"]) == (run, "unknown", 0)
        assert (await made_replay(running_store, run=run, id="mine")).json()["id"] == "mine"
        is_problem(await made_replay(running_store, run=run, id="mine"), 409, "replay_exists")
        is_problem(await made_replay(running_store, run="unknown"), 404, "unknown_run")
