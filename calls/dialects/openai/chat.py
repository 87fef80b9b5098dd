"""OpenAI's Chat Completions, and the variants of services that copy it.

Azure, Groq, Mistral, DeepSeek, OpenRouter, Together, vLLM, Ollama, LiteLLM and many more answer in this shape, each with
habits of its own (reference: wire B.1). The rules below hold for all of them:

- who and what (role, id, name, model) is said once and may be repeated: the first value that says anything counts;
- text comes in pieces: content, refusal, reasoning, arguments are joined;
- everything else is a state: the last value that says anything counts.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import Entries, Record, arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "openai_chat"

_JOINED: Final = frozenset(("content", "refusal", "reasoning", "reasoning_content", "thinking"))
_FIRST: Final = frozenset(("id", "created", "model", "role"))

# Padding against traffic analysis (OpenAI, Mistral) and an echo of the request (LiteLLM): not part of an answer.
_NOISE: Final = frozenset(("obfuscation", "p", "stream_options", "object", "choices"))


_PATH: Final = re.compile(
    r"(?:.*/(?:deployments|engines)/(?P<model>[^/]+)/(?:extensions/)?|(?:.*/)?)(?:chat|fim|agents)/completions/?"
)
_ELSEWHERE: Final = (
    (re.compile(r".+writer\.com"), re.compile(r"/v1/chat")),
    (
        re.compile(r".+\.ml\.cloud\.ibm\.com"),
        re.compile(r"/ml/v1(?:/deployments/(?P<model>[^/]+))?/text/chat(?:_stream)?"),
    ),
    (re.compile(r".*databricks.*"), re.compile(r"/serving-endpoints/(?P<model>[^/]+)/invocations")),
    (re.compile(r".+\.snowflakecomputing\.com"), re.compile(r"/api/v2/cortex/inference:complete")),
    (re.compile(r"api\.minimax(?:i\.com|\.io|\.chat)"), re.compile(r"/v1/text/chatcompletion_v2")),
    (re.compile(r"api\.perplexity\.ai"), re.compile(r"/v1/(?:async/)?sonar")),
    (re.compile(r"(?:.+\.)?portkey\.ai"), re.compile(r"/v1/prompts/[^/]+/completions")),
)
"""Where a chat of this shape goes by another path: Writer, IBM, Databricks, Snowflake, MiniMax, Perplexity; Portkey's prompts."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/chat/completions`; Mistral's for agents and for code are no other."""
    match = _PATH.fullmatch(path) or _elsewhere(host, path) if method == "POST" else None
    if match is None:
        return None
    return Claim(dialect=NAME, operation="chat", kind="model", model=match.groupdict().get("model"))


def _elsewhere(host: str, path: str) -> re.Match[str] | None:
    found = (shape.fullmatch(path) for hosts, shape in _ELSEWHERE if hosts.fullmatch(host))
    return next((match for match in found if match), None)


def asked(body: Json) -> RequestSummary:
    """The model, and the tool messages that follow the last word of the assistant."""
    request = members(body)
    results: list[Json] = []
    for message in reversed(elements(request.get("messages"))):
        said = members(message)
        if said.get("role") not in ("tool", "function"):
            if said.get("role") == "assistant":
                break
            continue
        results.append({"id": said.get("tool_call_id"), "name": said.get("name"), "content": said.get("content")})
    model = some(request.get("model")) or some(request.get("model_id"))
    return RequestSummary(model=model, tool_results=tuple(reversed(results)))


def told(answer: Json) -> AnswerSummary:
    """What the first choice says; tool calls and text of several choices would not be one answer."""
    completion = members(answer)
    choices = elements(completion.get("choices"))
    choice = members(choices[0]) if choices else {}
    message = members(choice.get("message"))
    return AnswerSummary(
        model=some(completion.get("model")),
        fingerprint=some(completion.get("system_fingerprint")),
        text=_text(message),
        tool_calls=_tool_calls(message),
        finish_reason=some(choice.get("finish_reason")),
        usage=_usage(completion, choice),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a completion, streamed or not."""
    return AccumulatorAssembly(content_type, ChatStream())


