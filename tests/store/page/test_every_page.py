"""Every page in both themes and on a phone: nothing goes wrong, axe finds nothing, nothing moves. Pictures are made on the way."""

from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.store.page.browser import PageServer, Theme, Visitor, go, take_screenshot
from tests.store.page.replays import store_report
from tests.store.page.seed import refund_run
from tests.store.samples import NOON

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE: Final = Path(__file__).with_name("vendor") / "axe.min.js"

PHONE: Final = 320
"""The width to which WCAG 2.1 wants pages to be reduced (1.4.10): that of a small phone, and of 1,280 pixels at 400 %."""

PAGES: Final = {
    "runs": ("/", "table.run-table tbody tr"),
    "found": ("/?q=kettle", ".matches li"),
    "run": ("/runs/refund-4711", "h1"),
    "lanes": ("/runs/research-nordic", "h1"),
    "fork": ("/runs/refund-4711-fork", ".badges a"),
    "broken": ("/runs/weekly-report", "h1"),
    "call": ("/runs/refund-4711/calls/CALL", "h1"),
    "diff": ("/diff/refund-4711/refund-4712", "h1"),
    "costs": ("/costs", ".cost-table"),
    "tools": ("/costs?by=tool&measure=calls", ".cost-table"),
    "drift": ("/drift", "table"),
    "steps": ("/runs/research-nordic?view=steps&step=7", "table.steps"),
    "json": ("/runs/refund-4711/calls/CALL?tab=json", ".json-row"),
    "bytes": ("/runs/refund-4711/calls/CALL?tab=bytes", ".raw"),
    "http": ("/runs/refund-4711/calls/CALL?tab=http", ".headers"),
    "key": ("/runs/refund-4711/calls/CALL?tab=key", ".explain"),
    "same": ("/runs/refund-4711/calls/CALL?tab=same", ".same"),
    "sides": ("/diff/refund-4711/refund-4712?view=side", ".sides"),
    "misses": ("/misses/every-page", ".difference"),
    "empty": ("/?project=nothing", ".empty"),
}
"""Each page: its address, and what is shown when it is ready."""

THEMES: Final[tuple[Theme, ...]] = ("light", "dark")

AUDIT: Final = """
async (theme) => {
  const found = await axe.run(document, {
    resultTypes: ["violations"], selectors: false, preload: false,
    ...(theme === "light" ? {
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
      rules: {"label-content-name-mismatch": {enabled: true}},
    } : {runOnly: {type: "rule", values: ["color-contrast", "link-in-text-block"]}}),
  });
  return found.violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`);
}
"""
"""All rules in the light theme; of the dark one, whose document is the same, the colours. What takes half of the time is left out: to
describe what is right, a selector for each element, and to load again what only rules of films and of style sheets look at."""

SHIFT: Final = """
() => {
  const observer = new PerformanceObserver(() => {});
  observer.observe({type: "layout-shift", buffered: true});
  return observer.takeRecords().reduce((sum, entry) => sum + (entry.hadRecentInput ? 0 : entry.value), 0);
}
"""
"""How far anything has moved since the page was opened."""


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def report(page_server: PageServer) -> None:
    """A replay in which every request missed."""
    await store_report(page_server, "every-page", refund_run("refund-4711", NOON), lambda text: f"{text} Please.")


async def test_each_page_is_for_everybody_to_read(visitor: Visitor, subtests: pytest.Subtests) -> None:
    """On a phone, and in both themes. One page leads to all: to load each, and axe in each, takes most of the time."""
    page = await visitor.open("/drift")
    await page.evaluate(AXE.read_text())
    [call, *_] = await visitor.server.read_call_ids("refund-4711")
    for name, (path, ready) in PAGES.items():
        with subtests.test(name):
            await page.set_viewport_size({"width": PHONE, "height": 860})
            await page.emulate_media(color_scheme="light")
            await page.mouse.move(0, 0)
            # What is shown next is made anew.
            await go(page, "/none")
            await expect(page.locator("h1")).to_have_text("This did not work")
            await go(page, path.replace("CALL", call))
            await expect(page.locator("h1")).not_to_have_text("This did not work")
            await check_page(page, name, ready)


