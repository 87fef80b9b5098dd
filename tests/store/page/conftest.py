"""One store server and one browser for all tests of the page. Tests need `pytestmark = pytest.mark.asyncio(loop_scope="session")`."""

import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from store.embedded.postgres import EmbeddedServer
from tests.store.page.browser import CHROMIUM, PageServer, Tab, Visitor, running_browser, serving_page
from tests.support.postgres import TEMPLATE, running_server, url


@pytest.fixture(scope="session")
def page_postgres() -> Iterator[EmbeddedServer]:
    """A Postgres of its own, because the connections of `page_server` stay open while other tests run."""
    with running_server() as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def page_server(
    page_postgres: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PageServer]:
    """A store server with the runs of `seed`. Tests that change runs make their own."""
    async with serving_page(url(page_postgres, TEMPLATE), tmp_path_factory.mktemp("page"), time.time_ns) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Debian's Chromium."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    async with running_browser() as running:
        yield running


@pytest.fixture(scope="session")
def tabs() -> list[Tab]:
    """The tabs of `browser` that show nothing."""
    return []


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: Browser, tabs: list[Tab], page_server: PageServer) -> AsyncIterator[Visitor]:
    """Opens pages. The test fails if anything went wrong in one."""
    visitor = Visitor(browser=browser, free=tabs, server=page_server)
    yield visitor
    assert await visitor.close() == []
