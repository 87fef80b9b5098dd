"""APIs that only one service has: speech, transcripts, pictures, the models of Cloudflare and Oracle.

Only the operation, the text of the answer and pending work are read from them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.unclaimed_kinds import always_tool
from calls.model import Headers, Json, Usage

_FAL: Final = r"(queue\.)?fal\.run"
_CLOUDFLARE: Final = r"(.+\.)?api\.cloudflare\.com|gateway\.ai\.cloudflare\.com"
_ARK: Final = r"ark(\.[\w-]+)?\.(volces|bytepluses)\.com"
_RUNWAY: Final = r"api(\.dev)?\.runwayml\.com"
_KLING: Final = r"api(-\w+)?\.klingai\.com"
_ORACLE: Final = r"inference\.generativeai\..+\.oci\.oraclecloud\.com"

_POSTS: Final = tuple(
    (re.compile(host), re.compile(path), operation)
    for host, path, operation in (
        (_CLOUDFLARE, r".*/(?:ai/run|workers-ai)/(?P<model>@\w+/.+)", "text_completion"),
        (_FAL, r"/(?P<model>[^/]+/.+)", "image_generation"),
        (r"router\.huggingface\.co", r"/fal-ai/(?P<model>.+)", "image_generation"),
        (r"api\.elevenlabs\.io", r"/v1/text-to-(speech|dialogue)(/.*)?", "speech"),
        (
            r"api\.elevenlabs\.io",
            r"/v1/(sound-generation|music(/.*)?|speech-to-speech/.*|audio-isolation(/.*)?)",
            "speech",
        ),
        (r"api\.elevenlabs\.io", r"/v1/speech-to-text", "transcription"),
        (r"api\.deepgram\.com", r"/v1/listen", "transcription"),
        (r"api\.deepgram\.com", r"/v1/speak", "speech"),
        (r"api\.deepgram\.com", r"/v1/read", "summarize"),
        (r"api\.assemblyai\.com", r"/v2/transcript", "transcription"),
        (r"api\.x\.ai", r"/v1/stt", "transcription"),
        (r"api\.x\.ai", r"/v1/tts", "speech"),
        (r"api\.ai21\.com", r"/studio/v1/(?P<model>j[\w-]+)/complete", "text_completion"),
        (r"api\.ai21\.com", r"/studio/v1/maestro/runs", "invoke_agent"),
        (
            r"api\.ai21\.com",
            r"/studio/v1/(?:experimental/)?(summarize|paraphrase|gec|improvements|answer|embed|rewrite).*",
            "text_completion",
        ),
        (r"(api|segment)\.jina\.ai", r"/(v1/)?(classify|segment)?", "classify"),
        (
            r"api\.stability\.ai",
            r"/v\d.*/(generate|generation)/.+|/v2beta/(stable-image|image-to-video|3d|audio)/.+",
            "image_generation",
        ),
        (r"api\.writer\.com", r"/v1/applications/[^/]+(/jobs)?", "invoke_agent"),
        (r"api\.writer\.com", r"/v1/graphs/question", "chat"),
        (r"api\.aleph-alpha\.com", r"/(semantic_embed|embed|batch_semantic_embed|instructable_embed)", "embeddings"),
        (r"api\.aleph-alpha\.com", r"/(evaluate|explain|tokenize|detokenize)", "classify"),
        (r"api(-atlas)?\.nomic\.ai", r"/v1/embedding/(text|image)", "embeddings"),
        (r"(ai|integrate)\.api\.nvidia\.com", r"/v1/(genai|cv|vlm|biology)/(?P<model>.+)", "image_generation"),
        (r"api\.fireworks\.ai", r"/inference/v1/(workflows|image_generation)/(?P<model>.+)", "image_generation"),
        (r".+\.ml\.cloud\.ibm\.com", r"/ml/v1/(text/tokenization|time_series/forecast|text/extractions)", "tokenize"),
        (r".+\.snowflakecomputing\.com", r"/api/v2/cortex/inference:embed", "embeddings"),
        (r".+\.snowflakecomputing\.com", r".*/cortex/agent:run|.*/agents/[^/]+:run", "invoke_agent"),
        (
            r"dashscope(-intl)?\.aliyuncs\.com",
            r"/api/v1/services/aigc/(?!(text|multimodal)-generation).+",
            "image_generation",
        ),
        (r"dashscope(-intl)?\.aliyuncs\.com", r"/api/v1/services/audio/.+", "transcription"),
        (_ORACLE, r"/\d+/actions/chat", "chat"),
        (_ORACLE, r"/\d+/actions/(generateText|summarizeText)", "text_completion"),
        (_ORACLE, r"/\d+/actions/embedText", "embeddings"),
        (_ORACLE, r"/\d+/actions/rerankText", "rerank"),
        (r".+\.cognitiveservices\.azure\.com", r"/contentsafety/.+", "moderation"),
        (
            r".+\.cognitiveservices\.azure\.com",
            r"/(language|formrecognizer|documentintelligence|computervision|text|translator)/.+",
            "analyze",
        ),
        (r"api\.pinecone\.io", r"/embed", "embeddings"),
        (_ARK, r"/api/v3/contents/generations/tasks", "video_generation"),
        (r"api\.lumalabs\.ai", r"/dream-machine/v1/generations(/video|/image)?", "video_generation"),
        (_RUNWAY, r"/v1/(?:image|text|video)_to_(?:video|image)", "video_generation"),
        (_KLING, r"/v1/(?:videos|images)/[\w-]+", "video_generation"),
        (r"api\.runpod\.ai", r"/v2/(?P<model>[^/]+)/run(sync)?", "invoke"),
        # Agents there answer in any shape.
        (r"bedrock-agentcore\..+\.amazonaws\.com(\.cn)?", r"/runtimes/[^/]+/invocations", "invoke_agent"),
    )
)
"""Host, path and operation."""

_LOOKS: Final = tuple(
    (re.compile(host), re.compile(path))
    for host, path in (
        (r"queue\.fal\.run", r".*/requests/(?P<work>[^/]+)(/status)?"),
        (r"api\.assemblyai\.com", r"/v2/transcript/(?P<work>[^/]+)"),
        (r"api\.ai21\.com", r"/studio/v1/maestro/runs/(?P<work>[^/]+)"),
        (r"dashscope(-intl)?\.aliyuncs\.com", r"/api/v1/tasks/(?P<work>[^/]+)"),
        (_ARK, r"/api/v3/contents/generations/tasks/(?P<work>[^/]+)"),
        (r"api\.lumalabs\.ai", r"/dream-machine/v1/generations/(?P<work>[^/]+)"),
        (_RUNWAY, r"/v1/tasks/(?P<work>[^/]+)"),
        (_KLING, r"/v1/(?:videos|images)/[\w-]+/(?P<work>[^/]+)"),
        (r"api\.runpod\.ai", r"/v2/[^/]+/status/(?P<work>[^/]+)"),
    )
)
"""Host and path of polls for pending work."""

_ACCOUNT: Final = re.compile(r"/accounts/[^/]+/")
_GOING_ON: Final = re.compile(
    r"queued|processing|pending|running|throttled|dreaming|submitted|in[_ ](progress|queue)", re.IGNORECASE
)


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim the services by host and path."""
    if method == "GET":
        poll = next((match for at, shape in _LOOKS if at.fullmatch(host) and (match := shape.fullmatch(path))), None)
        return Claim(operation="poll", kind="model", polls=poll["work"]) if poll else None
    if method != "POST":
        return None
    for at, shape, operation in _POSTS:
        if at.fullmatch(host) and (match := shape.fullmatch(path)):
            model = match.groupdict().get("model")
            key_path = _ACCOUNT.sub("/accounts/*/", path)
            return Claim(operation=operation, kind="model", path=key_path, model=model)
    return None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, where the body names it."""
    request = as_object(body)
    models = (request.get("model"), request.get("model_id"), as_object(request.get("servingMode")).get("modelId"))
    return RequestSummary(model=next((model for model in map(as_text_or_none, models) if model), None))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, the usage and the pending work."""
    fields = as_object(answer)
    result, output = as_object(fields.get("result")), as_object(fields.get("output"))
    event_texts = "".join(map(as_text, as_array(fields.get("events"))))
    usage = as_object(result.get("usage") or fields.get("usage"))
    states = (
        fields.get("status"),
        output.get("task_status"),
        as_object(fields.get("data")).get("task_status"),
        fields.get("state"),
    )
    status = next((found for found in map(as_text_or_none, states) if found), None)
    return AnswerSummary(
        model=as_text_or_none(fields.get("model")) or as_text_or_none(fields.get("modelId")),
        text=next((found for found in _answer_texts(fields, result, output) if found), None)
        or event_texts
        or as_text_or_none(answer),
        finish_reason=status,
        usage=Usage(
            input_tokens=as_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
            output_tokens=as_count(usage.get("completion_tokens", usage.get("output_tokens"))),
        ),
        pending=_pending_id(fields, output, status),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, SingleServiceStream())


