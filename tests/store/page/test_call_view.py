"""A call: as messages, as JSON, as bytes with their times; its key; the same key elsewhere."""

import json

import pytest
from playwright.async_api import Page, expect

from store.query.runs import Runs
from tests.store.page.browser import PageServer, Theme, Visitor, go, take_screenshot
from tests.store.page.seed import SECOND, Agent, write
from tests.store.page.test_run_view import query_of, writer
from tests.store.samples import NOON

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def open_call(visitor: Visitor, place: int, query: str = "", theme: Theme = "light", width: int = 1280) -> Page:
    call = (await visitor.server.read_call_ids("refund-4711"))[place]
    return await visitor.open(f"/runs/refund-4711/calls/{call}{query}", theme=theme, width=width, ready="h1")


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
async def test_a_call_is_shown_as_messages(visitor: Visitor, theme: Theme, width: int) -> None:
    page = await open_call(visitor, 4, theme=theme, width=width)
    await expect(page.locator("h1")).to_have_text("5. gpt-5-mini-2026-08-07")
    await expect(page.locator(".run-head")).to_contain_text("fingerprint fp_44709d6fcb")
    await expect(page.locator(".run-head")).to_contain_text("2 attempts")
    await expect(page.locator(".msg")).to_have_count(7)
    await expect(page.locator(".is-answer")).to_contain_text("create_refund")
    await page.get_by_role("link", name="the call that ran it").click()
    await expect(page.locator("h1")).to_have_text("7. POST /v2/create_refund")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await page.go_back()
    await page.locator(".is-answer").wait_for()
    await take_screenshot(page, f"call-messages-{theme}")


async def test_json_is_a_tree_with_pointers_and_search(visitor: Visitor) -> None:
    page = await open_call(visitor, 4, "?tab=json", theme="dark")
    rows = page.locator(".json-row")
    await expect(rows.nth(1)).to_have_text('model"gpt-5-mini"')
    await rows.nth(1).click()
    await expect(page.locator(".json-pointer")).to_have_text("/model")
    await page.get_by_label("Search in the JSON").fill("kitchen items")
    await expect(page.locator(".json-bar [role=status]")).to_have_text("1 of 1")
    await expect(page.locator(".json-pointer")).to_have_text("/messages/4/content")
    await expect(page.locator(".json-row.is-selected mark")).to_have_text("kitchen items")
    await page.locator(".json-tree .vlist").focus()
    await page.keyboard.press("ArrowLeft")
    await expect(page.locator(".json-pointer")).to_have_text("/messages/4")
    shown = await rows.count()
    await page.keyboard.press("ArrowLeft")
    assert await rows.count() < shown
    await take_screenshot(page, "call-json-dark")
    await page.get_by_role("button", name="answer").click()
    await expect(rows.nth(1)).to_contain_text("chat.completion")


async def test_bytes_have_the_times_of_their_pieces(visitor: Visitor) -> None:
    page = await open_call(visitor, 4, "?tab=bytes")
    await expect(page.locator(".raw")).to_contain_text('data: {"id": "chatcmpl-')
    await expect(page.locator(".chunk").first).to_contain_text("request")
    await expect(page.locator("#call-panel h2")).to_contain_text("pieces as they arrived")
    await page.get_by_role("button", name="as hex").click()
    await expect(page.locator(".raw")).to_contain_text("00000000  64 61 74 61 3a 20")
    await page.get_by_role("button", name="exchange 1").click()
    await expect(page.locator(".raw")).to_contain_text("00000000  7b 22 65 72 72 6f 72")
    await page.get_by_role("button", name="as text").click()
    await expect(page.locator(".raw")).to_contain_text("Rate limit reached")
    await take_screenshot(page, "call-bytes-light")


async def test_the_key_is_explained_and_the_same_key_elsewhere_is_shown(visitor: Visitor) -> None:
    page = await open_call(visitor, 0, "?tab=key")
    await expect(page.locator(".explain")).to_contain_text("/body/messages")
    await expect(page.locator(".explain")).to_contain_text("left out")
    await take_screenshot(page, "call-key-light")
    await page.get_by_role("tab", name="Same key").click()
    assert (await query_of(page))["tab"] == "same"
    await expect(page.locator(".same.is-mine")).to_contain_text("this call")
    await expect(page.locator(".same").nth(1)).to_contain_text("same answer")
    await take_screenshot(page, "call-same-light")
    await page.get_by_role("tab", name="HTTP").click()
    await expect(page.locator(".headers").first).to_contain_text("PLAYHEAD_api_key")


async def test_a_body_of_megabytes_is_read_only_where_it_is_opened(visitor: Visitor, page_server: PageServer) -> None:
    agent = Agent("large-body", NOON + 7000 * SECOND)
    numbers = json.dumps([{"n": number, "exact": 12345678901234567890 + number} for number in range(20_000)])
    agent.messages.append({"role": "user", "content": "a line\n" * 150_000})
    agent.messages.append({"role": "user", "content": numbers})
    agent.answer("long")
    agent.tool("call_x", "search", json.loads(numbers), {"ok": True})
    await write(writer(page_server), agent.exchanges)
    one, tool = await page_server.read_call_ids("large-body")
    page = await visitor.open("/runs/large-body", ready="#turn-2")
    await go(page, f"/runs/large-body/calls/{one}")
    await expect(page.locator(".cut-note").first).to_contain_text("984,464 more characters: see the JSON")
    assert await page.evaluate("document.querySelector('main').innerText.length") < 600_000
    await go(page, f"/runs/large-body/calls/{tool}?tab=json")
    rows = page.locator(".json-row")
    await rows.first.wait_for()
    assert await rows.count() < 100
    await page.get_by_label("Search in the JSON").fill("12345678901234583000")
    await expect(page.locator(".json-pointer")).to_have_text("/15110/exact")
    await expect(page.locator(".json-row.is-selected")).to_have_text("exact12345678901234583000")
    assert await rows.count() < 100
    await Runs(page_server.database).delete("large-body")


async def test_what_a_model_thought_is_above_its_answer(visitor: Visitor, page_server: PageServer) -> None:
    agent = Agent("thoughtful", NOON + 7500 * SECOND)
    agent.user("Which record?")
    agent.answer("R-7.", streamed=False, reasoning="<b>Seven</b> came last.")
    agent.user("Are you sure?")
    agent.answer("Yes.", streamed=False, reasoning="I look again. " * 200)
    await write(writer(page_server), agent.exchanges)
    page = await visitor.open("/runs/thoughtful", ready="#turn-2")
    thoughts = page.locator(".is-answer .reasoning")
    await expect(thoughts.nth(0)).to_have_text("reasoning<b>Seven</b> came last.")
    await expect(thoughts.nth(1)).to_contain_text("2,800 characters of reasoning")
    await expect(thoughts.nth(1).locator(".text")).not_to_be_visible()
    await thoughts.nth(1).locator("summary").click()
    await expect(thoughts.nth(1).locator(".text")).to_be_visible()
    first, _ = await page_server.read_call_ids("thoughtful")
    await go(page, f"/runs/thoughtful/calls/{first}")
    await expect(page.locator(".is-answer .reasoning")).to_contain_text("came last.")
    await Runs(page_server.database).delete("thoughtful")
