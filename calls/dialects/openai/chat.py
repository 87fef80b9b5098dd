"""OpenAI's Chat Completions, and the variants of services that copy it.

Azure, Groq, Mistral, DeepSeek, OpenRouter, Together, vLLM, Ollama, LiteLLM and many more answer in this shape, each with
variations (reference: wire B.1). The rules below hold for all of them:

- identity (role, id, name, model) is sent once and may be repeated: the first value that is not empty counts;
- texts (content, refusal, reasoning, arguments) arrive in pieces and are joined;
- everything else is a state: the last value that is not empty counts.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.openai.chat_writer import compose_chat_answer, write_chat_stream
from calls.dialects.openai.compatible_services import COMPATIBLE_SERVICES
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import Entries, Record, parse_arguments, parse_payload
from calls.model import Headers, Json, ToolCall, Usage

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
"""Other paths of this API: Writer, IBM, Databricks, Snowflake, MiniMax, Perplexity; Portkey's prompts."""


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/chat/completions` at any host, and Mistral's paths for agents and code."""
    match = _PATH.fullmatch(path) or _match_other_path(host, path) if method == "POST" else None
    if match is None:
        return None
    return Claim(operation="chat", kind="model", model=match.groupdict().get("model"))


def _match_other_path(host: str, path: str) -> re.Match[str] | None:
    found = (shape.fullmatch(path) for hosts, shape in _ELSEWHERE if hosts.fullmatch(host))
    return next((match for match in found if match), None)


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the tool messages after the last message of the assistant."""
    request = as_object(body)
    results: list[Json] = []
    for message in reversed(as_array(request.get("messages"))):
        fields = as_object(message)
        if fields.get("role") not in ("tool", "function"):
            if fields.get("role") == "assistant":
                break
            continue
        results.append({"id": fields.get("tool_call_id"), "name": fields.get("name"), "content": fields.get("content")})
    model = as_text_or_none(request.get("model")) or as_text_or_none(request.get("model_id"))
    return RequestSummary(model=model, tool_results=tuple(reversed(results)))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text and tool calls of the first choice: those of several choices would not be one answer."""
    completion = as_object(answer)
    choices = as_array(completion.get("choices"))
    choice = as_object(choices[0]) if choices else {}
    message = as_object(choice.get("message"))
    return AnswerSummary(
        model=as_text_or_none(completion.get("model")),
        fingerprint=as_text_or_none(completion.get("system_fingerprint")),
        text=_message_text(message),
        tool_calls=_tool_calls(message),
        finish_reason=as_text_or_none(choice.get("finish_reason")),
        usage=_usage(completion, choice),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a completion, streamed or not."""
    return AccumulatorAssembly(content_type, ChatStream())


class ChatStream:
    """The chunks of one streamed completion."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._groq: dict[str, Json] = {}
        self._choices: dict[int, _Choice] = {}
        self._error: Json = None
        self._has_ended = False
        self._has_end_marker = True

    def add_message(self, event: str, data: str) -> None:
        """Add one chunk, an error, or `[DONE]`."""
        if data.strip() == "[DONE]":
            self._has_ended = True
            return
        chunk = parse_payload(data)
        if "type" in chunk and not chunk.keys() & {"id", "choices", "usage", "error"} and event != "error":
            # Gateways to Anthropic's models pass on its `ping` and their own `keepalive`.
            return
        # Groq names the event `error`; OpenRouter and others put the error in a chunk. All under HTTP 200.
        if event == "error" or chunk.get("error") is not None:
            self._error = chunk.get("error") or dict(chunk)
        self._merge_chunk(chunk)
        for entry in as_array(chunk.get("choices")):
            choice = as_object(entry)
            index = as_count(choice.get("index")) or 0
            # Writer repeats every delta as a message, and never sends `[DONE]`.
            self._has_end_marker = self._has_end_marker and not ("message" in choice and "delta" in choice)
            self._choices.setdefault(index, _Choice()).add(choice)

    @property
    def answer(self) -> Json:
        """The completion so far; where there is only an error, the error's own body."""
        if self._error is not None and not self._choices:
            return {"error": self._error}
        if not self._state and not self._choices:
            return None
        answer: dict[str, Json] = {"object": "chat.completion", **self._state}
        answer["choices"] = [self._choices[index].build(index) for index in sorted(self._choices)]
        if self._groq:
            answer["x_groq"] = self._groq
        if self._error is not None:
            answer["error"] = self._error
        return answer

    @property
    def is_complete(self) -> bool | None:
        """Whether `[DONE]` arrived, and no error before it; None where the server does not send it.

        Hugging Face's router and the servers behind it leave it out (2025-10): where every choice has a finish reason, only HTTP can tell.
        """
        if self._error is not None:
            return False
        is_every_choice_finished = bool(self._choices) and all(choice.has_ended for choice in self._choices.values())
        return True if self._has_ended else None if is_every_choice_finished or not self._has_end_marker else False

    def _merge_chunk(self, chunk: Mapping[str, Json]) -> None:
        for name, value in chunk.items():
            if name == "x_groq":
                self._groq.update(as_object(value))
            elif name not in _NOISE and name != "error":
                _merge_field(self._state, name, value)


def _merge_field(state: dict[str, Json], name: str, value: Json) -> None:
    """Merge a value into a state, unless it is empty. Azure's first chunk has an empty id and model and a `created` of 0, and its
    last one empty filter results; gateways send an empty finish reason until there is one."""
    if name in _FIRST:
        state[name] = state.get(name) or value
    elif name not in state or value not in (None, {}, [], ""):
        state[name] = value


class _Choice:
    """One choice while its deltas arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {"logprobs": None, "finish_reason": None}
        self._logprobs: dict[str, list[Json] | None] = {}
        self._token_ids: list[Json] = []
        self._message = _Message()

    def add(self, choice: Mapping[str, Json]) -> None:
        """Add one entry of a chunk's `choices`."""
        for name, value in choice.items():
            match name:
                case "index":
                    pass
                case "message" if "delta" in choice:
                    pass
                case "delta":
                    self._message.add(as_object(value))
                case "logprobs":
                    self._add_logprobs(as_object(value))
                case "token_ids":
                    self._token_ids.extend(as_array(value))
                case _:
                    _merge_field(self._state, name, value)

    @property
    def has_ended(self) -> bool:
        """Whether the answer has a finish reason."""
        return self._state["finish_reason"] is not None

    def build(self, index: int) -> Json:
        """The choice as a completion has it."""
        choice: dict[str, Json] = {"index": index, "message": self._message.build(), **self._state}
        if self._logprobs:
            choice["logprobs"] = dict(self._logprobs)
        if self._token_ids:
            choice["token_ids"] = list(self._token_ids)
        return choice

    def _add_logprobs(self, logprobs: Mapping[str, Json]) -> None:
        for name, entries in logprobs.items():
            earlier = self._logprobs.setdefault(name, None)
            if entries is not None:
                self._logprobs[name] = earlier = earlier if earlier is not None else []
                earlier.extend(as_array(entries))


class _Message:
    """One message while its deltas arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {"role": "assistant", "content": None}
        self._pieces: dict[str, list[Json]] = {}
        self._lists: dict[str, Entries] = {}
        self._records: dict[str, Record] = {}
        self._calls = _ToolCalls()

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add one delta."""
        for name, value in delta.items():
            match name, value:
                case "tool_calls", _:
                    self._calls.add(as_array(value))
                case (("function_call" | "audio"), Mapping()):
                    self._records.setdefault(name, Record()).add(as_object(value))
                case _, str() if name in _JOINED:
                    self._pieces.setdefault(name, []).append(value)
                case "content", Sequence():
                    self._pieces.setdefault(name, []).extend(as_array(value))
                case _, list():
                    self._lists.setdefault(name, Entries()).add(value)
                case _:
                    _merge_field(self._state, name, value)

    def build(self) -> Json:
        """The message as a completion has it."""
        message = {**self._state}
        for name, pieces in self._pieces.items():
            message[name] = _join_content(pieces)
        for name, entries in self._lists.items():
            message[name] = entries.build()
        for name, record in self._records.items():
            message[name] = record.build()
        if self._calls:
            message["tool_calls"] = self._calls.build()
        return message


class _ToolCalls:
    """The tool calls of one message.

    OpenAI gives each an index and sends its id and name once. Others repeat both in every chunk (Kimi), leave the
    index out (Mistral), or give every call the index 0 (gateways). So another id together with a name starts a new call; so does an
    id, or a name, where there is no index; anything else continues the call with its index, or else the last one.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Record, Record]] = []
        self._at: dict[int | None, int] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, entries: Sequence[Json]) -> None:
        """Add one delta."""
        for entry in map(as_object, entries):
            head, inner = self._find_call(entry)
            head.add({name: value for name, value in entry.items() if name not in ("index", "function", "custom")})
            inner.add(_called_function(entry))

    def build(self) -> Json:
        """The calls as a message has them."""
        return [_build_call(head.build(), inner.build()) for head, inner in self._calls]

    def _find_call(self, entry: Mapping[str, Json]) -> tuple[Record, Record]:
        index = as_count(entry.get("index"))
        at = self._at.get(index)
        if at is None or self._is_new_call(entry, index, *self._calls[at]):
            at = len(self._calls)
            self._calls.append((Record(), Record()))
        self._at[index] = self._at[None] = at
        return self._calls[at]

    def _is_new_call(self, entry: Mapping[str, Json], index: int | None, head: Record, inner: Record) -> bool:
        call, name = as_text_or_none(entry.get("id")), as_text_or_none(_called_function(entry).get("name"))
        other = call is not None and call != head["id"]
        if index is None:
            return other or (call is None and name is not None and inner["name"] is not None)
        return other and head["id"] is not None and name is not None


def _called_function(entry: Mapping[str, Json]) -> Mapping[str, Json]:
    """The function or custom tool of a call: the one that the type names, or else the one that is not empty.

    Snowflake's Cortex (2026-11) sends both with every call, the unused one with empty members.
    """
    function, custom = as_object(entry.get("function")), as_object(entry.get("custom"))
    match entry.get("type"):
        case "custom" if custom:
            return custom
        case "function" if function:
            return function
        case _:
            return custom if any(custom.values()) or not function else function


def _build_call(head: dict[str, Json], inner: dict[str, Json]) -> Json:
    kind = as_text(head.get("type")) or ("custom" if "input" in inner else "function")
    call: dict[str, Json] = {"id": None, **head, "type": kind}
    call["custom" if kind == "custom" else "function"] = inner
    return call


def _join_content(pieces: Sequence[Json]) -> Json:
    """Join pieces into one text. Where Mistral sends parts among them, join all into parts, in which successive parts of one type
    are one: its thinking arrives in many parts, and is a single part without streaming."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "".join(texts)
    return _merge_parts([{"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in pieces])


def _merge_parts(pieces: Sequence[Json]) -> list[Json]:
    parts: list[Json] = []
    for kind, group in groupby(pieces, key=lambda piece: as_object(piece).get("type")):
        run = [as_object(piece) for piece in group]
        match kind:
            case "text":
                parts.append({**run[0], "text": "".join(as_text(piece.get("text")) for piece in run)})
            case "thinking":
                thought = [part for piece in run for part in as_array(piece.get("thinking"))]
                parts.append({**run[0], **run[-1], "thinking": _merge_parts(thought)})
            case _:
                parts.extend(run)
    return parts


def _message_text(message: Mapping[str, Json]) -> str | None:
    """The text of a message, or else the transcript of its audio."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        # With a JSON schema Cloudflare sends the object itself.
        return dumps(content).decode()
    texts = [as_text(as_object(part).get("text")) for part in as_array(content)]
    return "".join(texts) or as_text_or_none(as_object(message.get("audio")).get("transcript"))


def _tool_calls(message: Mapping[str, Json]) -> tuple[ToolCall, ...]:
    calls = [_tool_call(as_object(call)) for call in as_array(message.get("tool_calls"))]
    legacy = as_object(message.get("function_call"))
    # Snowflake's Cortex sends an empty one with the calls.
    if legacy.get("name"):
        calls.append(
            ToolCall(id=None, name=as_text(legacy.get("name")), arguments=parse_arguments(legacy.get("arguments")))
        )
    return tuple(calls)


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    inner = _called_function(call)
    arguments = parse_arguments(inner.get("arguments")) if "arguments" in inner else inner.get("input")
    return ToolCall(id=as_text_or_none(call.get("id")), name=as_text(inner.get("name")), arguments=arguments)


_CACHED: Final = ("cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "cache_read_input_tokens")
"""Other services' names of cached tokens, outside the details: Moonshot and Together, DeepSeek, Mistral, gateways to Anthropic."""


def _usage(completion: Mapping[str, Json], choice: Mapping[str, Json]) -> Usage:
    """In a stream, Groq also has the usage in `x_groq`, and Moonshot in the last choice."""
    places = (completion, as_object(completion.get("x_groq")), choice)
    usage = next((as_object(place["usage"]) for place in places if place.get("usage")), {})
    prompt, answer = as_object(usage.get("prompt_tokens_details")), as_object(usage.get("completion_tokens_details"))
    cached = (
        as_count(place.get(name)) for place, name in ((prompt, "cached_tokens"), *((usage, name) for name in _CACHED))
    )
    return Usage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=next((number for number in cached if number is not None), None),
        # Perplexity's is not among the details.
        reasoning_tokens=as_count(answer.get("reasoning_tokens", usage.get("reasoning_tokens"))),
    )


DIALECT: Final = Dialect(
    name="openai_chat",
    claim=claim,
    services=(
        Service(provider="openai", hosts=("api.openai.com",), host_pattern=r".+\.api\.openai\.com|chatgpt\.com"),
        Service(provider="azure.ai.openai", host_pattern=r".+\.(openai|cognitiveservices)\.azure\.com"),
        Service(provider="azure.ai.inference", host_pattern=r".+\.(services\.ai|inference\.ai|models\.ai)\.azure\.com"),
        *COMPATIBLE_SERVICES,
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": write_chat_stream},
    compose_answer=compose_chat_answer,
    answer_paths=AnswerPaths(
        texts=("choices/0/message/content", "choices/0/message/content/*/text"),
        calls=("choices/0/message/tool_calls/*/function", "choices/0/message/function_call"),
        arguments=("arguments",),
    ),
    error_body=openai_error,
)
