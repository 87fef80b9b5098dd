"""Who has no session is led to the login, and from there to nowhere but the page."""

import re

import pytest

from tests.store.page.browser import FULL_TOKEN, Visitor, go

pytestmark = pytest.mark.asyncio(loop_scope="session")

ELSEWHERE = [
    "//127.0.0.2:9/x",
    "/%09/127.0.0.2:9/x",
    "/%0A/127.0.0.2:9",
    "/\\127.0.0.2:9",
    "http://127.0.0.2:9/",
    "javascript:alert(1)",
    "",
]


async def test_a_login_goes_on_within_the_page(visitor: Visitor) -> None:
    page = await visitor.open("/login?next=/costs%3Fsince=2026-01-01T00:00:00Z", ready=".cost-table", is_loaded=True)
    assert page.url.endswith("/costs?since=2026-01-01T00:00:00Z")
    for address in ELSEWHERE:
        await go(page, f"/login?next={address}")
        await page.wait_for_url(re.compile(rf"^{re.escape(visitor.server.url)}/(?!login)"))


async def test_a_session_that_ends_while_the_page_is_open_leads_to_the_login(visitor: Visitor) -> None:
    page = await visitor.open("/costs", ready=".cost-table", expect=["401"], is_loaded=True)
    await page.context.clear_cookies()
    await page.keyboard.press("g")
    await page.keyboard.press("l")
    await page.wait_for_url(f"{visitor.server.url}/login?next=*")
    await page.get_by_label("API token").fill(FULL_TOKEN)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{visitor.server.url}/")


async def test_a_view_that_cannot_be_loaded_says_so_in_words(visitor: Visitor) -> None:
    page = await visitor.open("/", expect=["ERR_FAILED"], is_loaded=True)
    await page.route("**/views/costs.js", lambda route: route.abort())
    await go(page, "/costs")
    note = page.get_by_role("alert")
    await note.wait_for()
    assert "The store server does not answer. Check that" in await note.inner_text()
