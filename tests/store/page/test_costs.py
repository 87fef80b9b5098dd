"""Costs over time: the chart is zoomed by drawing over it and by keys, and its table has the same numbers."""

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Page, Route, expect

from tests.store.page.browser import FULL_TOKEN, Visitor, take_screenshot

pytestmark = pytest.mark.asyncio(loop_scope="session")


DAYS: Final = [f"2026-11-{day}T00:00:00.000000Z" for day in (14, 13, 12, 11)]

MODELS: Final = 600

MOST_GROUPS: Final = 1000
"""In an answer of the API, of the newest days."""


@asynccontextmanager
async def page_in_zone(visitor: Visitor, zone: str) -> AsyncIterator[Page]:
    """A page that shows nothing yet, of a reader in this time zone."""
    context = await visitor.browser.new_context(
        timezone_id=zone, locale="en-GB", viewport={"width": 1280, "height": 860}
    )
    try:
        answer = await context.request.post(f"{visitor.server.url}/v1/session", data={"token": FULL_TOKEN})
        assert answer.status == 204
        yield await context.new_page()
    finally:
        await context.close()


def sum_of(calls: int, group: dict[str, str]) -> dict[str, Any]:
    usage = dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"), 0)
    nothing = {"errors": 0, "cost_usd": 0, "known_cost_usd": 0, "calls_without_price": 0}
    return {"group": group, "calls": calls, "exchanges": calls, "usage": usage, "duration_ms": None} | nothing


async def answer_many_groups(route: Route) -> None:
    """Answer as an API that knows one call of each model on each day."""
    query = parse_qs(urlsplit(route.request.url).query)
    models = [f"model-{number}" for number in range(MODELS)]
    items = [sum_of(len(DAYS), {"model": model}) for model in models[:200]]
    if "day" in query["group_by"]:
        until = dt.datetime.fromisoformat(query.get("until", ["2027-01-01T00:00:00Z"])[0])
        days = [day for day in DAYS if dt.datetime.fromisoformat(day) < until]
        items = [sum_of(1, {"day": day, "model": model}) for day in days for model in models][:MOST_GROUPS]
    await route.fulfill(json={"items": items, "total": sum_of(MODELS * len(DAYS), {})})


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


async def test_a_day_has_its_name_wherever_the_reader_is(visitor: Visitor) -> None:
    """It begins at midnight in UTC, which is the evening of the day before in California."""
    async with page_in_zone(visitor, "America/Los_Angeles") as page:
        await page.goto(f"{visitor.server.url}/costs")
        await expect(page.locator(".chart .tick-x").first).to_have_text("14 Nov")
        await expect(page.locator(".hint")).to_contain_text("Days are of UTC.")


async def test_more_groups_than_an_answer_has_are_all_in_the_bars(visitor: Visitor) -> None:
    async with page_in_zone(visitor, "Europe/Stockholm") as page:
        await page.route("**/v1/stats?**", answer_many_groups)
        await page.goto(f"{visitor.server.url}/costs?measure=calls")
        await expect(page.locator(".chart .tick-x")).to_have_count(len(DAYS))
        counts = await page.locator(".legend .count").all_text_contents()
        assert sum(int(one.replace(",", "")) for one in counts) == MODELS * len(DAYS)
        await expect(page.locator(".hint")).to_contain_text("The table has the first 200.")
        await expect(page.locator(".hint")).not_to_contain_text("too many groups")


@pytest.mark.parametrize("until", ["", "&until=2027-06-01T00:00:00Z"])
async def test_the_bars_of_a_long_time_are_its_newest_days(visitor: Visitor, until: str) -> None:
    """There is room for 800 of them."""
    page = await visitor.open(f"/costs?measure=calls&since=2020-01-01T00:00:00Z{until}", ready=".chart")
    await expect(page.locator(".chart rect.s1").first).to_be_visible()
    await expect(page.locator(".hint")).not_to_contain_text("The bars lack")


async def test_the_bars_stay_while_another_time_is_loaded(visitor: Visitor) -> None:
    """What is shown meanwhile is of the time before, none of which is in the new one."""
    page = await visitor.open("/costs?measure=calls", ready=".chart")
    await page.get_by_role("button", name="24 h", exact=True).click()
    await expect(page.get_by_text("No calls in this time")).to_be_visible()
    await page.get_by_role("button", name="Show the whole time").click()
    await expect(page.locator(".chart rect.s1").first).to_be_visible()
