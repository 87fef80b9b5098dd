"""Costs over time: the chart is zoomed by drawing over it and by keys, and its table has the same numbers."""

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Page, expect

from tests.store.page.browser import Visitor, take_screenshot

pytestmark = pytest.mark.asyncio(loop_scope="session")


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


async def test_days_are_enlarged_by_drawing_over_them(visitor: Visitor) -> None:
    """The runs of `seed` are of 14 to 21 November, one a day but on the last day."""
    page = await visitor.open("/costs?measure=calls", ready=".cost-table")
    figures = page.locator(".figures")
    bars = page.locator(".chart svg")
    box = await bars.bounding_box()
    assert box is not None
    day = (box["width"] - 72) / 8

    async def draw(first: int, last: int) -> None:
        await page.mouse.move(box["x"] + 64 + (first + 0.5) * day, box["y"] + 100)
        await page.mouse.down()
        await page.mouse.move(box["x"] + 64 + (last + 0.5) * day, box["y"] + 100, steps=3)
        await expect(page.locator("rect.zoom")).to_have_count(1)
        await take_screenshot(page, "costs-drag-light")
        await page.mouse.up()

    await draw(1, 3)
    await page.wait_for_url("**since=**")
    assert query_of(page) == {
        "measure": ["calls"], "since": ["2026-11-15T00:00:00Z"], "until": ["2026-11-18T00:00:00Z"]
    }  # fmt: skip
    # Three runs of seven calls, by the hour because four days or fewer are shown.
    await expect(figures).to_contain_text("Calls21")
    # Some providers count cached tokens apart from the input: a share of it would be over 100 %.
    await expect(figures).to_contain_text("Cached")
    await expect(figures).not_to_contain_text("%")
    numbers = await page.locator(".cost-table tbody tr td:nth-child(2)").all_text_contents()
    assert sum(map(int, numbers)) == 21
    assert "by hour" in str(await bars.get_attribute("aria-label"))
    await page.keyboard.press("-")
    await expect(figures).not_to_contain_text("Calls21")
    await page.keyboard.press("+")
    await expect(figures).to_contain_text("Calls21")
    await page.keyboard.press("Escape")
    await expect(figures).not_to_contain_text("Calls21")
    assert query_of(page) == {"measure": ["calls"]}
    await page.go_back()
    await expect(page.get_by_role("button", name="gpt-5", exact=True)).to_be_visible()
    await page.get_by_role("button", name="gpt-5", exact=True).click()
    await expect(page.locator("table.run-table tbody tr")).to_have_count(2)
    assert query_of(page) == {"model": ["gpt-5"]}
