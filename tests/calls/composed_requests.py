"""Requests that a composed answer answers, for each dialect, and results in such answers."""

import dataclasses
from typing import Any

from calls.codec.json import dumps
from calls.codec.lenient_json import as_object
from calls.dialects.parts.answer_composition import AnswerParts
from calls.model import Json, ToolCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestForm:
    """What of a request decides the form of a composed answer, where a dialect has several."""

    operation: str
    model: str = "m"
    path: str = ""
    body: dict[str, Any] = dataclasses.field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    host: str = ""
    says: frozenset[str] = frozenset(("text", "calls"))
    counts: bool = True
    """Whether the answer has token counts."""
    streamed: bool = True
    """Whether such an answer can be streamed, where its dialect has streams."""
    only_texts: bool = False
    """Whether the arguments of tool calls are texts, as those of Bedrock's agents."""

    def received_arguments(self, call: ToolCall) -> Json:
        if not self.only_texts:
            return call.arguments
        arguments = as_object(call.arguments)
        return {name: one if isinstance(one, str) else dumps(one).decode() for name, one in arguments.items()}


TEXT = frozenset(("text",))
USAGE: dict[str, Json] = {"stream_options": {"include_usage": True}}


def request_form(operation: str, path: str = "", *, model: str = "m", text: bool = False, **more: Any) -> RequestForm:
    """A request; with `text` one whose answer has no tool calls."""
    says = TEXT if text else frozenset(("text", "calls"))
    return RequestForm(operation=operation, path=path, model=model, says=says, **more)


RPC = {"jsonrpc": "2.0", "id": 7}

TURNS: dict[str, list[RequestForm]] = {
    "a2a": [
        *(
            request_form("invoke_agent", text=True, counts=False, body={**RPC, "method": name})
            for name in ("message/send", "SendMessage")
        ),
        request_form("invoke_agent", "/message:send", text=True, counts=False),
    ],
    "ai_gateway": [
        request_form("chat"),
        request_form("chat", headers=(("ai-language-model-specification-version", "3"),)),
        request_form("transcription", text=True, counts=False, streamed=False),
    ],
    "anthropic": [request_form("chat")],
    "anthropic_sessions": [request_form("listen")],
    "bedrock_agent": [
        request_form("invoke_agent", counts=False, only_texts=True),
        request_form("invoke_agent", text=True, counts=False, body={"inputs": []}),
    ],
    "bedrock_converse": [request_form("chat")],
    "bedrock_invoke": [
        *(
            request_form("chat", model=f"us.{name}")
            for name in ("anthropic.claude-v1", "amazon.nova-pro", "openai.gpt-oss-20b", "cohere.command-r-v1")
        ),
        *(request_form("chat", model=name, text=True) for name in ("amazon.titan-text-lite", "meta.llama3-8b")),
        *(
            request_form("chat", model=f"{name}:0", text=True, counts=False)
            for name in ("mistral.mixtral", "deepseek.r1", "cohere.command-text", "ai21.j2-mid")
        ),
    ],
    "bedrock_others": [
        *(request_form(name, text=True, counts=False) for name in ("retrieve_and_generate", "optimize_prompt")),
        *(request_form(name, text=True, counts=False, streamed=False) for name in ("generate_query", "moderation")),
    ],
    "cohere_v1": [request_form("chat"), request_form("text_completion", text=True, counts=False, streamed=False)],
    "cohere_v2": [request_form("chat")],
    "dashscope": [
        request_form("chat", body={"parameters": {"result_format": "message"}}),
        request_form("chat"),
        request_form("chat", "/api/v1/services/aigc/multimodal-generation/generation"),
        request_form("invoke_agent", text=True),
    ],
    "dify": [request_form("chat", text=True)],
    "discovery": [
        request_form("answer", f"/x:{verb}", text=True, counts=False, streamed=verb != "converse")
        for verb in ("answer", "converse", "assist")
    ],
    "gemini": [request_form("generate_content")],
    "gemini_code": [request_form("generate_content")],
    "gemini_interactions": [request_form("generate_content")],
    "mcp": [
        request_form(name, text=True, counts=False, body=RPC)
        for name in ("execute_tool", "resources/read", "prompts/get")
    ],
    "mistral_conversations": [request_form("invoke_agent")],
    "ollama": [request_form("chat"), request_form("text_completion", text=True)],
    "openai_agents": [request_form("invoke_agent"), request_form("listen")],
    "openai_assistants": [
        request_form("invoke_agent", body={"stream": True}),
        request_form("get_messages", text=True, counts=False, streamed=False),
    ],
    "openai_chat": [request_form("chat")],
    "openai_completions": [request_form("text_completion", text=True)],
    "openai_responses": [request_form("chat")],
    "openai_rest": [
        request_form("transcription", text=True),
        request_form("translation", text=True, counts=False, streamed=False, body={"response_format": ["text"]}),
    ],
    "replicate": [
        request_form("text_completion", text=True, streamed=False),
        request_form("poll", "/v1/predictions/p1", text=True, streamed=False),
        request_form("stream", text=True, counts=False),
    ],
    "sagemaker": [
        request_form("text_completion", body={"messages": []}),
        request_form("text_completion", "/x/invocations", text=True),
    ],
    "text_generation": [
        request_form("text_completion", "/generate", text=True, body={"inputs": "x"}),
        request_form("text_completion", "/models/a/b", text=True, body={"inputs": "x"}),
        request_form("text_completion", "/completion", text=True),
        request_form("text_completion", "/complete", text=True),
        request_form("text_completion", "/generate", text=True, body={"text": "x"}),
        request_form("text_completion", "/generate", text=True, counts=False, body={"prompt": ""}),
    ],
    "watsonx": [request_form("text_completion", text=True)],
}
"""Requests that a text (and tool calls) can answer, for each dialect that has such answers: one for each form."""

