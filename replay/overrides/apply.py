"""Apply an override to a recorded exchange: the same exchange with another answer, in its recorded form.

An edit applies to the answer in its unstreamed form; if it was recorded as a stream, it becomes a stream of its dialect
again. An edit that cannot be applied fails here, when the replay is prepared, and never during the replay.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from calls import answer_form as forms
from calls.codec.json import InvalidJson, dumps, parse_json
from calls.codec.lenient_json import as_object
from calls.derive import derive_keyed_call
from calls.dialects.parts.answer_forms import AnswerForm
from calls.dialects.protocols.jsonrpc import is_answer
from calls.keys.key import KeyResult
from calls.model import Body, Call, Chunk, Exchange, Json, Response
from calls.overrides.overrides import Arguments, Patch, Text, ToolResult, WholeAnswer
from replay import playback
from replay.overrides import dialect_paths as places
from replay.overrides.dialect_paths import MutableJson, Spot, copy_mutable
from replay.reframing import reframe

type Edit = WholeAnswer | Text | Arguments | Patch | ToolResult

_SHOWN: Final = 120

_BODY_HEADERS: Final = frozenset(("content-encoding", "content-length", "content-type", "etag", "content-md5"))


WEBSOCKET_UNSUPPORTED: Final = (
    "it is a WebSocket, whose messages can neither be edited nor made to fail; select an HTTP call"
)


SET_WHOLE: Final = "set a whole answer with answer = { … }"
"""What to do where a part of an answer cannot be edited."""


class CannotEdit(ValueError):
    """An edit cannot be applied to an exchange. The message is the reason, to follow on "cannot be edited: "."""


def apply_edit(exchange: Exchange, key: KeyResult, edit: Edit) -> Exchange:
    """Edit the answer of an exchange. Raises CannotEdit."""
    if playback.is_websocket(exchange):
        raise CannotEdit(WEBSOCKET_UNSUPPORTED)
    match edit:
        case WholeAnswer():
            return _with_response(exchange, _replacement_response(exchange, key, edit))
        case ToolResult(value=value):
            return _with_response(exchange, _tool_result_response(exchange, key, value))
        case _:
            call = _whole_call(exchange, key)
            answer = copy_mutable(call.answer)
            return _with_response(exchange, _in_recorded_form(exchange, key, _changed_answer(call, answer, edit)))


def can_edit(edit: Edit, key: KeyResult) -> bool:
    """Whether an edit fits this kind of call: a text belongs to a model call, a result to a tool call."""
    match edit:
        case Text() | Arguments():
            return key.kind == "model"
        case ToolResult():
            return key.kind != "model" and (key.dialect != "mcp" or key.operation == "execute_tool")
        case _:
            return True


def _with_response(exchange: Exchange, response: Response) -> Exchange:
    """Replace the response by a complete one."""
    # Gaps in the old answer do not affect the new one.
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


def _replacement_response(exchange: Exchange, key: KeyResult, edit: WholeAnswer) -> Response:
    old = exchange.response or Response(status=200)
    status = old.status if edit.status is None else edit.status
    replacement = replace(old, status=status, reason=old.reason if status == old.status else "")
    if edit.has_body:
        replacement = _with_replaced_body(replacement, exchange, key, edit.body)
    elif playback.unreplayable_reason(exchange):
        raise CannotEdit(f"{playback.unreplayable_reason(exchange)}; give the answer a body, too")
    replaced_names = {name.lower() for name, _ in edit.headers}
    other_headers = tuple(pair for pair in replacement.headers if pair[0].lower() not in replaced_names)
    return replace(replacement, headers=(*other_headers, *edit.headers), trailers=())


def _with_replaced_body(response: Response, exchange: Exchange, key: KeyResult, body: Json) -> Response:
    """Send a text unchanged; a value as JSON, or as a stream of the dialect if the request asks for one."""
    if isinstance(body, str):
        return with_body(response, body.encode(), _content_type(response) or "text/plain; charset=utf-8")
    form = forms.requested_form(key, exchange.request)
    if form == "whole" or response.status >= 300 or key.dialect == "generic":
        return reframe.write_whole(response, body)
    return _stream_response(response, key, form, body)


def _content_type(response: Response) -> str | None:
    return next((value for name, value in response.headers if name.lower() == "content-type"), None)


def with_body(response: Response, data: bytes, media: str, *, sized: bool = True) -> Response:
    """The response with this body in one piece."""
    other_headers = tuple(pair for pair in response.headers if pair[0].lower() not in _BODY_HEADERS)
    length = (("Content-Length", str(len(data))),) if sized else ()
    at = response.body.chunks[-1].at if response.body.chunks else 0
    body = Body(data=data, chunks=(Chunk(at, 0, len(data)),) if data else (), size=len(data))
    return replace(response, headers=(*other_headers, ("Content-Type", media), *length), body=body)


# -- model answers


def _whole_call(exchange: Exchange, key: KeyResult) -> Call:
    """The call of an exchange, with an answer that can be edited. Raises CannotEdit."""
    if why := playback.unreplayable_reason(exchange):
        raise CannotEdit(f"{why}; {SET_WHOLE}")
    call = derive_keyed_call(exchange, key)
    # The answer's own end mark counts: a client may leave after it, without waiting for the end of the HTTP message.
    if not call.complete:
        raise CannotEdit(f"its answer is incomplete; {SET_WHOLE}")
    if not isinstance(call.answer, Mapping | list):
        raise CannotEdit(f"its answer is not JSON; {SET_WHOLE}")
    return call


def _in_recorded_form(exchange: Exchange, key: KeyResult, answer: Json) -> Response:
    """Write an answer in its recorded form."""
    assert exchange.response is not None
    form = forms.received_form(exchange.response, derive_keyed_call(exchange, key))
    if form == "whole":
        return reframe.write_whole(exchange.response, answer)
    return _stream_response(exchange.response, key, form, answer)


def _stream_response(response: Response, key: KeyResult, form: AnswerForm, answer: Json) -> Response:
    if key.dialect == "mcp" and isinstance(answer, Mapping):
        return _mcp_stream(response, answer)
    stream = reframe.write_stream(key.dialect, form, response, answer, key.request_body)
    if stream is None:
        raise CannotEdit(
            f"it is a stream ({form}) of {key.dialect}, which Playhead cannot write;"
            " set the body as a text, as the API would stream it"
        )
    return stream


def _changed_answer(call: Call, answer: MutableJson, edit: Text | Arguments | Patch) -> Json:
    match edit:
        case Text(text=text, find=None):
            _set_text(call, answer, text)
        case Text(text=text, find=str(find)):
            _substitute_text(call, answer, find, text)
        case Arguments():
            _edit_arguments(call, answer, edit)
        case Patch(patch=operations):
            return apply_patch(answer, operations)
    return answer  # type: ignore[no-any-return] # a JSON value that was thawed


def _set_text(call: Call, answer: MutableJson, text: str) -> None:
    spots = places.find_texts(call.dialect, answer)
    first = spots[0] if spots else places.find_empty_text(call.dialect, answer)
    if first is None:
        raise CannotEdit(f"{_no_text_reason(call)}; use patch to change its JSON, or {SET_WHOLE}")
    for spot in spots:
        spot.put("")
    first.put(text)


def _substitute_text(call: Call, answer: MutableJson, find: str, text: str) -> None:
    spots = [spot for spot in places.find_texts(call.dialect, answer) if find in spot.value]
    if not spots:
        current = repr(call.text[:_SHOWN]) if call.text else "empty"
        raise CannotEdit(
            f"{find!r} does not occur in its text, which is {current}; correct find, or omit it to replace the whole text"
        )
    for spot in spots:
        spot.put(spot.value.replace(find, text))


def _no_text_reason(call: Call) -> str:
    if call.dialect not in places.answer_paths_by_dialect():
        return f"the place of the text in an answer of {call.dialect} is not known"
    tools = ", ".join(tool.name for tool in call.tool_calls)
    return f"its answer has no text{f', it asks for {tools}' if tools else ''}"


def _edit_arguments(call: Call, answer: MutableJson, edit: Arguments) -> None:
    spots = places.find_arguments(call.dialect, answer, edit.tool)
    spot = _selected_spot(call, spots, edit)
    value = spot.value
    if not isinstance(value, str):
        spot.put(apply_patch(value, edit.patch))
        return
    try:
        plain = parse_json(value.encode())
    except InvalidJson:
        raise CannotEdit(f"the arguments are not JSON: {value[:_SHOWN]!r}; {SET_WHOLE}") from None
    spot.put(dumps(apply_patch(copy_mutable(plain), edit.patch)).decode())


def _selected_spot(call: Call, spots: Sequence[Spot], edit: Arguments) -> Spot:
    what = f"a call of {edit.tool}" if edit.tool else "a tool call"
    if not spots:
        tools = ", ".join(tool.name for tool in call.tool_calls) or "none"
        raise CannotEdit(
            f"its answer does not request {what}; select one of the tools that it requests ({tools}), or another step"
        )
    if edit.nth is None and len(spots) > 1:
        raise CannotEdit(f"its answer requests {what} {len(spots)} times; select one with tool or nth")
    if (edit.nth or 1) > len(spots):
        raise CannotEdit(f"its answer requests {what} {len(spots)} times, not {edit.nth} times; correct nth")
    return spots[(edit.nth or 1) - 1]


def apply_patch(value: MutableJson, operations: Sequence[Mapping[str, Any]]) -> Json:
    """Apply a JSON Patch to a value. Raises CannotEdit."""
    # Importing jsonpath takes long, and few replays are edited.
    from jsonpath import JSONPatchError
    from jsonpath import patch as jsonpatch

    try:
        # Copy the values: they become part of the answer, and one patch may apply to several answers.
        result: Json = jsonpatch.apply(copy_mutable(operations), value, unicode_escape=False)  # type: ignore[assignment]
    except JSONPatchError as error:
        raise CannotEdit(
            f"the patch does not apply: {error}; correct its paths (`playhead show CALL` prints the answer)"
        ) from None
    return result


# -- tool results


def _tool_result_response(exchange: Exchange, key: KeyResult, value: Json) -> Response:
    old = exchange.response or Response(status=200)
    if key.dialect == "mcp":
        return _mcp_result(old, key, value)
    if forms.received_form(old) != "whole":
        raise CannotEdit(f"it is a stream of a tool; {SET_WHOLE}, with the body as a text")
    plain = isinstance(value, str) and "json" not in (_content_type(old) or "json")
    if plain:
        return with_body(old, str(value).encode(), _content_type(old) or "text/plain; charset=utf-8")
    return reframe.write_whole(old, value)


def _mcp_result(old: Response, key: KeyResult, value: Json) -> Response:
    request = as_object(key.request_body)
    if "id" not in request:
        raise CannotEdit(f"its request is not a single tool call, so a result has no place; {SET_WHOLE}")
    answer: dict[str, Json] = {"jsonrpc": "2.0", "id": request["id"], "result": _mcp_value(value)}
    if forms.received_form(old) == "whole":
        return reframe.write_whole(old, answer)
    return _mcp_stream(old, answer)


def _mcp_value(value: Json) -> Json:
    """An MCP result; any other value becomes the text of one."""
    if isinstance(value, Mapping) and ("content" in value or "structuredContent" in value):
        return {"content": [], **value}
    text = value if isinstance(value, str) else dumps(value).decode()
    content: dict[str, Json] = {"content": [{"type": "text", "text": text}]}
    return content | ({"structuredContent": value} if isinstance(value, Mapping) else {})


def _mcp_stream(old: Response, answer: Mapping[str, Json]) -> Response:
    """The answer as the only message of a stream, without recorded notifications."""
    message = {name: value for name, value in answer.items() if name != "notifications"}
    if not is_answer(message):
        raise CannotEdit(f"the edited answer would not be a JSON-RPC answer; keep its result or error, or {SET_WHOLE}")
    return with_body(
        old, b"event: message\ndata: " + dumps(message) + b"\n\n", "text/event-stream; charset=utf-8", sized=False
    )
