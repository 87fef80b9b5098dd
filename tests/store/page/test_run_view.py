"""A run on one screen: its waterfall, its conversation, and stepping through both."""

import re
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from store.ingest.batch_writer import BatchWriter
from store.query.runs import Runs
from tests.store.page.browser import PageServer, Theme, Visitor, go, take_screenshot
from tests.store.page.seed import SECOND, Agent, refund_run, write
from tests.store.running_store import PROFILES
from tests.store.samples import NOON

pytestmark = pytest.mark.asyncio(loop_scope="session")


def writer(server: PageServer) -> BatchWriter:
    return BatchWriter(server.database, profile=PROFILES.digest, signal=server.running_store.signal)


async def query_of(page: Page) -> dict[str, str]:
    found: dict[str, str] = await page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    return found


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
async def test_a_run_says_what_it_did_what_it_cost_and_what_failed(visitor: Visitor, theme: Theme, width: int) -> None:
    page = await visitor.open("/runs/research-nordic", theme=theme, width=width)
    await expect(page.locator("h1")).to_have_text("Return policies of Nordic shops")
    await expect(page.locator(".stats")).to_contain_text("11")
    failure = page.locator(".note.bad").get_by_role("button")
    await expect(failure).to_have_text("step 7, POST /v2/search_web")
    await expect(page.locator(".note.bad")).to_contain_text("504: upstream search engine timed out")
    await expect(page.locator("[role=option]")).to_have_count(11)
    await expect(page.locator(".lane-label")).to_have_text(["lead", "researcher 1", "researcher 2", "researcher 3"])
    await failure.click()
    assert (await query_of(page))["step"] == "7"
    await expect(page.locator("#turn-7")).to_be_in_viewport()
    await expect(page.locator("#turn-7.is-selected")).to_contain_text("runs the tool call of step 4")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await take_screenshot(page, f"run-{theme}-{width}")


async def test_what_programs_got_from_elsewhere_is_between_the_steps(visitor: Visitor) -> None:
    page = await visitor.open("/runs/refund-4711")
    groups = page.locator(".effects summary")
    await expect(groups).to_have_text(
        [
            "6 effects: time.time ×5 · os.environ REGION",
            "1 effect: langgraph.node look up the order",
            "1 effect: uuid.uuid4",
        ]
    )
    await groups.nth(1).click()
    await expect(page.locator(".effects td")).to_have_text(
        [
            "langgraph.node",
            '{"input":"{\\"order\\": \\"A-10433\\"}","name":"look up the order"}',
            '{"found": true}',
            "graph.py:31",
            "main",
        ]
    )
    await take_screenshot(page, "run-effects")


async def test_only_what_is_new_is_shown_and_results_lead_to_the_prompts_that_used_them(visitor: Visitor) -> None:
    page = await visitor.open("/runs/refund-4711")
    turn = page.locator("#turn-3")
    await expect(turn.locator(".prompt-head")).to_contain_text("+2 messages after 2 of step 1")
    await expect(turn.locator(".is-echo")).to_contain_text("the answer of step 1, sent back")
    await expect(turn.locator(".tool-result")).to_contain_text("result of get_order")
    await expect(page.locator("#turn-5")).to_contain_text("2 attempts")
    await page.locator("#turn-1").get_by_role("button", name="result → prompt of step 3").click()
    assert (await query_of(page))["step"] == "3"
    await expect(page.locator("#turn-3.is-selected")).to_be_in_viewport()
    # An arrow leads from each of the three answers of tools to the prompt that used it, between the two.
    await expect(page.locator(".rail path.arrow")).to_have_count(3)
    await expect(page.locator(".rail path.arrow.is-selected")).to_have_count(1)
    arrow = await page.locator(".rail path.arrow.is-selected").bounding_box()
    result, used = [await page.locator(one).bounding_box() for one in ("#turn-2 .is-result", "#turn-3 .tool-result")]
    assert arrow is not None
    assert result is not None
    assert used is not None
    assert result["y"] < arrow["y"] + 1 < used["y"] < arrow["y"] + arrow["height"] + 1 < used["y"] + used["height"]
    await take_screenshot(page, "run-conversation-light")


