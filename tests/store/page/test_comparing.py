"""The diff of two runs, the misses of a replay, and copies of a call, in a real browser."""

import pytest

from tests.store.page.browser import Theme, Visitor, take_screenshot
from tests.store.page.replays import store_report
from tests.store.page.seed import refund_run
from tests.store.samples import NOON

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_first_difference_is_open_and_keys_move_on(visitor: Visitor, theme: Theme) -> None:
    page = await visitor.open("/diff/refund-4711/refund-4712", theme=theme, ready=".diff-pair.is-open")
    await take_screenshot(page, f"diff-{theme}")
    first = await page.locator(".diff-pair.is-open .pair-steps").inner_text()
    await page.keyboard.press("n")
    await page.wait_for_url("**at=**")
    second = await page.locator(".diff-pair.is-open .pair-steps").inner_text()
    assert first != second
    await page.keyboard.press("p")
    assert await page.locator(".diff-pair.is-open .pair-steps").inner_text() == first
    await page.keyboard.press("u")
    await page.wait_for_url("**view=side**")
    await page.locator(".sides").first.wait_for()
    await take_screenshot(page, f"diff-side-{theme}")


async def test_equal_runs_say_so(visitor: Visitor) -> None:
    page = await visitor.open("/diff/refund-4711/refund-4711-fork", ready=".note", is_loaded=True)
    assert "same" in await page.locator(".note").first.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_miss_shows_similar_calls_and_the_rule_before_it_is_written(visitor: Visitor, theme: Theme) -> None:
    exchanges = refund_run("refund-4711", NOON)[:3]
    report = await store_report(visitor.server, f"miss-{theme}", exchanges, lambda _: "Where is my refund?")
    number = report["misses"][1]["number"]
    address = f"/misses/miss-{theme}?request={number}"
    page = await visitor.open(address, theme=theme, ready=".difference", is_loaded=theme == "light")
    await take_screenshot(page, f"miss-{theme}")
    assert await page.locator(".near").count() == 1
    assert await page.get_by_role("tab").count() == len(report["misses"][1]["candidates"])
    await page.get_by_role("button", name="Ignore this field").first.click()
    rule = page.get_by_role("region", name="The rule")
    assert "[[profile]]" in await rule.inner_text()
    assert "transient" in await rule.inner_text()
    await take_screenshot(page, f"miss-rule-{theme}")


async def test_a_call_is_copied_as_curl(visitor: Visitor) -> None:
    listed = (
        await visitor.server.running_store.api.get(
            "/v1/runs/refund-4711/calls", headers={"authorization": "Bearer the-token-of-the-team"}
        )
    ).json()
    page = await visitor.open(f"/runs/refund-4711/calls/{listed['items'][0]['id']}")
    await page.get_by_role("button", name="Copy as a command").click()
    await page.get_by_role("menuitem", name="curl").click()
    text = await page.get_by_role("region", name="The copy").inner_text()
    assert text.startswith("curl ")
    assert "${OPENAI_API_KEY}" in text
    await take_screenshot(page, "copy-as-light")
