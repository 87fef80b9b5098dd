"""APIs that only one service has: speech, transcripts, pictures, the models of Cloudflare and Oracle.

What they are asked and answer is read no further than who asks has to know: which operation it is, the text that came of it, and which work
goes on after its answer.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.model import Headers, Json, Usage

NAME: Final = "services"

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
        # Whatever agent runs there answers as its author pleased.
        (r"bedrock-agentcore\..+\.amazonaws\.com(\.cn)?", r"/runtimes/[^/]+/invocations", "invoke_agent"),
    )
)
"""Host and path, and what is asked for there."""

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
"""Where work is looked after that goes on."""

_ACCOUNT: Final = re.compile(r"/accounts/[^/]+/")
_GOING_ON: Final = re.compile(
    r"queued|processing|pending|running|throttled|dreaming|submitted|in[_ ](progress|queue)", re.IGNORECASE
)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """The services, by host and path."""
    if method == "GET":
        looked = next((match for at, shape in _LOOKS if at.fullmatch(host) and (match := shape.fullmatch(path))), None)
        return Claim(dialect=NAME, operation="poll", kind="model", polls=looked["work"]) if looked else None
    if method != "POST":
        return None
    for at, shape, operation in _POSTS:
        if at.fullmatch(host) and (match := shape.fullmatch(path)):
            model = match.groupdict().get("model")
            place = _ACCOUNT.sub("/accounts/*/", path)
            return Claim(dialect=NAME, operation=operation, kind="model", path=place, model=model)
    return None


def asked(body: Json) -> RequestSummary:
    """The model, where the body names it."""
    request = members(body)
    named = (request.get("model"), request.get("model_id"), members(request.get("servingMode")).get("modelId"))
    return RequestSummary(model=next((model for model in map(some, named) if model), None))


def told(answer: Json) -> AnswerSummary:
    """The text that came of it, and the work that goes on."""
    said = members(answer)
    result, output = members(said.get("result")), members(said.get("output"))
    spoken = "".join(map(text, elements(said.get("events"))))
    usage = members(result.get("usage") or said.get("usage"))
    told_of = (
        said.get("status"),
        output.get("task_status"),
        members(said.get("data")).get("task_status"),
        said.get("state"),
    )
    status = next((found for found in map(some, told_of) if found), None)
    return AnswerSummary(
        model=some(said.get("model")) or some(said.get("modelId")),
        text=next((found for found in _texts(said, result, output) if found), None) or spoken or some(answer),
        finish_reason=status,
        usage=Usage(
            input_tokens=count(usage.get("prompt_tokens", usage.get("input_tokens"))),
            output_tokens=count(usage.get("completion_tokens", usage.get("output_tokens"))),
        ),
        pending=_going_on(said, output, status),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, SingleServiceStream())


class SingleServiceStream:
    """The events of one streamed answer: Cloudflare's hold pieces of one text; of others they are kept as they came."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._state: dict[str, Json] = {}
        self._events: list[Json] = []
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Take one event."""
        self._done = self._done or data.strip() == "[DONE]"
        said = payload(data)
        if "response" in said:
            self._texts.append(text(said["response"]))
            self._state |= {name: value for name, value in said.items() if name not in ("response", "p")}
        elif said:
            self._events.append(dict(said))
        elif data.startswith('"'):
            self._events.append(arguments_of(data))

    @property
    def answer(self) -> Json:
        """The answer so far."""
        if self._texts:
            return {"result": {**self._state, "response": "".join(self._texts)}, "success": True}
        return {"events": list(self._events)} if self._events else None

    @property
    def complete(self) -> bool | None:
        """Whether the end mark came; not all have one."""
        return True if self._done else None if self._events else False


def _texts(said: Mapping[str, Json], result: Mapping[str, Json], output: Mapping[str, Json]) -> Iterator[str]:
    yield text(result.get("response")) or text(result.get("description")) or text(result.get("text"))
    yield (
        text(said.get("text")) or text(said.get("answer")) or text(said.get("suggestion")) or text(said.get("summary"))
    )
    yield text(output.get("text"))
    for channel in elements(members(said.get("results")).get("channels")):
        for one in elements(members(channel).get("alternatives"))[:1]:
            yield text(members(one).get("transcript"))
    chat = members(said.get("chatResponse"))  # Oracle's
    yield text(chat.get("text"))
    for one in elements(chat.get("choices"))[:1]:
        parts = elements(members(members(one).get("message")).get("content"))
        yield "".join(text(members(part).get("text")) for part in parts)
    for one in elements(said.get("completions"))[:1]:
        yield text(members(members(one).get("data")).get("text"))


def _going_on(said: Mapping[str, Json], output: Mapping[str, Json], status: str | None) -> str | None:
    """The name of work that is not done, or whose result is still to be fetched (fal)."""
    if "response_url" in said:
        return some(said.get("request_id"))
    if said.keys() == {"id"}:  # nothing else is told of a video that is to be made (Runway, Volcengine)
        return some(said["id"])
    if status is None or _GOING_ON.fullmatch(status) is None:
        return None
    return some(output.get("task_id")) or some(members(said.get("data")).get("task_id")) or some(said.get("id"))