async def test_a_run_is_forked_from_the_step_that_is_shown(visitor: Visitor) -> None:
    """With `fork_agent`, the page has the agent start it. What the store server does with the request is tested with its route."""
    page = await visitor.open("/", ready="table.run-table tbody tr", is_loaded=True)
    asked: list[Any] = []

    async def give_agent(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), "fork_agent": "http://127.0.0.1:9/start"})

    async def start_fork(route: Route) -> None:
        asked.append(route.request.post_data_json)
        await route.fulfill(status=201, json={"id": "fork-1", "agent": {"status": 202}})

    await page.route("**/v1/session", give_agent)
    await page.route("**/v1/runs/refund-4711/forks", start_fork)
    await page.goto(f"{visitor.server.url}/runs/refund-4711?step=3")
    await page.locator("#turn-3").get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog", name="Fork from a step")
    await expect(dialog).to_contain_text("playhead fork refund-4711 --after-step 3 -- python agent.py")
    await dialog.get_by_role("button", name="Start the fork there").click()
    await expect(dialog.get_by_role("link", name="Open the fork fork-1")).to_have_attribute("href", "/runs/fork-1")
    assert asked == [{"from": 3, "start": True}]
    await take_screenshot(page, "fork-light")


async def test_keys_step_through_the_run_and_open_its_calls(visitor: Visitor) -> None:
    page = await visitor.open("/runs/refund-4711", ready="#turn-8")
    for key, step in (("]", "1"), ("]", "2"), ("]", "3"), ("[", "2"), ("j", "3"), ("k", "2")):
        await page.keyboard.press(key)
        await page.locator(f"#turn-{step}.is-selected").wait_for()
        assert (await query_of(page))["step"] == step
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("2. POST /v2/get_order")
    # A call is shown before the steps around it are known.
    await expect(page.get_by_role("button", name="Next step")).to_be_enabled()
    await page.keyboard.press("]")
    await expect(page.locator("h1")).to_contain_text("3. gpt-5-mini")
    await page.keyboard.press("c")
    await expect(page.get_by_role("menuitem", name="curl")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await page.wait_for_url("**tab=json**")
    await page.locator(".json-row").first.wait_for()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search in the JSON")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("Escape")
    await page.locator("#turn-3.is-selected").wait_for()
    await page.keyboard.press("c")
    await expect(page.get_by_role("menuitem").first).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("v")
    await expect(page.locator("table.steps tbody tr")).to_have_count(7)
    await expect(page.locator("tr.is-selected")).to_contain_text("gpt-5-mini")
    await take_screenshot(page, "run-steps-light")


async def test_the_scrubber_shows_the_conversation_of_a_moment(visitor: Visitor) -> None:
    page = await visitor.open("/runs/refund-4711?t=2500", ready="#turn-3")
    await expect(page.locator(".turn")).to_have_count(3)
    await expect(page.locator("#turn-3 .waiting")).to_contain_text("waiting for the answer")
    await expect(page.locator(".later")).to_have_text("4 steps begin after this moment.")
    await expect(page.locator(".scrubber output")).to_have_text("2.50 s · 3/7 steps")
    await page.locator(".scrubber input").focus()
    await page.keyboard.press("Home")
    await expect(page.locator(".turn")).to_have_count(1)
    await page.wait_for_url(re.compile(r"[?&]t=0(&|$)"))
    await page.get_by_label("To the next event").click()
    await page.wait_for_url(re.compile(r"[?&]t=1900(&|$)"))
    await expect(page.locator("#turn-1 .is-answer")).to_contain_text("get_order")
    await page.keyboard.press("Escape")
    await expect(page.locator(".turn")).to_have_count(7)
    assert "t" not in await query_of(page)


async def test_a_part_of_the_waterfall_is_enlarged_by_drawing_over_it(visitor: Visitor) -> None:
    """Also where the run was shown before: it is drawn at once then, with all its parts."""
    page = await visitor.open("/runs/refund-4711", ready=".wf .step")
    await go(page, "/costs")
    await page.locator(".cost-table").wait_for()
    await go(page, "/runs/refund-4711")
    await page.locator(".wf .step").first.wait_for()
    box = await page.locator(".wf").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] * 0.25, y)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=4)
    await page.mouse.up()
    await page.locator(".mini-view").wait_for()
    start, end = map(float, (await query_of(page))["zoom"].split("-"))
    assert 2500 < start < 3700 < 5700 < end < 6900
    await page.keyboard.press("Escape")
    await expect(page.locator(".mini-view")).to_have_count(0)
    assert "zoom" not in await query_of(page)
    await page.mouse.move(box["x"] + 20, y)
    await expect(page.locator(".tip")).to_contain_text("to first byte")
    await page.mouse.click(box["x"] + 20, y)
    assert (await query_of(page))["step"] == "1"
    await take_screenshot(page, "run-tooltip-light")


