"""A made-up token of every family, planted in every position of an exchange, is in no byte of the spool.

`pytest tests/proxy/test_planted_secrets.py -s` prints how many leaked, by position.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

from calls.derive import derive_call
from store.database.connection import Database
from store.feed.consumer import ConsumerRunner
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.filters import Filters
from store.search.index import TextIndex
from store.search.lookup import TextLookup
from store.search.query import SearchQuery
from tests.calls.token_samples import FAMILIES, token
from tests.proxy.recording.open_recorder import open_recorder
from tests.store.running_store import PROFILES


def _pack_secret(secret: str) -> bytes:
    size = bytes([0xD9, len(secret)]) if len(secret) < 256 else b"\xda" + len(secret).to_bytes(2, "big")
    return b"\x81\xa7api_key" + size + secret.encode()


def _base64(secret: str) -> str:
    return base64.encodebytes(f"# settings\nKEY={secret}\nmore words here\n".encode()).decode()


BODIES: Mapping[str, Callable[[str], bytes]] = {
    "a member": lambda secret: json.dumps({"api_key": secret}).encode(),
    "a list": lambda secret: json.dumps({"api_keys": [secret]}).encode(),
    "a nested object": lambda secret: json.dumps({"credentials": {"aws": {"secret": secret}}}).encode(),
    "a name and a value": lambda secret: json.dumps([{"name": "API_KEY", "value": secret}]).encode(),
    "a header pair": lambda secret: json.dumps([["X-Api-Key", secret]]).encode(),
    "the text of a message": lambda secret: json.dumps({"content": f"my key is {secret} and that is it"}).encode(),
    "base64": lambda secret: json.dumps({"content": _base64(secret)}).encode(),
    "escapes of JSON": lambda secret: ('{"a": "' + "".join(f"\\u{ord(char):04x}" for char in secret) + '"}').encode(),
    "SQL": lambda secret: json.dumps({"q": f"UPDATE users SET api_key = '{secret}' WHERE id = 1"}).encode(),
    "an option": lambda secret: json.dumps({"command": f"tool --api-key {secret} --verbose"}).encode(),
    "MessagePack": _pack_secret,
    "multipart": lambda secret: (
        f'--x\r\nContent-Disposition: form-data; name="api_key"\r\n\r\n{secret}\r\n--x--'
    ).encode(),
    "a form": lambda secret: f"a=1&api_key={quote(secret, safe='')}&b=2".encode(),
    "the arguments of a tool": lambda secret: json.dumps({"arguments": json.dumps({"text": secret})}).encode(),
}


async def test_no_family_in_any_position_reaches_the_spool(tmp_path: Path) -> None:
    planted = {"a header": [], "the query": [], **{place: [] for place in BODIES}}  # type: ignore[var-annotated]
    for place, leaked in planted.items():
        with open_recorder(tmp_path / place) as at:
            for family in FAMILIES:
                one = at.begin(**_head(place, token(family)))
                one.record_data("request", BODIES[place](token(family)) if place in BODIES else b"", 5)
                one.record_end("request", 6, ())
                one.record_close(7, "client_closed")
                await one.wait_until_recorded()
        raw = at.raw()
        assert len(at.exchanges()) == len(FAMILIES)
        leaked += [family for family in FAMILIES if _is_in(token(family), raw)]

    for place, leaked in planted.items():
        print(f"{place:25} {len(leaked):3} of {len(FAMILIES)}  {', '.join(leaked)}")
    assert not any(planted.values()), planted


ASKED = "Where is the parcel of order 4711?"


async def test_a_redacted_secret_is_found_by_no_search(tmp_path: Path, database: Database) -> None:
    header, prompt, argument, answer = (token("OpenAI", seed) for seed in range(4))
    tool = {"id": "call_1", "type": "function", "function": {"name": "charge"}}
    tool["function"] |= {"arguments": json.dumps({"api_key": argument, "amount": 4712})}  # type: ignore[operator] # a dict
    said = {"role": "assistant", "content": f"I will use {answer} for order 4713.", "tool_calls": [tool]}
    result = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-5"}
    result |= {"choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}]}
    asked = [{"role": "user", "content": f"{ASKED} My key is {prompt} of course."}]
    request = {
        "model": "gpt-5",
        "messages": [*asked, said, {"role": "tool", "tool_call_id": "call_1", "content": prompt}],
    }
    headers = (("Content-Type", "application/json"), ("Authorization", f"Bearer {header}"), ("X-Api-Key", header))
    with open_recorder(tmp_path) as at:
        one = at.begin(headers=headers, url=f"https://api.openai.com/v1/chat/completions?api_key={header}")
        one.record_data("request", json.dumps(request).encode(), 1)
        one.record_end("request", 2, ())
        one.record_response_head(3, 200, "OK", "HTTP/1.1", (("Content-Type", "application/json"),))
        one.record_data("response", json.dumps(result).encode(), 4)
        one.record_end("response", 5, ())
        one.record_close(6, "completed")
        await one.wait_until_recorded()
    derive = partial(derive_call, profiles=PROFILES)
    stored = [DerivedExchange(exchange, derive(exchange)) for exchange in at.exchanges().values()]
    await BatchWriter(database).write_batch(stored)
    runner = ConsumerRunner(database, TextIndex(database, derive), FeedSignal())
    while await runner.process_new():
        pass

    async def is_found(words: str) -> bool:
        page = await TextLookup(database, "default").find_texts(SearchQuery.parse(words), Filters(), 10)
        return bool(page.texts)

    for around in (ASKED, "4712", "4713", "my key is", "for order"):
        assert await is_found(f'"{around}"'), "what is around a secret is found"
    for secret in (header, prompt, argument, answer):
        words = [word for word in re.split(r"[^A-Za-z0-9]+", secret) if len(word) > 5]
        beginnings = [word[:size] for word in words for size in (6, len(word) // 2)]
        assert words
        for part in (secret, *words, *(f"{beginning}*" for beginning in beginnings)):
            assert not await is_found(part), part


def _head(place: str, secret: str) -> dict[str, object]:
    url = "https://api.example/v1" + (f"?api_key={quote(secret, safe='')}" if place == "the query" else "")
    kinds = {"a form": "application/x-www-form-urlencoded", "MessagePack": "application/msgpack"}
    kind = kinds.get(place, "application/json")
    secrets = (("X-Api-Key", secret),) if place == "a header" else ()
    return {"url": url, "headers": (("Content-Type", kind), *secrets)}


def _is_in(secret: str, raw: bytes) -> bool:
    """Whether the secret is there, as it is or in base64 at any alignment."""
    forms = [secret.encode(), quote(secret, safe="").encode()]
    forms += ["".join(f"\\u{ord(char):04x}" for char in secret).encode()]
    for lead in range(3):
        encoded = base64.b64encode(b"x" * lead + secret.encode())
        forms.append(encoded[4:-4])
    flat = raw.replace(b"\\n", b"")
    return any(form in raw or form in flat for form in forms)
