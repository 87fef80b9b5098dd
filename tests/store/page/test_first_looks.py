"""What the page asks for at first is small: short calls, ranges of bodies, parts of long runs; and what it says of a proof is true."""

import json

import pytest
from msgspec.structs import replace
from playwright.async_api import Route, expect

from calls.model import Exchange
from store.ingest.batch_writer import BatchWriter
from store.query.runs import Runs
from store.timeline.timeline import MOST_STEPS
from tests.store.page.browser import FULL_TOKEN, PageServer, Visitor, go
from tests.store.page.seed import MS, SECOND, Agent, derive_exchange, write
from tests.store.running_store import PROFILES, RunningStore
from tests.store.samples import NOON, uuid7

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEADERS = {"authorization": f"Bearer {FULL_TOKEN}"}


def writer(server: PageServer) -> BatchWriter:
    return BatchWriter(server.database, profile=PROFILES.digest, signal=server.running_store.signal)


def api(server: PageServer) -> RunningStore:
    server.running_store.api.headers.update(HEADERS)
    return server.running_store


async def test_a_short_call_has_what_was_said_and_not_what_was_sent(page_server: PageServer) -> None:
    agent = Agent("short-call", NOON + 11_000 * SECOND)
    agent.user("é" * 100_000)
    agent.answer("Yes.", [("look", {"for": str(number)}) for number in range(200)])
    await write(writer(page_server), agent.exchanges)
    running_store, call = api(page_server), agent.exchanges[0].id
    whole = (await running_store.api.get(f"/v1/calls/{call}")).json()
    short = (await running_store.api.get(f"/v1/calls/{call}?content=short")).json()
    said = short["said"]
    assert (short["request"], short["answer"], len(short["tool_calls"])) == (None, None, 100)
    part = said["prompt"]["messages"][-1]["parts"][0]
    assert (part["text"], part["size"], part["cut"]) == ("é" * (64 << 10), 100_000, True)
    assert (said["answer"]["text"]["text"], said["answer"]["tool_calls_left_out"]) == ("Yes.", 100)
    assert whole.keys() == short.keys() - {"said"}
    blind = {"authorization": f"Bearer {page_server.create_token('runs:read')}"}
    withheld = (await running_store.api.get(f"/v1/calls/{call}?content=short", headers=blind)).text
    assert "é" not in withheld
    assert "Yes." not in withheld
    await Runs(page_server.database).delete("short-call")


