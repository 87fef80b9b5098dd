"""A run that is a file, as one HTML page without a network and from `playhead view`, in a real browser."""

import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, Page, expect

from calls.events import Gap
from calls.model import Body, Exchange, Request, Response
from calls.redaction.redactor import Redactor
from proxy.commands.view import FileServer
from proxy.worker.recordings import load_file
from store.bundle.bundle import Bundle, Entry
from store.foreign.write import Export
from store.page.assets import load_assets
from store.page.single_file import UnknownModuleForm, join_modules, write_single_file
from store.recorded_file.documents import FileDocuments
from store.recorded_file.embedding import embed_documents, encode_document
from tests.store.page.browser import REPORT_VIOLATIONS, Theme, take_screenshot
from tests.store.page.seed import MODEL_URL, REFUND_EFFECTS, SECOND, Agent, observed_effects, refund_run
from tests.store.running_store import PROFILES
from tests.store.samples import NOON, uuid7

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = (
    "</script><script>window.ran=1</script><!--<script> <img src=x onerror=window.ran=1> <svg onload=window.ran=1>"
    " javascript:window.ran=1 \u202egnp.exe\u2066 \x00\x1b[31m __proto__ constructor &lt; ![x](http://evil.example/?q=)"
)
THEMES: tuple[Theme, ...] = ("light", "dark")
LONG = "a" * (5 << 20)


def hostile_run() -> Bundle:
    """A run with hostile texts in every place that a client or a server fills."""

    def exchange(number: int, content: str, answer: bytes, kind: str = "application/json") -> Exchange:
        data = json.dumps(
            {"model": HOSTILE, HOSTILE: HOSTILE, "messages": [{"role": "user", "content": content}]}
        ).encode()
        return Exchange(
            id=uuid7(NOON + number, number),
            run="hostile",
            request=Request(
                method="POST",
                url=f"{MODEL_URL}?x=%3Cscript%3E</script>",
                headers=(("X-Evil", "</script><script>window.ran=1</script>"), ("content-type", "application/json")),
                body=Body(data=data, size=len(data)),
            ),
            response=Response(
                status=200,
                headers=(("content-type", kind), ("x-evil", "<b>")),
                body=Body(data=answer, size=len(answer)),
            ),
            outcome="completed",
            started_at=NOON + number * 1_000_000,
            first_byte_at=100_000,
            ended_at=200_000,
            actor=HOSTILE[:60],
            error=HOSTILE,
        )

    said = {
        "id": "x",
        "object": "chat.completion",
        "model": HOSTILE,
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": HOSTILE,
                    "tool_calls": [
                        {"id": HOSTILE, "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
                    ],
                },
            }
        ],
    }
    entries = [
        exchange(1, HOSTILE, json.dumps(said).encode()),
        exchange(2, LONG, json.dumps(said).encode()),
        exchange(3, "broken", b"\xff\xfe\xc3(<script>window.ran=1</script>\x00", "text/html"),
    ]
    return Bundle(
        run={"id": "hostile", "name": HOSTILE, "labels": {HOSTILE: HOSTILE}},
        profiles=PROFILES.digest,
        entries=[Entry(exchange=one) for one in entries],
        gaps=(Gap("hostile", NOON, HOSTILE),),
    )


def good_run() -> Bundle:
    entries = [Entry(exchange=one) for one in refund_run("refund-4711", NOON)]
    return Bundle(run={"id": "refund-4711", "name": "Refund for a cracked kettle"}, profiles="", entries=entries)


def written_page(bundle: Bundle, path: Path) -> Path:
    found = embed_documents(FileDocuments(bundle, PROFILES, str))
    documents = {"left-out": encode_document(found.left_out).decode(), **found.documents}
    path.write_bytes(write_single_file(load_assets(), documents, HOSTILE))
    return path


