"""A link to the login page cannot lead elsewhere after the login."""

import re

import pytest

from tests.store.page.browser import Visitor, go

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