def drift_variant(model: str, version: str, first_day: int) -> dict[str, object]:
    """A model that answered from this day of November on."""
    times = {"first_at": f"2026-11-{first_day:02d}T00:00:00Z", "last_at": "2026-11-20T00:00:00Z"}
    names = {"provider": "openai", "model_requested": model, "model_returned": version, "system_fingerprint": None}
    return {**names, **times, "calls": 9, "examples": []}


async def test_a_change_of_a_model_is_marked_beside_this_model_alone(visitor: Visitor) -> None:
    variants = [drift_variant("a", "a-1", 1), drift_variant("b", "b-1", 1), drift_variant("b", "b-2", 9)]
    change = {**variants[2], "from": variants[1], "to": variants[2], "replaced": False, "rolled_out": True}
    change |= {"same_requests": None, "examples": {"before": [], "after": []}}
    answer = {"items": [change], "variants": [*variants, drift_variant("c", "c-1", 1)], "latencies": []}
    page = await visitor.open("/costs")
    await page.route("**/v1/drift*", lambda route: route.fulfill(json=answer))
    await go(page, "/drift")
    await page.locator(".chart .lane-name").nth(2).wait_for()
    [mark] = await page.locator(".chart .change").all()
    top, bottom = [float(await mark.get_attribute(name) or "") for name in ("y1", "y2")]
    names = await page.locator(".chart .lane-name").evaluate_all("all => all.map(one => +one.getAttribute('y'))")
    assert names[1] < top + 22
    assert bottom < names[2]
    assert await page.locator("main .badge").all_inner_texts() == ["replaced"]


async def test_the_login_is_for_everybody_to_read(visitor: Visitor) -> None:
    page = await visitor.open("/login", scopes=None, ready="#token", expect=["401"], width=PHONE)
    await page.wait_for_load_state("networkidle")
    await page.evaluate(AXE.read_text())
    await check_page(page, "login", "#token")


async def check_page(page: Page, name: str, ready: str) -> None:
    """It fits on a phone, where it is opened, and axe finds nothing on a wide screen."""
    await page.locator(ready).first.wait_for()
    await expect(page.locator(".loading")).to_have_count(0)
    await take_screenshot(page, f"{name}-phone")
    wide = await page.evaluate(
        "[document.documentElement.scrollWidth, innerWidth, [...document.querySelectorAll('main *')]"
        ".filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll, .vlist, svg, pre, code, [class*=scroll]'))"
        ".slice(0, 3).map((one) => one.outerHTML.slice(0, 120))]"
    )
    assert wide[0] <= wide[1], wide
    await page.set_viewport_size({"width": 1280, "height": 860})
    if name in ("runs", "found", "empty"):
        # Filters are closed where there is little room when the page is opened.
        await page.get_by_role("button", name="Filters", expanded=False).click()
        sections = expect(page.locator(".facets section"))
        await (sections.to_have_count(2) if name == "empty" else sections.not_to_have_count(2))
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        assert await page.evaluate(AUDIT, theme) == [], theme
        await take_screenshot(page, f"{name}-{theme}", is_kept=theme == "light")


@pytest.mark.parametrize(
    ("path", "ready", "early"),
    [
        ("/", "table.run-table tbody tr", "/v1/runs?limit=50"),
        ("/runs/refund-4711", ".waterfall .step", "/v1/runs/refund-4711/timeline?limit=2000"),
        ("/runs/refund-4711/calls/CALL", ".call-talk", "/v1/calls/CALL?content=short"),
    ],
)
async def test_what_is_shown_first_is_asked_for_first_and_nothing_moves(
    visitor: Visitor, path: str, ready: str, early: str
) -> None:
    [call, *_] = await visitor.server.read_call_ids("refund-4711")
    path, early = path.replace("CALL", call), early.replace("CALL", call)
    page = await visitor.open(path, ready=ready, is_loaded=True)
    if path == "/":
        await expect(page.locator(".facets section")).not_to_have_count(2)
    else:
        await expect(page.locator(".msg.is-answer").first).to_be_visible()
    assert await page.evaluate(SHIFT) < 0.02
    of_server = [one for one in visitor.addresses_asked(page) if one.startswith("/v1/")]
    assert (of_server[0], of_server.count(early)) == (early, 1)
