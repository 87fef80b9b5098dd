"""Measure the web page in Chromium: the first paint of the list, a run of 500 calls, and a body of 5 MB.

    python -m bench.page [--runs 10000]

Prints the median of five visits of each, in milliseconds since the navigation began: the first paint of anything, and
the time when the content was shown (the rows of the list, the bars of the run, the text of the call). Then the longest
task of the page's thread, and the cumulative layout shift. The browser has cached the page's files.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from calls.model import Exchange
from store.embedded.postgres import ensure_server
from store.ingest.batch_writer import BatchWriter
from tests.store.page.browser import PageServer, Visitor, running_browser, serving_page
from tests.store.page.hostile import large_exchanges
from tests.store.page.seed import SECOND, Agent, derive_exchange, write
from tests.store.running_store import PROFILES
from tests.store.samples import NOON, uuid7
from tests.support.postgres import CARELESS, TEMPLATE, console, create, fresh, migrate, url

VISITS: Final = 5
BATCH: Final = 500

WATCH: Final = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
}).observe({type: "longtask", buffered: true});
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({type: "layout-shift", buffered: true});
new MutationObserver(() => {
  if (!window.shownAt && document.querySelector(window.READY)) requestAnimationFrame(() => { window.shownAt ||= performance.now(); });
}).observe(document, {childList: true, subtree: true});
"""


def long_run(run: str, calls: int) -> list[Exchange]:
    """Return a run of this many calls: a model and a tool alternate, in conversations of twenty."""
    exchanges: list[Exchange] = []
    at = NOON
    while len(exchanges) < calls:
        agent = Agent(run, at)
        agent.user("Look up the next orders.")
        for turn in range(10):
            ids = agent.answer(f"Order {turn}.", [("get_order", {"order_id": f"A-{len(exchanges)}-{turn}"})])
            agent.tool(ids[0], "get_order", {"order_id": f"A-{len(exchanges)}-{turn}"}, {"state": "sent"})
        exchanges += agent.exchanges
        at = agent.at
    return exchanges[:calls]


async def fill(server: PageServer, runs: int) -> dict[str, str]:
    """Record the runs that are shown; return the address of each page by its name."""
    writer = BatchWriter(server.database, profile=PROFILES.digest, signal=server.running_store.signal)
    agent = Agent("many-0", NOON)
    agent.user("Hello.")
    agent.answer("Hello, how can I help?", streamed=False)
    one = derive_exchange(agent.exchanges[0])
    for begin in range(0, runs, BATCH):
        batch = [
            replace(
                one,
                exchange=replace(
                    one.exchange,
                    run=f"many-{number}",
                    id=uuid7(NOON + number * SECOND, number),
                    started_at=NOON + number * SECOND,
                ),
            )
            for number in range(begin, min(runs, begin + BATCH))
        ]
        await writer.write_batch(batch)
    await write(writer, long_run("long", 500))
    large = large_exchanges("large")
    await write(writer, large)
    await server.running_store.followers.wait_until_caught_up()
    return {
        f"list of {runs:,} runs": "/",
        "run of 500 calls": "/runs/long",
        "call with 5 MB": f"/runs/large/calls/{large[0].id}",
    }


READY: Final = {
    "/": "table.run-table tbody tr",
    "/runs/long": ".waterfall .step",
    "/runs/large": ".msg .text",
}


async def measure(visitor: Visitor, path: str) -> tuple[float, float, float, float]:
    """Return the first paint, the time when the content was shown, the longest task, and the layout shift."""
    ready = next(selector for prefix, selector in reversed(READY.items()) if path.startswith(prefix))
    page = await visitor.open("/?project=nothing", ready=".empty")
    await page.context.add_init_script(f"window.READY = {json.dumps(ready)};{WATCH}")
    await page.goto(f"{visitor.server.url}{path}")
    # Not wait_for_function, which the policy of the page refuses.
    await page.locator(ready).first.wait_for(timeout=60_000)
    await page.wait_for_load_state("load")
    await page.evaluate("new Promise((done) => setTimeout(done, 300))")
    found: dict[str, Any] = await page.evaluate(
        "({paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime || 0, shown: window.shownAt, longest: window.longest, shifted: window.shifted})"
    )
    await page.context.close()
    visitor.tabs.clear()
    return found["paint"], found["shown"], found["longest"], found["shifted"]


async def run_benchmark(address: str, runs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with serving_page(address, Path(directory), time.time_ns) as server, running_browser() as browser:
            began = time.monotonic()
            pages = await fill(server, runs)
            print(f"recorded in {time.monotonic() - began:.0f} s")
            visitor = Visitor(browser=browser, server=server)
            print(f"{'page':24}{'first paint':>12}{'shown':>10}{'longest task':>14}{'moved':>8}")
            for name, path in pages.items():
                visits = [await measure(visitor, path) for _ in range(VISITS)]
                print(f"{name:24}" + _row([statistics.median(one) for one in zip(*visits, strict=True)]), flush=True)


def _row(values: Sequence[float]) -> str:
    return "".join(f"{value:{form}}" for value, form in zip(values, ("12.0f", "10.0f", "14.0f", "8.3f"), strict=True))


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    base.chmod(0o711)
    with ensure_server(base / "pg", CARELESS) as server, console(server):
        create(server, TEMPLATE)
        asyncio.run(migrate(url(server, TEMPLATE)))
        with fresh(server) as address:
            asyncio.run(run_benchmark(address, options.runs))


if __name__ == "__main__":
    main()