@asynccontextmanager
async def guarded_page(browser: Browser, *allowed: str, theme: Theme = "light") -> AsyncIterator[Page]:
    """A page that must run no foreign script, and ask nobody but those `allowed`."""
    context = await browser.new_context(
        viewport={"width": 1280, "height": 860},
        color_scheme=theme,
        reduced_motion="reduce",
        offline=allowed[0].startswith("file:"),
    )
    context.set_default_timeout(20_000)
    await context.add_init_script(REPORT_VIOLATIONS)
    page = await context.new_page()
    troubles: list[str] = []
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error.stack or error)))
    page.on("dialog", lambda dialog: troubles.append(dialog.message))
    page.on("request", lambda one: troubles.append(one.url) if not one.url.startswith((*allowed, "data:")) else None)
    yield page
    assert await page.evaluate("window.ran") is None
    assert troubles == []
    await context.close()


@contextmanager
def serving_file(bundle: Bundle) -> Iterator[FileServer]:
    """Serve a file as `playhead view` does."""
    server = FileServer(0, FileDocuments(bundle, PROFILES, str))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    with serving_file(good_run()) as server:
        yield server


def long_bundle() -> Bundle:
    """A run of 600 calls, and one with a line of 5 MB."""
    agent = Agent("long", NOON)
    agent.user("Hello.")
    agent.answer("Hello, how can I help?", streamed=False)
    one = agent.exchanges[0]
    many = [replace(one, id=uuid7(NOON + n * SECOND, n), started_at=NOON + n * SECOND) for n in range(600)]
    large = hostile_run().entries[1].exchange
    at = NOON + 600 * SECOND
    last = replace(large, run="long", id=uuid7(at, 600), started_at=at)
    return Bundle(run={"id": "long"}, profiles="", entries=[Entry(exchange=each) for each in (*many, last)])


async def test_view_shows_cassettes_archives_and_large_bundles(browser: Browser, tmp_path: Path) -> None:
    exchanges = refund_run("refund-4711", NOON)
    redactor = Redactor(key=b"k" * 32, profiles=PROFILES)
    entries = [Entry(exchange=one) for one in exchanges]
    files = {"refund.yaml": Export().vcr(entries), "refund.har": Export().har(entries, "0")}
    with ExitStack() as stack:
        servers = []
        for name, pieces in files.items():
            (tmp_path / name).write_bytes(b"".join(pieces))
            servers.append(stack.enter_context(serving_file(load_file(tmp_path / name, redactor, PROFILES))))
        large = stack.enter_context(serving_file(long_bundle()))
        origins = [f"http://127.0.0.1:{server.server_port}" for server in (*servers, large)]
        async with guarded_page(browser, *origins) as page:
            for server in servers:
                await page.goto(server.address)
                await page.get_by_text("kettle (order A-10432)").first.wait_for()
                assert await page.locator("[role=option]").count() >= 7, server.address
                assert await page.evaluate("window.ran") is None
            await page.goto(large.address)
            await page.locator("#turn-1").wait_for()
            await page.get_by_text("601", exact=True).first.wait_for()
            await page.keyboard.press("[")
            await page.locator("#turn-601.is-selected").wait_for()
            await page.keyboard.press("Enter")
            await page.locator(".call-talk .cut-note").first.wait_for()
            assert await page.evaluate("document.querySelectorAll('*').length") < 3_000


async def walk(page: Page, start: str) -> None:
    """Open the run and each tab of each of its calls."""
    await page.goto(start)
    await page.locator("main h1").first.wait_for()
    addresses = await page.evaluate("Object.keys(JSON.parse(document.getElementById('document').textContent))")
    calls = [one for one in addresses if re.fullmatch(r"/v1/calls/[0-9a-f-]+", one)]
    assert calls
    for call in calls:
        await page.goto(f"{start}#/runs/hostile/calls/{call.removeprefix('/v1/calls/')}?tab=json")
        await page.get_by_role("tab", name="Bytes").wait_for()
        for tab in await page.get_by_role("tab").all():
            await tab.click()
            await page.locator("[role=tab][aria-selected=true]").first.wait_for()


