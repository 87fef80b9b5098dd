"""One store server and one browser for all tests of the page. Tests need `pytestmark = pytest.mark.asyncio(loop_scope="session")`."""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from store.embedded.postgres import EmbeddedServer
from tests.store.page.browser import CHROMIUM, PageServer, Visitor, running_browser, serving_page
from tests.support.postgres import fresh


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def page_server(
    postgres_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PageServer]:
    """A store server with the runs of `seed`. Tests that change runs make their own."""
    with fresh(postgres_server) as url:
        async with serving_page(url, tmp_path_factory.mktemp("page"), time.time_ns) as server:
            yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Debian's Chromium."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    async with running_browser() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: Browser, page_server: PageServer) -> AsyncIterator[Visitor]:
    """Opens pages. The test fails if anything went wrong in one."""
    visitor = Visitor(browser=browser, server=page_server)
    yield visitor
    await visitor.close()
    assert visitor.troubles == []