class SingleServiceStream:
    """The events of one streamed answer: Cloudflare's have pieces of one text; those of others are listed."""

    def __init__(self) -> None:
        self._answer_texts: list[str] = []
        self._state: dict[str, Json] = {}
        self._events: list[Json] = []
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Add one event."""
        self._has_ended = self._has_ended or data.strip() == "[DONE]"
        fields = parse_payload(data)
        if "response" in fields:
            self._answer_texts.append(as_text(fields["response"]))
            self._state |= {name: value for name, value in fields.items() if name not in ("response", "p")}
        elif fields:
            self._events.append(dict(fields))
        elif data.startswith('"'):
            self._events.append(parse_arguments(data))

    @property
    def answer(self) -> Json:
        """The answer so far."""
        if self._answer_texts:
            return {"result": {**self._state, "response": "".join(self._answer_texts)}, "success": True}
        return {"events": list(self._events)} if self._events else None

    @property
    def is_complete(self) -> bool | None:
        """Whether the end marker arrived; None where events have none."""
        return True if self._has_ended else None if self._events else False


def _answer_texts(fields: Mapping[str, Json], result: Mapping[str, Json], output: Mapping[str, Json]) -> Iterator[str]:
    yield as_text(result.get("response")) or as_text(result.get("description")) or as_text(result.get("text"))
    yield (
        as_text(fields.get("text"))
        or as_text(fields.get("answer"))
        or as_text(fields.get("suggestion"))
        or as_text(fields.get("summary"))
    )
    yield as_text(output.get("text"))
    for channel in as_array(as_object(fields.get("results")).get("channels")):
        for one in as_array(as_object(channel).get("alternatives"))[:1]:
            yield as_text(as_object(one).get("transcript"))
    chat = as_object(fields.get("chatResponse"))  # Oracle's
    yield as_text(chat.get("text"))
    for one in as_array(chat.get("choices"))[:1]:
        parts = as_array(as_object(as_object(one).get("message")).get("content"))
        yield "".join(as_text(as_object(part).get("text")) for part in parts)
    for one in as_array(fields.get("completions"))[:1]:
        yield as_text(as_object(as_object(one).get("data")).get("text"))


def _pending_id(fields: Mapping[str, Json], output: Mapping[str, Json], status: str | None) -> str | None:
    """The id of work that is not done, or whose result is still to be fetched (fal)."""
    if "response_url" in fields:
        return as_text_or_none(fields.get("request_id"))
    if fields.keys() == {"id"}:  # the whole answer to a new video (Runway, Volcengine)
        return as_text_or_none(fields["id"])
    if status is None or _GOING_ON.fullmatch(status) is None:
        return None
    return (
        as_text_or_none(output.get("task_id"))
        or as_text_or_none(as_object(fields.get("data")).get("task_id"))
        or as_text_or_none(fields.get("id"))
    )


DIALECT: Final = Dialect(
    name="services",
    claim=claim,
    services=(
        Service(provider="cloudflare", host_pattern=_CLOUDFLARE, only_models=False, unclaimed_kind=always_tool),
        Service(provider="fal", host_pattern=_FAL),
        Service(provider="oci.generative_ai", host_pattern=_ORACLE, only_models=False),
        *(
            Service(provider=name, host_pattern=rf"api\.{name}\.(io|ai|cn|com)")
            for name in ("assemblyai", "deepgram", "elevenlabs", "lumalabs", "runwayml", "stability")
        ),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    why_no_answer="each of these services has a form of its own",
)
