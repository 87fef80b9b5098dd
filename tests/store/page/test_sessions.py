"""Log in, log out, and what a request by cookie must prove; the headers of the page."""

import time
from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio

from store.access.sessions import CODE_LIFETIME, LIFETIME, MOST_SESSIONS, Sessions, TokenReference
from store.page.policy import CONTENT_SECURITY_POLICY
from tests.store.page.browser import FULL_TOKEN, PageServer
from tests.store.running_store import is_problem

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEARER = {"authorization": f"Bearer {FULL_TOKEN}"}


@pytest_asyncio.fixture(loop_scope="session")
async def client(page_server: PageServer) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser without a session."""
    async with httpx2.AsyncClient(timeout=60, base_url=page_server.url, trust_env=False, verify=False) as client:
        yield client


def ours(server: PageServer) -> dict[str, str]:
    """What a request of our page has."""
    return {"origin": server.url, "sec-fetch-site": "same-origin", "playhead-page": "1"}


async def log_in(client: httpx2.AsyncClient, token: str) -> httpx2.Response:
    return await client.post("/v1/session", json={"token": token})


async def test_a_session_is_a_strict_cookie_that_is_not_the_token(
    client: httpx2.AsyncClient, page_server: PageServer
) -> None:
    answer = await log_in(client, FULL_TOKEN)
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    port = page_server.url.rpartition(":")[2]
    assert cookie.startswith(f"playhead-{port}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={LIFETIME}"} <= set(cookie.split("; "))
    assert "Secure" not in cookie, "it would be lost over plain HTTP"
    assert FULL_TOKEN not in cookie
    assert (await client.get("/v1/runs")).status_code == 200
    shown = (await client.get("/v1/session")).json()
    assert (shown["token"], shown["has_cookie"], shown["needs_token"]) == ("token 1", True, True)


async def test_logging_out_ends_the_session_at_once(client: httpx2.AsyncClient, page_server: PageServer) -> None:
    await log_in(client, FULL_TOKEN)
    session = client.headers.get("cookie") or "; ".join(f"{one.name}={one.value}" for one in client.cookies.jar)
    assert (await client.delete("/v1/session", headers=ours(page_server))).status_code == 204
    client.cookies.clear()
    is_problem(await client.get("/v1/runs", headers={"cookie": session}), 401, "token_required")


async def test_a_wrong_token_opens_nothing(client: httpx2.AsyncClient) -> None:
    for token in ("wrong", "ph_made-up", f"{FULL_TOKEN}x"):
        is_problem(await log_in(client, token), 401, "token_required")
    for body in ({}, {"token": FULL_TOKEN, "code": "x"}, {"token": ""}):
        assert (await client.post("/v1/session", json=body)).status_code == 422
    assert (await log_in(client, f" {FULL_TOKEN}\n")).status_code == 204, "as it is pasted"


async def test_a_session_allows_what_its_token_allows_and_ends_with_it(
    client: httpx2.AsyncClient, page_server: PageServer
) -> None:
    await log_in(client, page_server.create_token("runs:read", project="default"))
    assert (await client.get("/v1/runs")).status_code == 200
    is_problem(await client.get("/v1/search?q=a"), 403, "scope_missing")
    is_problem(await client.delete("/v1/runs/x", headers=ours(page_server)), 403, "scope_missing")
    is_problem(await client.get("/v1/runs?project=north"), 404, "unknown_project")
    page_server.tokens.revoke(page_server.tokens.list_tokens()[-1].id, time.time_ns())
    is_problem(await client.get("/v1/runs"), 401, "token_revoked")


async def test_a_change_by_cookie_must_come_from_our_page(client: httpx2.AsyncClient, page_server: PageServer) -> None:
    await log_in(client, FULL_TOKEN)
    own = ours(page_server)
    cases: list[dict[str, str]] = [
        {},
        {"origin": page_server.url},
        {"playhead-page": "1"},
        {"sec-fetch-site": "same-origin"},
        {**own, "origin": "https://evil.example"},
        {**own, "origin": "null"},
        {**own, "sec-fetch-site": "same-site"},
        {"authorization": "Basic eDp5", "origin": page_server.url},
    ]
    for headers in cases:
        for method, path in (("PUT", "/v1/runs/csrf"), ("DELETE", "/v1/runs/csrf"), ("POST", "/v1/erasures")):
            is_problem(await client.request(method, path, headers=headers), 403, "foreign_origin")
    assert (await client.get("/v1/runs/csrf")).status_code == 404
    for headers in (own, {"origin": page_server.url, "playhead-page": "1"}, BEARER):
        answer = await client.put("/v1/runs/csrf?project=csrf", json={}, headers=headers)
        assert answer.status_code == 200, "a token in a header proves it alone"


async def test_a_login_code_opens_one_session(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/session/codes", headers=BEARER)
    code = answer.json()["code"]
    assert (answer.status_code, answer.json()["expires_in"]) == (201, CODE_LIFETIME)
    assert (await client.post("/v1/session", json={"code": code})).status_code == 204
    assert (await client.get("/v1/runs")).status_code == 200
    client.cookies.clear()
    is_problem(await client.post("/v1/session", json={"code": code}), 401, "code_invalid")
    is_problem(await client.post("/v1/session/codes"), 401, "token_required")


async def test_the_page_is_for_everybody_and_says_nothing(client: httpx2.AsyncClient) -> None:
    for path in ("/", "/runs/x", "/runs/x/calls/y", "/diff/a/b", "/costs", "/drift", "/misses/m", "/login?next=/"):
        answer = await client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in answer.headers
    for path in ("/runs", "/nothing", "/runs/a/b/c", "/assets"):
        is_problem(await client.get(path), 401, "token_required")
    for directive in ("script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"):
        assert directive in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


async def test_a_link_on_another_site_may_open_the_page_and_nothing_else(
    client: httpx2.AsyncClient,
) -> None:
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await client.get("/runs/x", headers=visit)).status_code == 200
    for path, headers in (
        ("/v1/runs", {**visit, **BEARER}),
        ("/", {**visit, "sec-fetch-dest": "iframe"}),
        ("/", {**visit, "sec-fetch-mode": "cors"}),
        ("/", {**visit, "origin": "https://evil.example"}),
    ):
        is_problem(await client.get(path, headers=headers), 403, "foreign_origin")


async def test_each_address_has_a_json_twin(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/runs/refund-4711", headers={"accept": "application/json", **BEARER})
    assert (answer.status_code, answer.headers["location"]) == (303, "/v1/runs/refund-4711")
    followed = await client.get(
        "/?model=gpt-5&theme=x", headers={"accept": "application/json", **BEARER}, follow_redirects=True
    )
    assert {run["id"] for run in followed.json()["items"]} == {"research-nordic", "weekly-report"}
    for accept in ("*/*", "text/html,application/json", ""):
        assert (await client.get("/", headers={"accept": accept})).headers["content-type"].startswith("text/html")


async def test_files_are_kept_by_the_browser_until_they_change(client: httpx2.AsyncClient) -> None:
    index = (await client.get("/")).text
    path = index.split('src="')[1].split('"')[0]
    answer = await client.get(path)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    old = await client.get("/assets/0123/core/html.js")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache")
    for path in ("/assets/0/index.html", "/assets/0/nothing.js", "/assets/0/%2e%2e/assets.py", "/assets/0/"):
        assert (await client.get(path)).status_code == 404


async def test_a_stored_body_is_never_shown_by_a_browser(client: httpx2.AsyncClient) -> None:
    await log_in(client, FULL_TOKEN)
    call = (await client.get("/v1/runs/refund-4711/calls")).json()["items"][0]
    for part in ("request", "response"):
        answer = await client.get(f"/v1/exchanges/{call['exchanges'][0]}/{part}")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]


async def test_sessions_are_bounded_in_time_and_number() -> None:
    sessions, token = Sessions(), TokenReference(full_name="team")
    first = sessions.open(token, 0)
    assert sessions.find(first, LIFETIME * 10**9 - 1) is not None
    assert sessions.find(first, LIFETIME * 10**9) is None
    names = [sessions.open(token, 1) for _ in range(MOST_SESSIONS)]
    assert sessions.find(first, 1) is None, "the oldest is gone"
    assert all(sessions.find(name, 1) for name in names)
    code = sessions.create_code(token, 0)
    assert sessions.redeem_code(code, CODE_LIFETIME * 10**9) is None
    assert sessions.redeem_code(code, 0) is None
