"""The list of runs as people use it: keys, filters, search, comparison, actions, news, login."""

import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Page, expect

from store.access.api_tokens import Scope
from store.ingest.batch_writer import BatchWriter
from tests.store.page.browser import FULL_TOKEN, PageServer, Visitor, take_screenshot
from tests.store.page.seed import refund_run, write
from tests.store.running_store import PROFILES
from tests.store.samples import NOON, SECOND

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROW = "table.run-table tbody tr"


async def record(server: PageServer, run: str, project: str = "default", at: int = NOON) -> None:
    """Record a run."""
    writer = BatchWriter(server.database, project=project, profile=PROFILES.digest, signal=server.running_store.signal)
    await write(writer, refund_run(run, at))
    await server.running_store.followers.wait_until_caught_up()


async def ask(server: PageServer, path: str) -> Any:
    answer = await server.running_store.api.get(path, headers={"authorization": f"Bearer {FULL_TOKEN}"})
    return answer.json()


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


@pytest.mark.parametrize("width", [1280, 2560])
async def test_large_numbers_are_shown_whole(visitor: Visitor, width: int) -> None:
    page = await visitor.open("/", ready=ROW)
    await page.set_viewport_size({"width": width, "height": 900})
    cut = await page.evaluate(
        """() => ["Calls 100,000", "Tokens 999.9M", "Duration 59 m 59 s", "Cost $1,234.56"].filter((each) => {
          const [head, text] = each.split(/ (.*)/);
          const names = [...document.querySelectorAll("table.run-table thead th")].map((one) => one.innerText.trim());
          const cell = document.querySelector("table.run-table tbody tr").cells[names.indexOf(head)];
          cell.textContent = text;
          return cell.scrollWidth > cell.clientWidth;
        })"""
    )
    assert cut == []


async def test_a_walk_with_the_keyboard(visitor: Visitor) -> None:
    page = await visitor.open("/", ready=ROW)
    rows = page.locator(ROW)
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(rows.nth(1)).to_be_focused()
    await page.keyboard.press("k")
    await expect(rows.nth(0)).to_be_focused()
    await page.keyboard.press("d")
    await page.keyboard.press("j")
    await page.keyboard.press("d")
    await expect(page.get_by_role("button", name="Compare 2/2")).to_be_enabled()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Compare", exact=True)).to_be_disabled()
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox").first).to_be_focused()
    await page.keyboard.type("jjj")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("searchbox").first).not_to_be_focused()
    await page.keyboard.press("f")
    await expect(page.locator(".facets button").first).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("open the run")
    await take_screenshot(page, "help-light")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("j")
    await page.keyboard.press("c")
    await expect(
        page.get_by_role("menuitem", name="Pin").or_(page.get_by_role("menuitem", name="Unpin"))
    ).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("menuitem", name="Name and labels…")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("menu")).to_have_count(0)
    await page.keyboard.press("Escape")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/runs/"))
    await page.go_back()
    await page.locator(ROW).first.wait_for()


async def test_who_goes_back_to_a_list_is_where_he_was(visitor: Visitor) -> None:
    """Its rows are fetched anew, and until they are there is nothing to scroll."""
    page = await visitor.open("/", ready=ROW, height=300)
    await page.locator(ROW).nth(7).scroll_into_view_if_needed()
    before = await page.evaluate("scrollY")
    assert before > 50
    await page.locator(ROW).nth(7).click()
    await page.wait_for_url(re.compile(r"/runs/"))
    await page.wait_for_function("scrollY === 0")
    await page.go_back()
    await page.wait_for_function("(before) => Math.abs(scrollY - before) < 2", arg=before)


async def test_the_theme_is_chosen_and_remembered(visitor: Visitor) -> None:
    page = await visitor.open("/", ready=ROW, is_loaded=True)
    for theme in ("light", "dark"):
        await page.keyboard.press("t")
        await expect(page.locator("html")).to_have_attribute("data-theme", theme)
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.keyboard.press("t")
    await expect(page.locator("html")).not_to_have_attribute("data-theme", "dark")


