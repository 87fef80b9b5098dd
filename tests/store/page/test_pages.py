"""Each page in each theme, in a real browser."""

import pytest

from tests.store.page.browser import Theme, Visitor, take_screenshot

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_list_of_runs_shows_them(visitor: Visitor, theme: Theme) -> None:
    page = await visitor.open("/", theme=theme)
    await page.get_by_text("Refund for a cracked kettle", exact=True).wait_for()
    await take_screenshot(page, f"runs-{theme}")


async def test_without_a_session_the_page_asks_for_a_token(visitor: Visitor) -> None:
    page = await visitor.open("/", scopes=None, expect=["401"])
    await page.get_by_label("API token").wait_for()
    await take_screenshot(page, "login-light")