VECTORS, RANKS = [[0.5, 1]], [{"index": 1, "score": 0.5}]

RESULTS: dict[str, list[tuple[RequestForm, list[Any], str]]] = {
    "ai_gateway": [
        (request_form("embeddings"), VECTORS, "[0.5,1]"),
        (request_form("rerank"), RANKS, '"index":1'),
        (request_form("image_generation"), ["aGk="], '"aGk="'),
    ],
    "bedrock_invoke": [
        (request_form("embeddings", model="amazon.titan-embed-v2"), VECTORS, '"embedding":[0.5,1]'),
        (request_form("embeddings", model="cohere.embed-v3"), VECTORS, '"embeddings":[[0.5,1]]'),
        (request_form("rerank", model="cohere.rerank-v3"), RANKS, '"relevance_score":0.5'),
        (request_form("image_generation", model="amazon.nova-canvas"), ["aGk="], '"images":["aGk="]'),
        (request_form("image_generation", model="stability.sd3"), ["aGk="], '"seeds":[0]'),
    ],
    "bedrock_others": [
        (request_form("moderation"), [["HATE"]], '"type":"HATE"'),
        (request_form("moderation"), [[]], '"NONE"'),
    ],
    "cohere_v1": [
        (request_form("embeddings"), VECTORS, '"embeddings":[[0.5,1]]'),
        (request_form("embeddings", body={"embedding_types": ["float"]}), VECTORS, '"float":[[0.5,1]]'),
        (request_form("rerank"), RANKS, '"relevance_score":0.5'),
    ],
    "cohere_v2": [
        (request_form("embeddings"), VECTORS, '"float":[[0.5,1]]'),
        (request_form("rerank"), RANKS, '"relevance_score":0.5'),
    ],
    "dashscope": [
        (request_form("embeddings"), VECTORS, '"text_index":0'),
        (request_form("rerank"), RANKS, '"relevance_score":0.5'),
    ],
    "gemini": [
        (request_form("embeddings", "/models/m:embedContent"), VECTORS, '"embedding":{"values":[0.5,1]}'),
        (request_form("embeddings", "/models/m:batchEmbedContents"), VECTORS, '"embeddings":[{'),
        (request_form("embeddings", "/models/m:predict"), VECTORS, '"predictions":[{'),
    ],
    "mcp": [
        (request_form("execute_tool", body=RPC), [{"n": 1}], '"structuredContent":{"n":1}'),
        (request_form("tools/list", body=RPC), [{"tools": []}], '"result":{"tools":[]}'),
    ],
    "ollama": [
        (request_form("embeddings", "/api/embed"), VECTORS, '"embeddings":[[0.5,1]]'),
        (request_form("embeddings", "/api/embeddings"), VECTORS, '"embedding":[0.5,1]'),
    ],
    "openai_embeddings": [
        (request_form("embeddings"), VECTORS, '"embedding":[0.5,1]'),
        (request_form("embeddings", body={"encoding_format": "base64"}), VECTORS, '"embedding":"AAAAPwAAgD8="'),
    ],
    "openai_rest": [
        (request_form("image_generation"), ["aGk=", "https://i.example/1"], '"url":"https://i.example/1"'),
        (request_form("moderation"), [["violence"]], '"violence":true'),
        (request_form("moderation"), [[]], '"flagged":false'),
    ],
    "rerank": [
        (request_form("rerank", "/v1/rerank", host="api.voyageai.com"), RANKS, '"data":[{'),
        (request_form("rerank", "/v1/rerank"), RANKS, '"results":[{"index":1,"relevance_score":0.5}]'),
        (request_form("rerank", "/rerank", body={"texts": []}), RANKS, '[{"index":1,"score":0.5}]'),
        (request_form("rerank", "/v1/ranking"), RANKS, '"logit":0.5'),
        (request_form("rerank", "/v1/score"), RANKS, '"object":"score"'),
        (request_form("rerank", "/x:rank", body={"records": [{"id": "a"}, {"id": "b"}]}), RANKS, '"id":"b"'),
        (request_form("rerank", "/rerank", body={"rerankingConfiguration": {}}), RANKS, '"relevanceScore":0.5'),
    ],
    "text_generation": [(request_form("embeddings"), VECTORS, "[[0.5,1]]")],
    "watsonx": [(request_form("embeddings"), VECTORS, '"embedding":[0.5,1]')],
}
"""Requests that results answer, with results and a part of what they become."""


def composed_parts(request: RequestForm, **said: Any) -> AnswerParts:
    """What an answer to the request is composed of."""
    return AnswerParts(
        operation=request.operation,
        model=request.model,
        id="0" * 24,
        created=1_700_000_000,
        created_at="2023-11-14T22:13:20.000000Z",
        input_tokens=11,
        output_tokens=7,
        request=request.body,
        headers=request.headers,
        host=request.host,
        path=request.path,
        **said,
    )
