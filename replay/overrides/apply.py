"""Apply an override to a recorded exchange: the same exchange with another answer, in its recorded form.

An edit works on the answer in the shape that it has when it is not streamed; where it was recorded as a stream it becomes a
stream of its dialect again. What cannot be done is said here, when a replay is made ready, and never while it runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from calls import answer_form as forms
from calls.codec.json import NotLossless, dumps, parse
from calls.codec.lenient_json import members
from calls.derive import derived
from calls.dialects.protocols.jsonrpc import is_answer
from calls.keys.key import KeyResult
from calls.model import Body, Call, Chunk, Exchange, Json, Response
from calls.overrides.overrides import Arguments, Patch, Text, ToolResult, Whole
from replay import playback
from replay.overrides import dialect_paths as places
from replay.overrides.dialect_paths import Spot, Thawed, thawed
from replay.reframing import reframe

type Edit = Whole | Text | Arguments | Patch | ToolResult

_SHOWN: Final = 120

_OF_THE_BODY: Final = frozenset(("content-encoding", "content-length", "content-type", "etag", "content-md5"))


SOCKET: Final = "it is a WebSocket, and what is said over one can neither be edited nor made to fail; name an HTTP call"


class Unfit(ValueError):
    """This edit cannot be made of this exchange; the message says why, as what follows on "it cannot be edited: "."""


def edited(exchange: Exchange, key: KeyResult, edit: Edit) -> Exchange:
    """The exchange with its answer edited. Raises Unfit."""
    if playback.is_websocket(exchange):
        raise Unfit(SOCKET)
    match edit:
        case Whole():
            return _answered(exchange, _replaced(exchange, key, edit))
        case ToolResult(value=value):
            return _answered(exchange, _resulted(exchange, key, value))
        case _:
            call = _whole_call(exchange, key)
            answer = thawed(call.answer)
            return _answered(exchange, _again(exchange, key, _changed(call, answer, edit)))


def fits(edit: Edit, key: KeyResult) -> bool:
    """Whether an edit may mean such a call at all: a text is a model's, a result is a tool's."""
    match edit:
        case Text() | Arguments():
            return key.kind == "model"
        case ToolResult():
            return key.kind != "model" and (key.dialect != "mcp" or key.operation == "execute_tool")
        case _:
            return True


def _answered(exchange: Exchange, response: Response) -> Exchange:
    """An exchange that came to its end with this response."""
    # What was not recorded of the old answer is not lacking in the new one.
    first = exchange.first_byte_at or 0
    return replace(
        exchange,
        response=response,
        outcome="completed",
        first_byte_at=first,
        ended_at=max(exchange.ended_at or 0, first, *(chunk.at for chunk in response.body.chunks)),
        error=None,
    )


# -- a whole answer


def _replaced(exchange: Exchange, key: KeyResult, edit: Whole) -> Response:
    old = exchange.response or Response(status=200)
    status = old.status if edit.status is None else edit.status
    made = replace(old, status=status, reason=old.reason if status == old.status else "")
    if edit.has_body:
        made = _with_body(made, exchange, key, edit.body)
    elif playback.lacking(exchange):
        raise Unfit(f"{playback.lacking(exchange)}; give it a body too")
    named = {name.lower() for name, _ in edit.headers}
    kept = tuple(pair for pair in made.headers if pair[0].lower() not in named)
    return replace(made, headers=(*kept, *edit.headers), trailers=())


def _with_body(made: Response, exchange: Exchange, key: KeyResult, body: Json) -> Response:
    """A text goes as it is; a value as JSON, or as a stream of the dialect where one was asked for."""
    if isinstance(body, str):
        return with_body(made, body.encode(), _media(made) or "text/plain; charset=utf-8")
    want = forms.asked(key, exchange.request)
    if want == "whole" or made.status >= 300 or key.dialect == "generic":
        return reframe.as_whole(made, body)
    return _streamed(made, key, want, body)


def _media(response: Response) -> str | None:
    return next((value for name, value in response.headers if name.lower() == "content-type"), None)


def with_body(response: Response, data: bytes, media: str, *, sized: bool = True) -> Response:
    """The response with this body in one piece."""
    kept = tuple(pair for pair in response.headers if pair[0].lower() not in _OF_THE_BODY)
    length = (("Content-Length", str(len(data))),) if sized else ()
    at = response.body.chunks[-1].at if response.body.chunks else 0
    body = Body(data=data, chunks=(Chunk(at, 0, len(data)),) if data else (), size=len(data))
    return replace(response, headers=(*kept, ("Content-Type", media), *length), body=body)


# -- what a model said


def _whole_call(exchange: Exchange, key: KeyResult) -> Call:
    """The call with an answer that can be edited. Raises Unfit."""
    if why := playback.lacking(exchange):
        raise Unfit(why)
    call = derived(exchange, key)
    # By the answer's own end mark: a client may leave when it has seen that, and not wait for HTTP's.
    if not call.complete:
        raise Unfit("its answer did not come to its end; give another one with answer = { … }")
    if not isinstance(call.answer, Mapping | list):
        raise Unfit("its answer is no JSON; give another one with answer = { … }")
    return call


def _again(exchange: Exchange, key: KeyResult, answer: Json) -> Response:
    """The answer in the form in which it was recorded."""
    assert exchange.response is not None
    was = forms.given(exchange.response, derived(exchange, key))
    if was == "whole":
        return reframe.as_whole(exchange.response, answer)
    return _streamed(exchange.response, key, was, answer)


def _streamed(response: Response, key: KeyResult, form: forms.Form, answer: Json) -> Response:
    if key.dialect == "mcp" and isinstance(answer, Mapping):
        return _mcp_stream(response, answer)
    made = reframe.as_stream(key.dialect, form, response, answer, key.request)
    if made is None:
        raise Unfit(
            f"it is a stream ({form}) of {key.dialect}, which we cannot make again;"
            " give the body as a text, as the API would stream it"
        )
    return made


def _changed(call: Call, answer: Thawed, edit: Text | Arguments | Patch) -> Json:
    match edit:
        case Text(text=text, find=None):
            _say(call, answer, text)
        case Text(text=text, find=str(find)):
            _say_instead(call, answer, find, text)
        case Arguments():
            _argue(call, answer, edit)
        case Patch(patch=operations):
            return patched(answer, operations)
    return answer  # type: ignore[no-any-return] # a JSON value that was thawed


def _say(call: Call, answer: Thawed, text: str) -> None:
    spots = places.texts(call.dialect, answer)
    first = spots[0] if spots else places.empty_text(call.dialect, answer)
    if first is None:
        raise Unfit(f"{_no_text(call)}; use patch, or answer")
    for spot in spots:
        spot.put("")
    first.put(text)


def _say_instead(call: Call, answer: Thawed, find: str, text: str) -> None:
    spots = [spot for spot in places.texts(call.dialect, answer) if find in spot.value]
    if not spots:
        said = repr(call.text[:_SHOWN]) if call.text else "not there"
        raise Unfit(f"{find!r} does not stand in its text, which is {said}")
    for spot in spots:
        spot.put(spot.value.replace(find, text))


def _no_text(call: Call) -> str:
    if call.dialect not in places.PLACES:
        return f"we do not know where an answer of {call.dialect} has its text"
    asked = ", ".join(tool.name for tool in call.tool_calls)
    return f"its answer has no text{f', it asks for {asked}' if asked else ''}"


def _argue(call: Call, answer: Thawed, edit: Arguments) -> None:
    spots = places.arguments(call.dialect, answer, edit.tool)
    spot = _the_one(call, spots, edit)
    value = spot.value
    if not isinstance(value, str):
        spot.put(patched(value, edit.patch))
        return
    try:
        plain = parse(value.encode())
    except NotLossless:
        raise Unfit(f"the arguments are no JSON, but {value[:_SHOWN]!r}") from None
    spot.put(dumps(patched(thawed(plain), edit.patch)).decode())


def _the_one(call: Call, spots: Sequence[Spot], edit: Arguments) -> Spot:
    of = f"a call of {edit.tool}" if edit.tool else "a tool call"
    if not spots:
        asked = ", ".join(tool.name for tool in call.tool_calls) or "none"
        raise Unfit(f"its answer does not ask for {of}; the tools that it asks for: {asked}")
    if edit.nth is None and len(spots) > 1:
        raise Unfit(f"its answer asks {len(spots)} times for {of}; say which with tool or nth")
    if (edit.nth or 1) > len(spots):
        raise Unfit(f"its answer asks {len(spots)} times for {of}, and not {edit.nth} times")
    return spots[(edit.nth or 1) - 1]


def patched(value: Thawed, operations: Sequence[Mapping[str, Any]]) -> Json:
    """The value after a JSON Patch. Raises Unfit."""
    # Few replays are edited, and it takes long to import.
    from jsonpath import JSONPatchError
    from jsonpath import patch as jsonpatch

    try:
        # Its values become part of the answer, and the same patch may be made of many.
        made: Json = jsonpatch.apply(thawed(operations), value, unicode_escape=False)  # type: ignore[assignment]
    except JSONPatchError as error:
        raise Unfit(f"the patch does not apply: {error}") from None
    return made


# -- what a tool answered


def _resulted(exchange: Exchange, key: KeyResult, value: Json) -> Response:
    old = exchange.response or Response(status=200)
    if key.dialect == "mcp":
        return _mcp_result(old, key, value)
    if forms.given(old) != "whole":
        raise Unfit("it is a stream of a tool; give the body as a text with answer = { … }")
    plain = isinstance(value, str) and "json" not in (_media(old) or "json")
    if plain:
        return with_body(old, str(value).encode(), _media(old) or "text/plain; charset=utf-8")
    return reframe.as_whole(old, value)


def _mcp_result(old: Response, key: KeyResult, value: Json) -> Response:
    asked = members(key.request)
    if "id" not in asked:
        raise Unfit("it is no single call of a tool")
    answer: dict[str, Json] = {"jsonrpc": "2.0", "id": asked["id"], "result": _mcp_value(value)}
    if forms.given(old) == "whole":
        return reframe.as_whole(old, answer)
    return _mcp_stream(old, answer)


def _mcp_value(value: Json) -> Json:
    """A result as MCP has it: what is none becomes the text of one."""
    if isinstance(value, Mapping) and ("content" in value or "structuredContent" in value):
        return {"content": [], **value}
    text = value if isinstance(value, str) else dumps(value).decode()
    content: dict[str, Json] = {"content": [{"type": "text", "text": text}]}
    return content | ({"structuredContent": value} if isinstance(value, Mapping) else {})


def _mcp_stream(old: Response, answer: Mapping[str, Json]) -> Response:
    """The answer as the one message of a stream. What the server told on the way is not told again."""
    message = {name: value for name, value in answer.items() if name != "notifications"}
    if not is_answer(message):
        raise Unfit("it would be no answer of JSON-RPC any more")
    return with_body(old, b"event: message\ndata: " + dumps(message) + b"\n\n", reframe.EVENT_STREAM, sized=False)