async def test_a_part_of_a_body_is_answered_by_its_range(page_server: PageServer) -> None:
    running_store = api(page_server)
    calls = (await running_store.api.get("/v1/runs/refund-4711/calls")).json()["items"]
    path = f"/v1/exchanges/{calls[0]['exchanges'][0]}/request"
    whole = (await running_store.api.get(path)).content
    for wanted, part in (("bytes=0-9", whole[:10]), ("bytes=5-5", whole[5:6]), ("bytes=10-999999", whole[10:])):
        answer = await running_store.api.get(path, headers={"range": wanted})
        first = int(wanted[6:].partition("-")[0])
        assert (answer.status_code, answer.content) == (206, part)
        assert answer.headers["content-range"] == f"bytes {first}-{first + len(part) - 1}/{len(whole)}"
    for wanted in ("bytes=-5", "bytes=3-1", "bytes=0-1,3-4", "lines=0-1", "bytes=٣-٤"):
        answer = await running_store.api.get(path, headers={b"range": wanted.encode()})
        assert (answer.status_code, answer.content) == (200, whole)
    beyond = await running_store.api.get(path, headers={"range": f"bytes={len(whole)}-{len(whole) + 1}"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(whole)}")


def copies(exchange: Exchange, run: str, number: int) -> list[Exchange]:
    at = NOON + 12_000 * SECOND
    return [
        replace(exchange, run=run, id=uuid7(at + place * 100 * MS, 9_000_000 + place), started_at=at + place * 100 * MS)
        for place in range(number)
    ]


async def test_every_step_of_a_long_run_is_in_one_part_of_its_timeline(
    visitor: Visitor, page_server: PageServer
) -> None:
    """The sums go on from part to part, and no step is left out or twice in it. The page has buttons that lead from part to part."""
    agent = Agent("one", NOON)
    agent.user("Hello.")
    agent.answer("Hello, how can I help?", streamed=False)
    steps = 2 * MOST_STEPS + 20
    exchanges = copies(agent.exchanges[0], "many-steps", steps)
    one = derive_exchange(exchanges[0])
    await writer(page_server).write_batch([replace(one, exchange=exchange) for exchange in exchanges])
    running_store, sums = api(page_server), [0.0]
    after: int | None = 0
    seen: list[int] = []
    while after is not None:
        query = {"after": after, "limit": MOST_STEPS}
        part = (await running_store.api.get("/v1/runs/many-steps/timeline", params=query)).json()
        assert part["steps_before"] == len(seen)
        assert part["steps_left_out"] == steps - len(seen) - len(part["steps"])
        for step in part["steps"]:
            sums.append(step["cost_so_far_usd"])
            assert sums[-1] == pytest.approx(sums[-2] + step["cost_usd"])
        seen += [step["step"] for step in part["steps"]]
        after = part["next"]
    assert seen == list(range(1, steps + 1))
    said = (await running_store.api.get("/v1/runs/many-steps/conversation", params={"after": steps - 2})).json()
    assert ([item["step"] for item in said["items"]], said["next"]) == ([steps - 1, steps], None)
    assert said["items"][0]["prompt"]["messages"] == []
    page = await visitor.open("/runs/many-steps?step=2001", ready="#turn-2001.is-selected")
    parts = page.get_by_text("of a long run").first
    await expect(parts).to_contain_text(
        f"Steps 2,001 to 4,000 of a long run: 2,000 calls are before, {steps - 4000} after them"
    )
    await page.get_by_role("button", name="Later steps").click()
    await expect(parts).to_contain_text("Steps 4,001 to 4,020")
    assert page.url.endswith("?from=4000")
    await expect(page.get_by_role("button", name="Later steps")).to_be_disabled()
    await page.get_by_role("button", name="Earlier steps").click()
    await expect(parts).to_contain_text("Steps 2,001 to 4,000")
    await page.go_back()
    await expect(parts).to_contain_text("Steps 4,001 to 4,020")
    await Runs(page_server.database).delete("many-steps")


async def test_marks_say_what_is_sealed_and_what_was_verified(page_server: PageServer) -> None:
    running_store = api(page_server)
    marks = {
        one["run"]: one["proof"]
        for one in (await running_store.api.get("/v1/marks?run=refund-4711&run=nothing")).json()["items"]
    }
    # The runs of the tests are stored without a store server that proves: nothing may be claimed of them.
    assert marks["nothing"] is None
    assert marks["refund-4711"] is None or marks["refund-4711"]["verified"] is None


async def test_a_page_that_was_opened_while_the_store_was_away_mends_itself(visitor: Visitor) -> None:
    page = await visitor.open(expect=["Failed to load resource", "ERR_FAILED", "Failed to fetch"], is_loaded=True)
    await page.clock.install()

    async def fail(route: Route) -> None:
        problem = {"title": "Service Unavailable", "status": 503, "detail": "the database does not answer"}
        await route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))

    await page.route("**/v1/**", fail)
    await go(page, "/runs/refund-4711")
    await expect(page.locator(".note.bad h1")).to_be_visible()
    await page.unroute("**/v1/**")
    await page.clock.run_for(3_500)
    await expect(page.locator("main h1")).to_have_text("Refund for a cracked kettle")
    await expect(page.locator(".note.bad")).to_have_count(0)

    await page.route("**/v1/events*", fail)
    await go(page, "/")
    await expect(page.locator("main .closed")).to_have_text("Not live")
    await page.unroute("**/v1/events*")
    await page.clock.run_for(6_000)
    await expect(page.locator("main .live.live[role=status]")).to_have_text("Live")
    await page.close()  # its clock is another one


async def test_a_view_that_could_not_be_loaded_is_loaded_when_the_store_is_back(visitor: Visitor) -> None:
    page = await visitor.open(expect=["Failed to load resource", "ERR_FAILED", "Failed to fetch"], is_loaded=True)
    await page.route("**/views/costs.js", lambda route: route.abort())
    await go(page, "/costs")
    await expect(page.locator(".note.bad h1")).to_be_visible()
    await page.unroute("**/views/costs.js")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator("main h1")).to_have_text("Costs")