async def test_filters_are_in_the_address_and_have_counts(visitor: Visitor) -> None:
    page = await visitor.open("/", ready=ROW)
    model = page.locator(".facet", has_text=re.compile(r"^gpt-52$"))
    await model.click()
    await expect(page.locator(ROW)).to_have_count(2)
    assert query_of(page) == {"model": ["gpt-5"]}
    await page.get_by_label("Incomplete").check()
    await expect(page.locator(ROW)).to_have_count(1)
    await page.reload()
    await expect(page.locator(ROW)).to_have_count(1)
    await expect(page.locator(ROW)).to_contain_text("2 gaps")
    twin = await page.locator("[data-twin]").get_attribute("href")
    assert twin is not None
    assert [run["id"] for run in (await ask(visitor.server, twin))["items"]] == ["weekly-report"]
    await page.get_by_role("button", name="model: gpt-5").click()
    assert query_of(page) == {"incomplete": ["true"]}
    await page.get_by_role("button", name="Clear all").click()
    await expect(page.locator(ROW).nth(5)).to_be_visible()
    await page.locator(".labels .chip", has_text="team=research").click()
    await expect(page.locator(ROW)).to_have_count(1)
    assert query_of(page) == {"label": ["team=research"]}


async def test_search_shows_where_it_was_said(visitor: Visitor) -> None:
    page = await visitor.open("/", ready=ROW)
    await page.keyboard.press("/")
    await page.keyboard.type("bank has booked")
    await page.keyboard.press("Enter")
    await expect(page.locator(".matches mark", has_text="bank").first).to_be_visible()
    assert query_of(page) == {"q": ["bank has booked"]}


async def test_what_is_typed_stays_while_the_list_changes(visitor: Visitor) -> None:
    page = await visitor.open("/", ready=ROW)
    await page.keyboard.press("/")
    await page.keyboard.type("bank has")
    # Drawn anew, as when runs arrive.
    await page.get_by_role("button", name="Filters").click()
    await expect(page.get_by_role("searchbox")).to_have_value("bank has")


async def test_two_runs_are_compared(visitor: Visitor) -> None:
    page = await visitor.open("/", ready=ROW)
    for run in ("Refund for a cracked kettle", "Refund for a cracked kettle, strict policy"):
        await page.get_by_label(f"Compare {run}", exact=True).check()
    await page.get_by_role("button", name="Compare 2/2").click()
    await page.wait_for_url("**/diff/refund-4711/refund-4712")


async def test_new_runs_are_announced_and_known_ones_change(visitor: Visitor) -> None:
    server = visitor.server
    await record(server, "before", project="news")
    page = await visitor.open("/?project=news", ready=ROW)
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await record(server, "after", project="news", at=NOON + 60 * SECOND)
    await record(server, "later", project="news", at=NOON + 120 * SECOND)
    pill = page.get_by_role("button", name="2 new")
    await pill.wait_for()
    await expect(page.locator(ROW)).to_have_count(1)
    await take_screenshot(page, "news-light")
    await pill.click()
    await expect(page.locator(ROW)).to_have_count(3)
    await expect(page.locator(".pill")).to_have_count(0)
    patched = await server.running_store.api.patch(
        "/v1/runs/before?project=news",
        json={"name": "Renamed meanwhile", "pinned": True},
        headers={"authorization": f"Bearer {FULL_TOKEN}"},
    )
    assert patched.status_code == 200
    await expect(page.locator(ROW).last).to_contain_text("Renamed meanwhile")
    await expect(page.locator(ROW).last).to_contain_text("Pinned")