class ChatStream:
    """The chunks of one streamed completion."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._groq: dict[str, Json] = {}
        self._choices: dict[int, _Choice] = {}
        self._error: Json = None
        self._done = False
        self._marked = True

    def take(self, event: str, data: str) -> None:
        """Take one chunk, an error, or `[DONE]`."""
        if data.strip() == "[DONE]":
            self._done = True
            return
        chunk = payload(data)
        if "type" in chunk and not chunk.keys() & {"id", "choices", "usage", "error"} and event != "error":
            # Gateways to Anthropic's models let its `ping` and their own `keepalive` through.
            return
        # Groq names the event `error`; OpenRouter and others put the error in a chunk. All under HTTP 200.
        if event == "error" or chunk.get("error") is not None:
            self._error = chunk.get("error") or dict(chunk)
        self._merge(chunk)
        for entry in elements(chunk.get("choices")):
            choice = members(entry)
            index = count(choice.get("index")) or 0
            # Writer says every delta as a message too, and never `[DONE]`.
            self._marked = self._marked and not ("message" in choice and "delta" in choice)
            self._choices.setdefault(index, _Choice()).take(choice)

    @property
    def answer(self) -> Json:
        """The completion so far; where there is only an error, the error's own body."""
        if self._error is not None and not self._choices:
            return {"error": self._error}
        if not self._state and not self._choices:
            return None
        answer: dict[str, Json] = {"object": "chat.completion", **self._state}
        answer["choices"] = [self._choices[index].whole(index) for index in sorted(self._choices)]
        if self._groq:
            answer["x_groq"] = self._groq
        if self._error is not None:
            answer["error"] = self._error
        return answer

    @property
    def complete(self) -> bool | None:
        """Whether `[DONE]` came, and no error before it; None where the server has no such mark.

        Hugging Face's router and what is behind it leave it out (2025-10): where every choice said why it ended, only HTTP can tell.
        """
        if self._error is not None:
            return False
        ended = bool(self._choices) and all(choice.ended for choice in self._choices.values())
        return True if self._done else None if ended or not self._marked else False

    def _merge(self, chunk: Mapping[str, Json]) -> None:
        for name, value in chunk.items():
            if name == "x_groq":
                self._groq.update(members(value))
            elif name not in _NOISE and name != "error":
                _settle(self._state, name, value)


def _settle(state: dict[str, Json], name: str, value: Json) -> None:
    """Azure's first chunk has an empty id and model, and zero for `created`, and its last one empty filter results; gateways
    say `""` for why a choice ended until they know: nothing was said."""
    if name in _FIRST:
        state[name] = state.get(name) or value
    elif name not in state or value not in (None, {}, [], ""):
        state[name] = value


class _Choice:
    """One choice while its deltas come."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {"logprobs": None, "finish_reason": None}
        self._logprobs: dict[str, list[Json] | None] = {}
        self._token_ids: list[Json] = []
        self._message = _Message()

    def take(self, choice: Mapping[str, Json]) -> None:
        """Take one entry of a chunk's `choices`."""
        for name, value in choice.items():
            match name:
                case "index":
                    pass
                case "message" if "delta" in choice:
                    pass
                case "delta":
                    self._message.take(members(value))
                case "logprobs":
                    self._take_logprobs(members(value))
                case "token_ids":
                    self._token_ids.extend(elements(value))
                case _:
                    _settle(self._state, name, value)

    @property
    def ended(self) -> bool:
        """Whether it was said why it ended."""
        return self._state["finish_reason"] is not None

    def whole(self, index: int) -> Json:
        """The choice as a completion has it."""
        choice: dict[str, Json] = {"index": index, "message": self._message.whole(), **self._state}
        if self._logprobs:
            choice["logprobs"] = dict(self._logprobs)
        if self._token_ids:
            choice["token_ids"] = list(self._token_ids)
        return choice

    def _take_logprobs(self, logprobs: Mapping[str, Json]) -> None:
        for name, entries in logprobs.items():
            kept = self._logprobs.setdefault(name, None)
            if entries is not None:
                self._logprobs[name] = kept = kept if kept is not None else []
                kept.extend(elements(entries))


class _Message:
    """One message while its deltas come."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {"role": "assistant", "content": None}
        self._pieces: dict[str, list[Json]] = {}
        self._lists: dict[str, Entries] = {}
        self._records: dict[str, Record] = {}
        self._calls = _ToolCalls()

    def take(self, delta: Mapping[str, Json]) -> None:
        """Take one delta."""
        for name, value in delta.items():
            match name, value:
                case "tool_calls", _:
                    self._calls.take(elements(value))
                case (("function_call" | "audio"), Mapping()):
                    self._records.setdefault(name, Record()).take(members(value))
                case _, str() if name in _JOINED:
                    self._pieces.setdefault(name, []).append(value)
                case "content", Sequence():
                    self._pieces.setdefault(name, []).extend(elements(value))
                case _, list():
                    self._lists.setdefault(name, Entries()).take(value)
                case _:
                    _settle(self._state, name, value)

    def whole(self) -> Json:
        """The message as a completion has it."""
        message = {**self._state}
        for name, pieces in self._pieces.items():
            message[name] = _joined(pieces)
        for name, entries in self._lists.items():
            message[name] = entries.whole()
        for name, record in self._records.items():
            message[name] = record.whole()
        if self._calls:
            message["tool_calls"] = self._calls.whole()
        return message


class _ToolCalls:
    """The tool calls of one message.

    OpenAI gives each an index and says its id and name once. Others repeat both in every chunk (Kimi), leave the
    index out (Mistral), or give every call the index 0 (gateways). So: another id together with a name begins a new call; so does an
    id, or a name, where there is no index; anything else goes on with the call of its index, or else the last one.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Record, Record]] = []
        self._at: dict[int | None, int] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, entries: Sequence[Json]) -> None:
        """Take what one delta says of them."""
        for entry in map(members, entries):
            head, inner = self._call(entry)
            head.take({name: value for name, value in entry.items() if name not in ("index", "function", "custom")})
            inner.take(_inner(entry))

    def whole(self) -> Json:
        """The calls as a message has them."""
        return [_whole_call(head.whole(), inner.whole()) for head, inner in self._calls]

    def _call(self, entry: Mapping[str, Json]) -> tuple[Record, Record]:
        index = count(entry.get("index"))
        at = self._at.get(index)
        if at is None or self._begins(entry, index, *self._calls[at]):
            at = len(self._calls)
            self._calls.append((Record(), Record()))
        self._at[index] = self._at[None] = at
        return self._calls[at]

    def _begins(self, entry: Mapping[str, Json], index: int | None, head: Record, inner: Record) -> bool:
        call, name = some(entry.get("id")), some(_inner(entry).get("name"))
        other = call is not None and call != head["id"]
        if index is None:
            return other or (call is None and name is not None and inner["name"] is not None)
        return other and head["id"] is not None and name is not None


