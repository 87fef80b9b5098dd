"""A store server with recorded runs and a real browser that looks at its page."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright
from playwright.async_api import expect as expect_shown

from store.access.api_tokens import SCOPES, ApiTokens, Scope
from store.database.connection import Database
from tests.store.house import House, open_house
from tests.store.page.seed import seed_runs
from tests.support.postgres import STORE_SERVER

CHROMIUM: Final = Path("/usr/bin/chromium")

FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--font-render-hinting=none"),
)

SCREENSHOTS: Final = "PLAYHEAD_SCREENSHOTS"
"""The environment variable with the folder for screenshots."""

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


@dataclass(frozen=True, kw_only=True)
class PageServer:
    """A running store server with the runs of `seed`."""

    url: str
    house: House
    database: Database
    tokens: ApiTokens
    now: Callable[[], int]

    def create_token(self, *scopes: Scope, project: str = "*") -> str:
        """Return a new token."""
        return self.tokens.create(os.urandom(6).hex(), project, scopes, self.now())[0]


@asynccontextmanager
async def serving_page(url: str, directory: Path, now: Callable[[], int]) -> AsyncIterator[PageServer]:
    """Serve the page with the runs of `seed`, whatever task leaves the block."""
    database = Database(url, STORE_SERVER)
    await database.prepare()
    tokens = ApiTokens(directory / "tokens.json")
    started: asyncio.Future[House] = asyncio.get_running_loop().create_future()
    stopping = asyncio.Event()

    async def serve() -> None:
        try:
            async with open_house(directory / "spool", database, tokens=[FULL_TOKEN], api_tokens=tokens) as house:
                started.set_result(house)
                await stopping.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    # Not a TaskGroup: a fixture is left in another task than it was entered in.
    serving = asyncio.get_running_loop().create_task(serve())
    try:
        house = await started
        await seed_runs(house, database)
        yield PageServer(
            url=str(house.api.base_url).rstrip("/"), house=house, database=database, tokens=tokens, now=now
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


@dataclass(kw_only=True)
class Visitor:
    """Opens pages of a server in a browser, and remembers what went wrong in them."""

    browser: Browser
    server: PageServer
    free: list[BrowserContext] = field(default_factory=list)
    """Empty profiles of earlier tests. An empty tab holds each one's copies of our code: to compile it takes a second."""
    contexts: list[BrowserContext] = field(default_factory=list)
    """Profiles of this test."""
    troubles: list[str] = field(default_factory=list)
    """Errors on the console, violations of the policy, dialogs, and requests to other hosts."""

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
    ) -> Page:
        """Open a path in an empty profile that is logged in with these scopes, or not at all; wait until `ready` is shown.

        Errors on the console that contain a text of `expect` are no trouble.
        """
        context = self.free.pop() if self.free else await self._make_context()
        self.contexts.append(context)
        if scopes is not None:
            token = FULL_TOKEN if scopes == SCOPES else self.server.create_token(*scopes)
            answer = await context.request.post(f"{self.server.url}/v1/session", data={"token": token})
            assert answer.status == 204, await answer.text()
        page = await context.new_page()
        await page.emulate_media(color_scheme=theme)
        await page.set_viewport_size({"width": width, "height": height})
        self._watch(page, expect)
        await page.goto(self.server.url + path)
        await page.locator(ready).first.wait_for()
        return page

    async def _make_context(self) -> BrowserContext:
        context = await self.browser.new_context(
            timezone_id="Europe/Stockholm", locale="en-GB", reduced_motion="reduce"
        )
        context.set_default_timeout(PATIENCE)
        await context.add_init_script(REPORT_VIOLATIONS)
        await context.new_page()
        return context

    def _watch(self, page: Page, expect: Sequence[str]) -> None:
        def note(kind: str, text: str, *, is_trouble: bool = True) -> None:
            if is_trouble and not any(one in text for one in expect):
                self.troubles.append(f"{kind}: {text[:500]}")

        def note_message(message: ConsoleMessage) -> None:
            note("console", message.text, is_trouble=message.type in ("error", "warning"))

        page.on("console", note_message)
        page.on("pageerror", lambda error: note("error", str(error.stack or error)))
        page.on("dialog", lambda dialog: note("dialog", dialog.message))
        page.on("request", lambda request: note("request", request.url, is_trouble=self._is_foreign(request.url)))

    def _is_foreign(self, url: str) -> bool:
        return not url.startswith((self.server.url, "data:", "blob:", "file:"))

    async def close(self) -> None:
        """Close all pages, and empty their profiles for the next test."""
        for context in self.contexts:
            if not context.pages:
                continue  # the test closed it
            empty, *pages = context.pages
            # First: a page that is still open would ask for something without a session.
            for page in pages:
                await page.close()
            session = await context.new_cdp_session(empty)
            await session.send("Storage.clearDataForOrigin", {"origin": self.server.url, "storageTypes": STORAGE})
            await session.detach()
            await context.clear_cookies()
            self.free.append(context)


async def take_screenshot(page: Page, name: str, *, full_page: bool = False) -> None:
    """Keep a picture of a page."""
    folder = Path(os.environ.get(SCREENSHOTS) or DEFAULT_FOLDER)
    await page.screenshot(path=folder / f"{name}.png", full_page=full_page)
