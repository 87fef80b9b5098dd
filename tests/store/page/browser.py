"""A store server with recorded runs and a real browser that looks at its page."""

import asyncio
import os
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Browser, CDPSession, ConsoleMessage, Dialog, Page, Request, async_playwright
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import expect as expect_shown

from store.access.api_tokens import SCOPES, ApiTokens, Scope
from store.database.connection import Database
from tests.store.page.seed import seed_runs
from tests.store.running_store import RunningStore, open_store
from tests.support.postgres import STORE_SERVER

CHROMIUM: Final = Path("/usr/bin/chromium")

FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--font-render-hinting=none"),
)

SCREENSHOTS: Final = "PLAYHEAD_SCREENSHOTS"
"""The environment variable with the folder for screenshots. With it, tests make more than one of each page."""

PATIENCE: Final = 60_000
"""Milliseconds that a test waits for something to be shown. All cores may be busy."""

DEFAULT_FOLDER: Final = Path(__file__).parents[3] / ".pytest_cache" / "screenshots"
"""Where they are kept otherwise, as an artefact of the run: the next run replaces them."""

FULL_TOKEN: Final = "the-token-of-the-team"

STORAGE: Final = "local_storage,indexeddb,cache_storage,service_workers"
"""What our pages could leave behind in a profile, beside cookies."""

type Theme = Literal["light", "dark"]