def _inner(entry: Mapping[str, Json]) -> Mapping[str, Json]:
    """What is called: of the two kinds the one that the entry names, or else the one that says anything.

    Snowflake's Cortex (2026-11) sends both with every call, the one that is not meant with empty members.
    """
    function, custom = members(entry.get("function")), members(entry.get("custom"))
    match entry.get("type"):
        case "custom" if custom:
            return custom
        case "function" if function:
            return function
        case _:
            return custom if any(custom.values()) or not function else function


def _whole_call(head: dict[str, Json], inner: dict[str, Json]) -> Json:
    kind = text(head.get("type")) or ("custom" if "input" in inner else "function")
    call: dict[str, Json] = {"id": None, **head, "type": kind}
    call["custom" if kind == "custom" else "function"] = inner
    return call


def _joined(pieces: Sequence[Json]) -> Json:
    """Text pieces as one text; where Mistral sends parts among them, all as parts, of which equal kinds that follow one
    another are one: its thinking comes in many, and stands in one where it is not streamed."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "".join(texts)
    return _parts([{"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in pieces])


def _parts(pieces: Sequence[Json]) -> list[Json]:
    parts: list[Json] = []
    for kind, group in groupby(pieces, key=lambda piece: members(piece).get("type")):
        run = [members(piece) for piece in group]
        match kind:
            case "text":
                parts.append({**run[0], "text": "".join(text(piece.get("text")) for piece in run)})
            case "thinking":
                thought = [part for piece in run for part in elements(piece.get("thinking"))]
                parts.append({**run[0], **run[-1], "thinking": _parts(thought)})
            case _:
                parts.extend(run)
    return parts


def _text(message: Mapping[str, Json]) -> str | None:
    """What is written, or what is heard where nothing is."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        # Cloudflare gives what a schema asked for as the object itself.
        return dumps(content).decode()
    texts = [text(members(part).get("text")) for part in elements(content)]
    return "".join(texts) or some(members(message.get("audio")).get("transcript"))


def _tool_calls(message: Mapping[str, Json]) -> tuple[ToolCall, ...]:
    calls = [_tool_call(members(call)) for call in elements(message.get("tool_calls"))]
    legacy = members(message.get("function_call"))
    # Snowflake's Cortex sends an empty one beside the calls.
    if legacy.get("name"):
        calls.append(ToolCall(id=None, name=text(legacy.get("name")), arguments=arguments_of(legacy.get("arguments"))))
    return tuple(calls)


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    inner = _inner(call)
    arguments = arguments_of(inner.get("arguments")) if "arguments" in inner else inner.get("input")
    return ToolCall(id=some(call.get("id")), name=text(inner.get("name")), arguments=arguments)


_CACHED: Final = ("cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "cache_read_input_tokens")
"""What others call tokens from a cache, and do not put among the details: Moonshot and Together, DeepSeek, Mistral, gateways to Anthropic."""


def _usage(completion: Mapping[str, Json], choice: Mapping[str, Json]) -> Usage:
    """Groq tells it in a stream beside the others' place for it, Moonshot in the choice that ends."""
    told_at = (completion, members(completion.get("x_groq")), choice)
    usage = next((members(place["usage"]) for place in told_at if place.get("usage")), {})
    prompt, answer = members(usage.get("prompt_tokens_details")), members(usage.get("completion_tokens_details"))
    cached = (
        count(place.get(name)) for place, name in ((prompt, "cached_tokens"), *((usage, name) for name in _CACHED))
    )
    return Usage(
        input_tokens=count(usage.get("prompt_tokens")),
        output_tokens=count(usage.get("completion_tokens")),
        cached_tokens=next((number for number in cached if number is not None), None),
        # Perplexity's is not among the details.
        reasoning_tokens=count(answer.get("reasoning_tokens", usage.get("reasoning_tokens"))),
    )
