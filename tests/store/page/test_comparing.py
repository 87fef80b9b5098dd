"""The diff of two runs, the misses of a replay, and copies of a call, in a real browser."""

import json
from typing import Any

import pytest

from calls.events import ReplayReported
from calls.model import Exchange
from replay.recording import build_recording
from replay.session import ReplayOptions, Session
from store.bundle.bundle import Bundle, Entry
from store.ingest.batch_writer import BatchWriter
from tests.store.house import PROFILES
from tests.store.page.browser import Theme, Visitor, take_screenshot
from tests.store.page.seed import refund_run
from tests.store.samples import NOON

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'> \u202e\x00 javascript:alert(1) </script>"


async def stored_report(visitor: Visitor, name: str, edit: str) -> dict[str, Any]:
    """Replay a recorded run with requests that differ, and store the report."""
    exchanges: list[Exchange] = refund_run("refund-4711", NOON)
    bundle = Bundle(run={"id": "refund-4711"}, profiles="", entries=[Entry(exchange=one) for one in exchanges])
    session = Session(name, build_recording(bundle, PROFILES), ReplayOptions(), lambda _: None)
    for exchange in exchanges[:3]:
        body = exchange.request.body
        changed = json.loads(body.data) if body.data else None
        if changed and "messages" in changed:
            changed["messages"][-1]["content"] = edit
            data = json.dumps(changed).encode()
            request = type(exchange.request)(
                method=exchange.request.method,
                url=exchange.request.url,
                headers=exchange.request.headers,
                body=type(body)(data=data, size=len(data)),
            )
            await session.answer(request)
    report: dict[str, Any] = json.loads(json.dumps(session.report()))
    writer = BatchWriter(visitor.server.database, profile=PROFILES.digest, signal=visitor.server.house.signal)
    await writer.write_batch((), replays=[ReplayReported(name, json.dumps(report).encode())])
    return report


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
    page = await visitor.open("/diff/refund-4711/refund-4711-fork", ready=".note")
    assert "same" in await page.locator(".note").first.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_miss_shows_similar_calls_and_the_rule_before_it_is_written(visitor: Visitor, theme: Theme) -> None:
    report = await stored_report(visitor, f"miss-{theme}", "Where is my refund?")
    number = report["misses"][1]["number"]
    page = await visitor.open(f"/misses/miss-{theme}?request={number}", theme=theme, ready=".difference")
    await take_screenshot(page, f"miss-{theme}")
    assert await page.locator(".near").count() == 1
    assert await page.get_by_role("tab").count() == len(report["misses"][1]["candidates"])
    await page.get_by_role("button", name="Ignore this field").first.click()
    rule = page.get_by_role("region", name="The rule")
    assert "[[profile]]" in await rule.inner_text()
    assert "transient" in await rule.inner_text()
    await take_screenshot(page, f"miss-rule-{theme}")


async def test_hostile_text_in_a_miss_is_text(visitor: Visitor) -> None:
    await stored_report(visitor, "miss-hostile", HOSTILE)
    page = await visitor.open("/misses/miss-hostile", ready=".difference")
    await page.get_by_text("The request that missed").click()
    assert "<script>" in await page.locator("main").inner_text()
    assert await page.evaluate("window.ran") is None


async def test_a_call_is_copied_as_curl(visitor: Visitor) -> None:
    listed = (
        await visitor.server.house.api.get(
            "/v1/runs/refund-4711/calls", headers={"authorization": "Bearer the-token-of-the-team"}
        )
    ).json()
    page = await visitor.open(f"/runs/refund-4711/calls/{listed['items'][0]['id']}")
    await page.get_by_role("button", name="Copy this call").click()
    await page.get_by_role("menuitem", name="curl").click()
    text = await page.get_by_role("region", name="The copy").inner_text()
    assert text.startswith("curl ")
    assert "${OPENAI_API_KEY}" in text
    await take_screenshot(page, "copy-as-light")