async def test_what_was_not_recorded_and_what_broke_off_is_loud(visitor: Visitor) -> None:
    page = await visitor.open("/runs/weekly-report", theme="dark")
    await expect(page.locator(".note.bad").nth(1)).to_contain_text("2 × the spool was full")
    await expect(page.locator(".badges")).to_contain_text("2 not recorded")
    await expect(page.locator(".wf .gap")).to_have_count(1)
    await expect(page.locator("#turn-1")).to_contain_text("200 server closed")
    await take_screenshot(page, "run-broken-dark")


async def test_a_running_run_grows_before_the_eyes(visitor: Visitor, page_server: PageServer) -> None:
    exchanges = refund_run("live-run", NOON + 5000 * SECOND)
    await write(writer(page_server), exchanges[:2])
    page = await visitor.open("/runs/live-run", ready="#turn-2")
    await write(writer(page_server), exchanges[2:])
    page_server.running_store.signal.send()
    await page.locator("#turn-8").wait_for()
    await expect(page.locator("[role=option]")).to_have_count(7)
    await Runs(page_server.database).delete("live-run")


async def test_without_the_scope_no_text_is_shown(visitor: Visitor) -> None:
    page = await visitor.open("/runs/refund-4711", scopes=["runs:read"], ready="#turn-3 .prompt")
    await expect(page.locator("#turn-1 .withheld").first).to_contain_text("which this token may not read")
    assert "kettle (order" not in await page.inner_text("main")


async def test_a_run_of_hundreds_of_calls_is_a_small_document(visitor: Visitor, page_server: PageServer) -> None:
    """Steps that are too narrow for details are drawn together, and only the turns in sight are loaded."""
    agent = Agent("many-calls", NOON + 8000 * SECOND)
    for number in range(250):
        agent.messages = [{"role": "user", "content": f"order {number}"}]
        ids = agent.answer("", [("get_order", {"order_id": f"A-{number}"})], took=900)
        agent.tool(ids[0], "get_order", {"order_id": f"A-{number}"}, {"ok": number})
    await write(writer(page_server), agent.exchanges)
    page = await visitor.open("/runs/many-calls", ready="#turn-1")
    await expect(page.locator(".run-tabs")).to_contain_text("500")
    assert await page.locator(".wf *").count() < 150
    assert 30 < await page.locator(".turn").count() < 130
    await page.goto(f"{page_server.url}/runs/many-calls?step=400&zoom=203000-204000")
    await page.locator("#turn-400.is-selected").wait_for()
    await expect(page.locator("#turn-400")).to_be_in_viewport()
    assert await page.locator("[role=option]").count() < 10
    marks = await page.locator(".tick-label").all_text_contents()
    assert len(set(marks)) == len(marks) > 5
    await page.get_by_role("button", name="Show earlier steps").click()
    await page.locator("#turn-360").wait_for(state="attached")
    await take_screenshot(page, "run-many-light")
    await Runs(page_server.database).delete("many-calls")