REPORT_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber} ${event.sample}`));
"""

LEAD: Final = """
async (to) => {
  if (document.activeElement) document.activeElement.blur();
  scrollTo(0, 0);
  const [before] = document.querySelector("main").children;
  history.pushState(null, "", to);
  dispatchEvent(new Event("popstate"));
  while (before?.isConnected) await new Promise(requestAnimationFrame);
}
"""
"""Has a page show another address, until what it showed is removed."""

FORGET: Final = f"""
async (to) => {{
  if (!document.querySelector("main")?.childElementCount || document.title.startsWith("Log in")) return false;
  const lead = {LEAD};
  if (location.pathname !== "/none") await Promise.race([lead(to), new Promise((late) => setTimeout(late, 5_000))]);
  localStorage.clear();
  return location.pathname === "/none" && document.querySelector("main").innerText.startsWith("This did not work")
    && !document.querySelector("dialog") && document.documentElement.dataset.theme === undefined;
}}
"""
"""Leads a page to an address that shows nothing and asks for nothing; says whether nothing is left of what it showed."""

END_PAGE: Final = """
() => {
  stop();
  for (let timer = setTimeout(() => {}); timer > 0; timer--) clearTimeout(timer);
  document.open();
  document.close();
}
"""
"""Ends what a page asks for and waits for, and removes what it shows and listens to."""


@dataclass(frozen=True, kw_only=True)
class PageServer:
    """A running store server with the runs of `seed`."""

    url: str
    running_store: RunningStore
    database: Database
    tokens: ApiTokens
    now: Callable[[], int]

    def create_token(self, *scopes: Scope, project: str = "*") -> str:
        """Return a new token."""
        return self.tokens.create(os.urandom(6).hex(), project, scopes, self.now())[0]

    async def read_call_ids(self, run: str) -> list[str]:
        """Return the ids of a run's calls."""
        headers = {"authorization": f"Bearer {FULL_TOKEN}"}
        found = (await self.running_store.api.get(f"/v1/runs/{run}/calls", headers=headers)).json()
        return [one["id"] for one in found["items"]]


@asynccontextmanager
async def serving_page(url: str, directory: Path, now: Callable[[], int]) -> AsyncIterator[PageServer]:
    """Serve the page with the runs of `seed`, whatever task leaves the block."""
    database = Database(url, STORE_SERVER)
    await database.prepare()
    tokens = ApiTokens(directory / "tokens.json")
    started: asyncio.Future[RunningStore] = asyncio.get_running_loop().create_future()
    stopping = asyncio.Event()

    async def serve() -> None:
        try:
            async with open_store(
                directory / "spool", database, tokens=[FULL_TOKEN], api_tokens=tokens
            ) as running_store:
                started.set_result(running_store)
                await stopping.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    # Not a TaskGroup: a fixture is left in another task than it was entered in.
    serving = asyncio.get_running_loop().create_task(serve())
    try:
        running_store = await started
        await seed_runs(running_store, database)
        yield PageServer(
            url=str(running_store.api.base_url).rstrip("/"),
            running_store=running_store,
            database=database,
            tokens=tokens,
            now=now,
        )
    finally:
        stopping.set()
        await serving
        await database.close()


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Debian's Chromium, without a window."""
    expect_shown.set_options(timeout=PATIENCE)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        await browser.close()


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a page knows from its beginning: the project of its address."""

    project: str | None

    @classmethod
    def of(cls, path: str) -> Self:
        """Of a path with its query."""
        return cls(project=parse_qs(urlsplit(path).query).get("project", [None])[0])

    def address_of(self, path: str) -> str:
        """Return a path in this project."""
        return path if self.project is None else f"{path}?project={self.project}"


class Tab:
    """A tab with a profile of its own, for one test after another: our scripts need not be compiled again for each.

    If it is logged in with all scopes, the page in it stays for tests in the same project, which lead it to their addresses: to load
    it takes twice the time.
    """

    def __init__(self, page: Page, devtools: CDPSession) -> None:
        self.page = page
        self.troubles: list[str] = []
        """Errors on the console, violations of the policy, dialogs, and requests to other hosts."""
        self.addresses: list[str] = []
        """The addresses of all requests."""
        self.place: Place | None = None
        """Whose page is loaded, if it can show another address for the next test."""
        self._devtools = devtools
        self._origin = ""
        self._expected: Sequence[str] = ()
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self._note("error", str(error.stack or error)))
        page.on("dialog", self._note_dialog)
        page.on("request", self._note_request)

    @classmethod
    async def make(cls, browser: Browser) -> Self:
        """Open one."""
        context = await browser.new_context(timezone_id="Europe/Stockholm", locale="en-GB", reduced_motion="reduce")
        context.set_default_timeout(PATIENCE)
        await context.add_init_script(REPORT_VIOLATIONS)
        page = await context.new_page()
        return cls(page, await context.new_cdp_session(page))

    def take(self, origin: str, expected: Sequence[str]) -> None:
        """Begin a test: errors on the console that contain a text of `expected` are no trouble."""
        self._origin, self._expected = origin, expected
        self.troubles, self.addresses = [], []

    async def empty(self) -> bool:
        """Remove what a test has left; return False if it closed the tab."""
        context = self.page.context
        for other in context.pages:
            if other is not self.page:
                await other.close()
        if self.page.is_closed():
            await context.close()
            return False
        await self.page.unroute_all()
        if self.place is not None and await self._forget(self.place):
            return True
        await self.end()
        return True

    async def _forget(self, place: Place) -> bool:
        await self.page.mouse.move(0, 0)
        try:
            return bool(await self.page.evaluate(FORGET, place.address_of("/none")))
        except PlaywrightError:
            # It is on its way to another document.
            return False

    async def end(self) -> None:
        """End the page, and remove all that is left of it."""
        self.place = None
        # First: a page that is still shown would ask for something without a session. To go to another document instead takes
        # half as long as to open a page.
        await self._run_scripts(allowed=False)
        await self.page.evaluate(END_PAGE)
        await self.page.mouse.move(0, 0)
        await self._devtools.send("Storage.clearDataForOrigin", {"origin": self._origin, "storageTypes": STORAGE})
        await self.page.context.clear_cookies()

    async def show(self, path: str, theme: Theme, width: int, height: int) -> None:
        """Show an address in place of what an earlier test has left."""
        await self.page.emulate_media(color_scheme=theme)
        if self.page.viewport_size != {"width": width, "height": height}:
            await self.page.set_viewport_size({"width": width, "height": height})
        if self.place is not None:
            await self.page.evaluate(LEAD, path)
        else:
            await self._run_scripts(allowed=True)
            await self.page.goto(self._origin + path)

    async def _run_scripts(self, *, allowed: bool) -> None:
        """The developer tools run theirs in any case."""
        await self._devtools.send("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def _note(self, kind: str, text: str) -> None:
        if not any(one in text for one in self._expected):
            self.troubles.append(f"{kind}: {text[:500]}")

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note("console", message.text)

    async def _note_dialog(self, dialog: Dialog) -> None:
        self._note("dialog", dialog.message)
        await dialog.dismiss()

    def _note_request(self, request: Request) -> None:
        self.addresses.append(request.url)
        if not request.url.startswith((self._origin, "data:", "blob:", "file:")):
            self._note("request", request.url)


@dataclass(kw_only=True)
class Visitor:
    """Opens pages of a server in a browser, and remembers what went wrong in them."""

    browser: Browser
    server: PageServer
    free: list[Tab] = field(default_factory=list)
    """Tabs of earlier tests, which show nothing."""
    tabs: list[Tab] = field(default_factory=list)
    """Those of this test."""

    async def open(
        self,
        path: str = "/",
        *,
        theme: Theme = "light",
        width: int = 1280,
        height: int = 860,
        scopes: Sequence[Scope] | None = SCOPES,
        ready: str = "main h1",
        expect: Sequence[str] = (),
        is_loaded: bool = False,
    ) -> Page:
        """Open a path in a profile that is logged in with these scopes, or not at all; wait until `ready` is shown.

        Errors on the console that contain a text of `expect` are no trouble. A test that changes its tab for good, as an
        init script does, closes it. With `is_loaded` the page is loaded for this test alone, into an empty profile: for tests of how
        it is loaded, and for those that change what it knows for good.
        """
        place = Place.of(path) if scopes == SCOPES and not is_loaded else None
        tab = await self._take_tab(place)
        self.tabs.append(tab)
        tab.take(self.server.url, expect)
        page = tab.page
        if scopes is not None and tab.place is None:
            token = FULL_TOKEN if scopes == SCOPES else self.server.create_token(*scopes)
            answer = await page.context.request.post(f"{self.server.url}/v1/session", data={"token": token})
            assert answer.status == 204, await answer.text()
        await tab.show(path, theme, width, height)
        tab.place = place
        await page.locator(ready).first.wait_for()
        return page

    async def _take_tab(self, place: Place | None) -> Tab:
        """Take one with this page, or an empty one."""
        for tab in sorted(self.free, key=lambda one: (one.place != place, one.place is not None)):
            self.free.remove(tab)
            if tab.place is not None and tab.place != place:
                await tab.end()
            return tab
        return await Tab.make(self.browser)

    def addresses_asked(self, page: Page) -> list[str]:
        """What this page has asked the server for."""
        return [
            address.removeprefix(self.server.url) for tab in self.tabs if tab.page is page for address in tab.addresses
        ]

    async def close(self) -> list[str]:
        """Empty the tabs for the next test, and return what went wrong in them."""
        self.free += [tab for tab in self.tabs if await tab.empty()]
        return [trouble for tab in self.tabs for trouble in tab.troubles]


async def go(page: Page, address: str) -> None:
    """Have a page show another address as its own links do: to load it again takes twice the time."""
    await page.evaluate("(to) => { history.pushState(null, '', to); dispatchEvent(new Event('popstate')); }", address)


async def take_screenshot(page: Page, name: str, *, is_kept: bool = False) -> None:
    """Keep a picture of a page, if somebody asked for a folder of them. A few are kept in any case, as artefacts of the run."""
    if folder := os.environ.get(SCREENSHOTS) or (DEFAULT_FOLDER if is_kept else None):
        file = Path(folder) / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        # To compress it well, as `page.screenshot` does, takes as long again as to make it.
        devtools = await page.context.new_cdp_session(page)
        taken = await devtools.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        await devtools.detach()
        file.write_bytes(b64decode(taken["data"]))
