"""Clients of WebSockets, run as a process of their own: `sockets.py WHAT,… [WORDS]` prints what they were told, as JSON."""

import asyncio
import base64
import json
import os
import ssl
import sys
import uuid
from contextlib import suppress
from typing import Any

import websockets
import websockets.sync.client

# A handshake waits for processes that share a busy machine: ten seconds, the default, are not always enough there.
for connect in (websockets.connect.__init__, websockets.sync.client.connect):
    assert connect.__kwdefaults__["open_timeout"] == 10
    connect.__kwdefaults__["open_timeout"] = 60

_connect = websockets.sync.client.connect


def _connect_again(*args: Any, **options: Any) -> websockets.sync.client.ClientConnection:
    """Connect; again where this client's two threads got in each other's way (https://github.com/python/cpython/issues/134698)."""
    for _ in range(3):
        with suppress(ssl.SSLError, TimeoutError):
            return _connect(*args, **{"open_timeout": 20, **options})
    return _connect(*args, **options)


websockets.sync.client.connect = _connect_again

HOST = "api.openai.com"
KEY = "sk-proj-" + "0123456789abcdefghijklmnopqrstuvwxyzABCD"


def realtime(words: str) -> list[Any]:
    """A turn of text, a tool, and a turn of sound in pieces of another size each time."""
    from openai import OpenAI

    messages: list[Any] = []
    with OpenAI(api_key=KEY).realtime.connect(model="gpt-realtime") as connection:
        messages.append(connection.recv().to_dict())
        connection.session.update(session={"type": "realtime", "instructions": words}, event_id=f"e_{uuid.uuid4()}")
        messages.append(connection.recv().to_dict())
        item_id = f"item_{uuid.uuid4().hex[:12]}"
        item = {"id": item_id, "type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        connection.conversation.item.create(item=item)  # type: ignore[arg-type] # as it is sent
        added = connection.recv().to_dict()
        assert added["item"]["id"] == item_id, (added, item_id)
        connection.response.create()
        messages += _until_done(connection)
        step = int(os.environ.get("STEP", "7"))
        sound = bytes(range(40))
        for start in range(0, len(sound), step):
            connection.input_audio_buffer.append(audio=base64.b64encode(sound[start : start + step]).decode())
        connection.input_audio_buffer.commit()
        connection.response.create()
        messages += _until_done(connection)
    return messages


def _until_done(connection: Any) -> list[Any]:
    messages = []
    while not messages or messages[-1]["type"] != "response.done":
        messages.append(connection.recv().to_dict())
    return messages


async def responses(words: str) -> list[Any]:
    """Two responses, one after another."""
    from openai import AsyncOpenAI

    messages: list[Any] = []
    async with AsyncOpenAI(api_key=KEY).responses.connect() as connection:
        for text in [words, "and then?"][: int(os.environ.get("ONLY", "2"))]:
            before = {"previous_response_id": messages[-1]["response"]["id"]} if messages else {}
            await connection.response.create(model="gpt-5", input=text, store=False, **before)
            async for event in connection:
                messages.append(event.to_dict())
                if event.type in ("response.completed", "error"):
                    break
    return messages


async def plain(words: str) -> list[Any]:
    """Text, binary, fragments, pings; then the server says goodbye."""
    messages: list[Any] = []
    async with websockets.connect(f"wss://{HOST}/echo", subprotocols=[websockets.Subprotocol("talk")]) as connection:
        assert connection.response is not None
        messages.append([connection.subprotocol, [type(one).__name__ for one in connection.protocol.extensions]])
        await connection.send(words)
        messages.append(await connection.recv())
        await connection.send([b"\x00\xff", b"in ", b"pieces"])
        messages.append(base64.b64encode(await connection.recv()).decode())  # type: ignore[arg-type] # it is bytes
        await (await connection.ping())
        await connection.send("bye")
        await connection.wait_closed()
        messages.append([connection.close_code, connection.close_reason])
    return messages


async def at_once(words: str) -> list[Any]:
    """Two equal openings at the same time, over which other things are said."""

    async def one(what: str) -> Any:
        async with websockets.connect(f"wss://{HOST}/echo") as connection:
            await connection.send(what)
            return await connection.recv()

    whom = ["first", "second"]
    if words == "turned":
        whom.reverse()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(what)) for what in whom]
    return sorted(task.result() for task in tasks)


async def live(words: str) -> list[Any]:
    """Gemini, by its SDK."""
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="AIzaSyA" + "0" * 32)
    config = types.LiveConnectConfig(response_modalities=[types.Modality.TEXT], system_instruction=words)
    async with client.aio.live.connect(model="gemini-live", config=config) as session:
        await session.send_client_content(turns=types.Content(role="user", parts=[types.Part(text="hi")]))
        return [message.model_dump(exclude_none=True, mode="json") async for message in session.receive()]


def main(what: str, words: str = "Be brief.") -> None:
    """Run some of them, one after the other."""
    known: Any = {"realtime": realtime, "responses": responses, "plain": plain, "at_once": at_once, "live": live}
    messages = []
    try:
        for name in what.split(","):
            heard = known[name](words)
            messages.append(asyncio.run(heard) if asyncio.iscoroutine(heard) else heard)
    except Exception as fault:  # noqa: BLE001 # whatever the SDKs make of it is what we want to see
        print(f"{type(fault).__name__}: {fault}", file=sys.stderr)
        sys.exit(3)
    print(json.dumps(messages))


if __name__ == "__main__":
    main(*sys.argv[1:])
