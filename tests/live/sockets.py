"""The upstream of WebSocket clients: OpenAI's Realtime and Responses, Gemini Live and an echo, over TLS, on a loop of its own."""

import asyncio
import base64
import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from websockets import Subprotocol
from websockets.asyncio.server import ServerConnection, serve


async def _realtime(connection: ServerConnection) -> None:
    number = itertools.count(1)

    async def say(kind: str, **more: Any) -> None:
        await connection.send(json.dumps({"type": kind, "event_id": f"event_{next(number)}", **more}))

    session = {"type": "realtime", "object": "realtime.session", "id": "sess_1", "model": "gpt-realtime-2025-08-28"}
    await say("session.created", session=session)
    turns = itertools.count(1)
    heard = b""
    async for data in connection:
        asked = json.loads(data)
        match asked["type"]:
            case "session.update":
                await say("session.updated", session=session | asked["session"])
            case "conversation.item.create":
                await say("conversation.item.added", previous_item_id=None, item=asked["item"])
            case "input_audio_buffer.append":
                heard += base64.b64decode(asked["audio"])
            case "input_audio_buffer.commit":
                await say("input_audio_buffer.committed", previous_item_id=None, item_id="item_sound")
            case "response.create":
                await _respond(say, next(turns), f"heard {len(heard)} bytes")


async def _respond(say: Callable[..., Any], turn: int, text: str) -> None:
    response = {"object": "realtime.response", "id": f"resp_{turn}", "status": "in_progress", "output": []}
    item = {"id": f"item_{turn}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    at = {"response_id": f"resp_{turn}", "item_id": f"item_{turn}", "output_index": 0, "content_index": 0}
    call = {"id": "item_call", "type": "function_call", "status": "completed", "name": "look", "call_id": "call_1"}
    call |= {"arguments": '{"at": "clock"}'}
    usage = {"total_tokens": 15, "input_tokens": 10, "output_tokens": 5, "input_token_details": {"cached_tokens": 2}}
    said = item | {"status": "completed", "content": [{"type": "output_text", "text": text}]}
    await say("response.created", response=response)
    await say("response.output_item.added", response_id=f"resp_{turn}", output_index=0, item=item)
    await say("response.content_part.added", **at, part={"type": "output_text", "text": ""})
    for piece in (text[:3], text[3:]):
        await say("response.output_text.delta", **at, delta=piece)
    await say("response.output_item.done", response_id=f"resp_{turn}", output_index=0, item=said)
    done = response | {"status": "completed", "output": [said, call], "usage": usage}
    await say("response.done", response=done)


async def _responses(connection: ServerConnection) -> None:
    turns = itertools.count(1)
    async for data in connection:
        asked = json.loads(data)
        turn = next(turns)
        response = {"id": f"resp_{turn}", "object": "response", "created_at": 1, "status": "in_progress", "output": []}
        response |= {"model": "gpt-5-2025", "previous_response_id": asked.get("previous_response_id")}
        part = {"type": "output_text", "text": f"answer {turn} to {asked['input']}", "annotations": []}
        item = {"id": f"msg_{turn}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
        whole = response | {"status": "completed", "output": [item], "usage": usage}
        await connection.send(json.dumps({"type": "response.created", "sequence_number": 0, "response": response}))
        await connection.send(json.dumps({"type": "response.completed", "sequence_number": 1, "response": whole}))


async def _live(connection: ServerConnection) -> None:
    async for data in connection:
        asked = json.loads(data)
        if "setup" in asked:
            await connection.send(json.dumps({"setupComplete": {"sessionId": "s1"}}).encode())
        else:
            for content in ({"modelTurn": {"parts": [{"text": "Hel"}]}}, {"modelTurn": {"parts": [{"text": "lo"}]}}):
                await connection.send(json.dumps({"serverContent": content}).encode())
            last = {"serverContent": {"turnComplete": True}, "usageMetadata": {"promptTokenCount": 4}}
            await connection.send(json.dumps(last).encode())


async def _echo(connection: ServerConnection) -> None:
    async for data in connection:
        if data == "bye":
            await connection.close(4001, "that was all")
            return
        await connection.send([data[:2], data[2:]])


async def _speak(connection: ServerConnection) -> None:
    assert connection.request is not None
    path = connection.request.path.partition("?")[0]
    speak = {"/v1/realtime": _realtime, "/v1/responses": _responses, "/echo": _echo}.get(path, _live)
    await speak(connection)


def _choose_protocol(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return offered[0] if offered else None


@contextmanager
def standing(context: ssl.SSLContext) -> Iterator[int]:
    """Its port, while it stands."""
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    found: dict[str, int] = {}

    async def main() -> None:
        async with serve(_speak, "127.0.0.1", 0, ssl=context, select_subprotocol=_choose_protocol) as server:
            found["port"] = next(iter(server.sockets)).getsockname()[1]
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield found["port"]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def origins(port: int) -> Mapping[str, str]:
    """Whom the worker contacts in place of the real ones."""
    return dict.fromkeys(("api.openai.com", "generativelanguage.googleapis.com"), f"https://127.0.0.1:{port}")
