"""Hostile texts in every view: nothing runs, nothing is fetched from elsewhere, nothing breaks, and nothing freezes."""

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.store.page.browser import PageServer, Visitor, go, take_screenshot
from tests.store.page.hostile import MISSES, TEXTS, record_hostile_runs

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROJECT: Final = "hostile"


FOUND: Final = """
() => [...document.querySelectorAll("*")].filter((one) =>
  ["SCRIPT", "IFRAME", "OBJECT", "EMBED"].includes(one.tagName)
    && (one.closest("main") || !(one.src || "").startsWith(location.origin))
  || one.tagName === "IMG"
  || [...one.attributes].some((attribute) => /^on/i.test(attribute.name) || /^\\s*javascript:/i.test(attribute.value))
  || one.tagName === "A" && one.href && new URL(one.href).origin !== location.origin
  || one.closest("main") && [...one.childNodes].some((node) => node.nodeType === 3 && /[\u202e\u001b]/.test(node.data))
).map((one) => one.outerHTML.slice(0, 200)).concat(
  "hacked" in window ? [`a script ran: ${window.hacked}`] : [],
  "x" in {} ? ["a prototype was changed"] : [],
)
"""
"""Elements that the texts made, or that show characters which turn the order of others; and what ran."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def calls(page_server: PageServer) -> AsyncIterator[dict[str, str]]:
    """A call of each hostile run."""
    yield await record_hostile_runs(page_server, PROJECT)


async def check_harmless(page: Page) -> None:
    """The texts made no elements, ran nowhere, and changed no order of what is shown."""
    assert await page.evaluate(FOUND) == []


IN_TABS: Final = f"""
async () => {{
  const look = {FOUND};
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const tabs = () => [...document.querySelectorAll("[role=tab]")];
  const found = [];
  for (const place of tabs().keys()) {{
    tabs()[place].click();
    do await drawn(); while (tabs()[place].ariaSelected !== "true" || document.querySelector(".loading"));
    found.push(look());
  }}
  return found;
}}
"""
"""What FOUND finds in each tab. It is one script: to click on a tab with the mouse takes a third of all these tests."""


async def check_tabs(page: Page, count: int) -> None:
    """Neither do they in any of its tabs."""
    found = await page.evaluate(IN_TABS)
    assert found == [[]] * count


TABS: Final = {"run": 2, "call": 6, "miss": 3}
"""How many a page has."""

PATHS: Final = (
    "/",
    "/?q=admin",
    "/runs/hostile",
    "/runs/hostile?view=steps",
    "/runs/hostile/calls/{hostile}",
    "/runs/hostile/calls/{hostile-tool}",
    "/runs/hostile/calls/{hostile-failed}",
    "/diff/hostile/hostile-2",
    "/costs?by=model",
    "/costs?by=tool",
    "/costs?by=actor",
    "/drift",
)


async def test_hostile_texts_do_nothing(visitor: Visitor, calls: dict[str, str], subtests: pytest.Subtests) -> None:
    """The visitor fails the test if anything ran, was fetched from elsewhere, or violated the policy."""
    page = await visitor.open(f"/runs/none?project={PROJECT}", ready="main .note", expect=["404"])
    for path in PATHS:
        with subtests.test(path):
            address = path.format(**calls) + ("&" if "?" in path else "?") + f"project={PROJECT}"
            await go(page, f"/none?project={PROJECT}")
            await expect(page.locator("h1")).to_have_text("This did not work")
            await go(page, address)
            await expect(page.locator("h1")).not_to_have_text("This did not work")
            await check_page(page, path)


@pytest.mark.parametrize(
    "path",
    [
        "/runs/hostile",
        "/runs/%3Cscript%3Ealert(1)",
        "/?model=%3Cscript%3E&label=%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
    ],
)
async def test_hostile_texts_do_nothing_while_a_page_is_loaded(
    visitor: Visitor, calls: dict[str, str], path: str
) -> None:
    expected = ["404", "422", "400"] if "script" in path else []
    address = f"{path}{'&' if '?' in path else '?'}project={PROJECT}"
    page = await visitor.open(address, ready="main h1, main .note", expect=expected, is_loaded=True)
    await check_page(page, path)


async def check_page(page: Page, path: str) -> None:
    await page.locator("main h1, main .note").first.wait_for()
    await expect(page.locator(".loading")).to_have_count(0)
    if path == "/runs/hostile":
        await expect(page.locator("main")).to_contain_text("⟨U+202E⟩")
        await expect(page.locator("#turn-1")).to_contain_text("<script>window.hacked = 1; alert('script')</script>")
        await page.locator(".effects summary").first.click()
        await expect(page.locator(".effects tbody tr")).to_have_count(len(TEXTS) - 1)
    await check_harmless(page)
    run, _, call = path.partition("/calls/")
    await check_tabs(page, TABS["call" if call else "run"] if run.startswith("/runs/hostile") else 0)
    await take_screenshot(page, f"hostile-{path.strip('/').replace('/', '-').partition('?')[0][:20] or 'runs'}")


@pytest.mark.parametrize("report", MISSES)
async def test_hostile_requests_that_missed_do_nothing(visitor: Visitor, calls: dict[str, str], report: str) -> None:
    """Each text is in a request, in what the nearest recording had instead, in a rule and in a way to mend it."""
    page = await visitor.open(f"/misses/{report}?project={PROJECT}", ready=".difference")
    rows = page.locator(".miss-row")
    await expect(rows).to_have_count({MISSES[0]: 7, MISSES[1]: 6}[report])
    for row in await rows.all():
        await row.click()
        await page.get_by_text("The request that missed").click()
        await check_tabs(page, TABS["miss"])
        ignoring = page.get_by_role("button", name="Ignore this field")
        if await ignoring.count():
            await ignoring.first.click()
            await page.get_by_role("dialog").wait_for()
            await check_harmless(page)
            await page.keyboard.press("Escape")
    assert "<script>window.hacked" in await page.locator("main").inner_text()
    await take_screenshot(page, "hostile-misses")


async def test_hostile_texts_do_nothing_in_dialogs(visitor: Visitor, calls: dict[str, str]) -> None:
    page = await visitor.open(f"/runs/hostile?project={PROJECT}")
    await page.locator(".turn").first.wait_for()
    for action in ("Name and labels…", "Verify…", "Replay reports…", "Fork…", "Export…", "Delete…"):
        await page.keyboard.press("c")
        await page.get_by_role("menuitem", name=action).click()
        await expect(page.locator("dialog .loading")).to_have_count(0)
        await check_harmless(page)
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.goto(f"{visitor.server.url}/runs/hostile/calls/{calls['hostile']}?project={PROJECT}")
    await page.locator(".call-talk").wait_for()
    for form in ("curl", "Python", "pytest", "JSONL", "HAR", "VCR"):
        await page.keyboard.press("c")
        await page.get_by_role("menuitem", name=form).click()
        await page.get_by_role("region", name="The copy").wait_for()
        await check_harmless(page)
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_what_is_invisible_is_shown(visitor: Visitor, calls: dict[str, str]) -> None:
    page = await visitor.open(f"/?project={PROJECT}", ready="table.run-table tbody tr")
    name = page.locator("tr", has_text="hostile-2").locator("td.name a")
    await expect(name).to_contain_text("⟨U+202E⟩")
    await expect(name).to_contain_text("<script>window.hacked")


@pytest.mark.parametrize("run", ["large", "crowded"])
@pytest.mark.parametrize("view", ["run", "call"])
async def test_a_large_answer_does_not_break_the_page(
    visitor: Visitor, calls: dict[str, str], run: str, view: str
) -> None:
    path = f"/runs/{run}" if view == "run" else f"/runs/{run}/calls/{calls[run]}"
    page = await visitor.open(f"{path}?project={PROJECT}", ready="header.top")
    # The store server alone takes seconds to link so many tool calls.
    await page.locator("main h1").first.wait_for()
    await expect(page.locator(".loading")).to_have_count(0)
    await check_tabs(page, TABS[view])
    assert await page.evaluate("document.querySelectorAll('*').length") < 2_000, "it is shown in pieces"