async def test_a_page_in_one_file_shows_the_run_offline(browser: Browser, tmp_path: Path) -> None:
    file = written_page(good_run(), tmp_path / "run.html")
    async with guarded_page(browser, "file:") as page:
        for theme in THEMES:
            await page.emulate_media(color_scheme=theme)
            await page.goto(file.as_uri())
            await page.get_by_text("Refund for a cracked kettle", exact=True).first.wait_for()
            await page.get_by_text("kettle (order A-10432)").first.wait_for()
            await take_screenshot(page, f"file-run-{theme}")
        await page.keyboard.press("]")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/calls/**")
        await page.get_by_role("tab").first.wait_for()
        await page.get_by_role("button", name="Copy as a command").click()
        await page.get_by_role("menuitem", name="curl").click()
        assert "curl" in await page.get_by_role("region", name="The copy").inner_text()
        await take_screenshot(page, "file-call-dark")


async def test_hostile_texts_in_a_file_are_texts_and_what_is_too_large_for_it_is_named(
    browser: Browser, tmp_path: Path
) -> None:
    file = written_page(hostile_run(), tmp_path / "hostile.html")
    raw = file.read_bytes()
    assert raw.count(b"</script") == 3, "one for each of the page's own elements"
    assert b"<!--" not in raw
    assert len(raw) < 8 << 20
    async with guarded_page(browser, "file:") as page:
        await walk(page, file.as_uri())
        await page.goto(f"{file.as_uri()}#/runs/hostile")
        await page.locator("main h1").first.wait_for()
        assert "<script>" in await page.locator("main").inner_text()
        await take_screenshot(page, "file-hostile")
        left = json.loads(raw.decode().split('"left-out":')[1].split("}")[0] + "}")
        call = next(name for name in left if name.startswith("/v1/calls/") and name.count("/") == 3)
        await page.goto(f"{file.as_uri()}#/runs/hostile/calls/{call.removeprefix('/v1/calls/')}?tab=json")
        await page.get_by_text("it was left out").first.wait_for()


async def test_a_run_without_calls_shows_what_its_programs_got(browser: Browser, tmp_path: Path) -> None:
    effects = observed_effects("refund-4711", NOON, REFUND_EFFECTS)
    found = written_page(Bundle(run={"id": "refund-4711"}, profiles="", effects=(effects,)), tmp_path / "run.html")
    async with guarded_page(browser, found.as_uri()) as page:
        await page.goto(found.as_uri())
        await page.locator(".effects summary").first.click()
        await expect(page.locator(".effects td").first).to_have_text("time.time ×5")
        await expect(page.locator("main")).to_contain_text("No calls yet")


async def test_view_serves_the_same_page_to_its_user_only(browser: Browser, file_server: FileServer) -> None:
    origin = f"http://127.0.0.1:{file_server.server_port}"
    async with guarded_page(browser, origin, theme="dark") as page:
        await page.goto(file_server.address)
        await page.get_by_text("Refund for a cracked kettle", exact=True).first.wait_for()
        assert "key=" not in page.url
        await take_screenshot(page, "view-dark")
        answer = await page.request.get(f"{origin}/v1/runs/refund-4711/timeline")
        assert answer.status == 200
    bare = await browser.new_context()
    for path in ("/", "/v1/runs", "/assets/app.js", "/?key=wrong"):
        assert (await bare.request.get(origin + path)).status == 401
    assert (await bare.request.get(f"{origin}/", headers={"host": "evil.example"})).status == 403
    await bare.close()


async def test_every_module_of_the_page_can_be_joined() -> None:
    assets = load_assets()
    views = [name for name in assets.files if name.startswith("views/")]
    script = join_modules(assets, views=views)
    assert all(
        f'__modules["{name}"] = ' in script
        for name in assets.files
        if name.startswith(("views/", "core/")) and name != "core/theme.js"
    )


@pytest.mark.parametrize(
    "line", ['import x from "./y.js";', 'import * as x from "./y.js";', "export default 3;", "export var x = 1;"]
)
async def test_a_module_of_another_form_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "app.js").write_text(line)
    with pytest.raises(UnknownModuleForm):
        join_modules(load_assets(tmp_path), views=())