async def test_actions_change_a_run(visitor: Visitor) -> None:
    await record(visitor.server, "acted", project="acts", at=time.time_ns() - 60 * SECOND)
    # What is asked about the run while it is deleted finds nothing.
    page = await visitor.open("/?project=acts", ready=ROW, expect=["404"])

    async def choose(item: str) -> None:
        await page.get_by_role("button", name="Actions for").click()
        await page.get_by_role("menuitem", name=item).click()

    await choose("Pin")
    await expect(page.locator(ROW)).to_contain_text("Pinned")
    await choose("Name and labels…")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("A <b>name</b>")
    await dialog.get_by_label("Label 1: name").fill("team")
    await dialog.get_by_label("Label 1: value").fill("support")
    await dialog.get_by_role("button", name="Save").click()
    await expect(page.locator(ROW)).to_contain_text("A <b>name</b>")
    await expect(page.locator(ROW)).to_contain_text("team=support")
    await choose("Verify…")
    await expect(dialog.locator(".badge")).to_have_text(re.compile("Verified|Not proven"))
    await take_screenshot(page, "verify-light")
    await page.keyboard.press("Escape")
    await choose("Fork…")
    await dialog.get_by_label("Last step from the record").fill("3")
    await expect(dialog).to_contain_text("playhead fork acted --after-step 3 -- python agent.py")
    await page.keyboard.press("Escape")
    await choose("Export…")
    async with page.expect_download() as downloading:
        await dialog.get_by_role("link", name="Bundle (JSON Lines)").click()
    assert (await downloading.value).suggested_filename == "acted.jsonl"
    await page.keyboard.press("Escape")
    await choose("Replay reports…")
    await expect(dialog).to_contain_text("playhead replay acted")
    await page.keyboard.press("Escape")
    await choose("End")
    await page.get_by_role("button", name="Actions for").click()
    await expect(page.get_by_role("menuitem", name="End")).to_have_attribute("aria-disabled", "true")
    await page.keyboard.press("Escape")
    await choose("Delete…")
    button = dialog.get_by_role("button", name="Delete for good")
    await expect(dialog).to_contain_text("exchanges with their bodies")
    await expect(button).to_be_disabled()
    await dialog.get_by_label("To confirm, type").fill("acted")
    await take_screenshot(page, "delete-light")
    await button.click()
    await expect(page.locator(ROW)).to_have_count(0)
    assert (await ask(visitor.server, "/v1/runs/acted?project=acts"))["status"] == 404


async def test_an_empty_store_server_says_what_to_do(visitor: Visitor) -> None:
    page = await visitor.open("/?project=nobody", ready=".empty")
    await expect(page.locator(".empty")).to_contain_text("playhead record -- python agent.py")
    await expect(page.locator(".empty")).to_contain_text(visitor.server.url)


async def test_logging_in_and_out(visitor: Visitor) -> None:
    page = await visitor.open("/?model=gpt-5", scopes=None, ready="#token", expect=["401"])
    await page.get_by_label("API token").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("not a token of this store server")
    await page.get_by_label("API token").fill(FULL_TOKEN)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator(ROW)).to_have_count(2)
    assert query_of(page) == {"model": ["gpt-5"]}, "where it was to go"
    assert await page.evaluate("document.cookie") == "", "no script can read the cookie"
    await page.get_by_role("button", name="Log out").click()
    await page.locator("#token").wait_for()
    await page.goto(f"{visitor.server.url}/")
    await page.locator("#token").wait_for()


@pytest.mark.parametrize(
    "query", ["", "?next=//evil.example/x", "?next=/%09/evil.example", "?next=javascript:alert(1)"]
)
async def test_a_login_link_works_once_and_leads_nowhere_else(visitor: Visitor, query: str) -> None:
    headers = {"authorization": f"Bearer {FULL_TOKEN}"}
    code = (await visitor.server.running_store.api.post("/v1/session/codes", headers=headers)).json()["code"]
    path = f"/login{query}#code={code}"
    page = await visitor.open(path, scopes=None, ready=ROW, expect=["401"])
    assert page.url == f"{visitor.server.url}/"
    if query:
        return
    again = await visitor.open(path, scopes=None, ready="[role=alert]", expect=["401"])
    await expect(again.get_by_role("alert")).to_contain_text("login link was used")
    assert "code=" not in again.url


@pytest.mark.parametrize("scopes", [("runs:read",), ("runs:read", "bodies:read"), ("runs:read", "runs:write")])
async def test_what_a_token_does_not_allow_is_not_offered(visitor: Visitor, scopes: Sequence[Scope]) -> None:
    page = await visitor.open("/", scopes=scopes, ready=ROW)
    search = page.get_by_role("searchbox").first
    await (expect(search).to_be_enabled() if "bodies:read" in scopes else expect(search).to_be_disabled())
    await page.get_by_role("button", name="Actions for").first.click()
    disabled = {
        await item.inner_text()
        for item in await page.get_by_role("menuitem").all()
        if await item.get_attribute("aria-disabled") == "true"
    }
    names = {text.splitlines()[0] for text in disabled}
    assert "Delete…" in names
    assert ("Export…" in names) is ("bodies:read" not in scopes)
    assert ("Name and labels…" in names) is ("runs:write" not in scopes)
    assert "Verify…" not in names
