"""The provider, dialect, operation and key path of a request, from its head."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.dialects.table import DIALECTS
from calls.model import Body, CallKind, Headers, Request
from calls.route import find_claims, find_route, normalize_path, split_url
from calls.side_effects import is_read_only
from tests.calls.recorded import exchange
from tests.support.corpus import cassettes

VERSION: Headers = (("Anthropic-Version", "2023-06-01"),)
SIGNED: Headers = (("X-Amz-Date", "20261121T000000Z"),)
AWS = "bedrock-runtime.us-east-1.amazonaws.com"
NOVA = "amazon.nova-2-multimodal-embeddings-v1:0"
BETA: Headers = (("OpenAI-Beta", "assistants=v2"),)
GEMINI_LIVE = "google.ai.generativelanguage.v1beta.GenerativeService"


type RouteRow = tuple[str, str, Headers, str, str, CallKind]

ROUTES: list[RouteRow] = [
    ("api.openai.com", "/v1/chat/completions", (), "openai", "openai_chat", "model"),
    ("API.OpenAI.com:443", "/v1/chat/completions", (), "openai", "openai_chat", "model"),
    (
        "x.openai.azure.com",
        "//openai/deployments/d/chat/completions",
        (),
        "azure.ai.openai",
        "openai_chat",
        "model",
    ),
    ("api.groq.com", "/openai/v1/chat/completions", (), "groq", "openai_chat", "model"),
    ("localhost:8000", "/v1/chat/completions", (), "localhost", "openai_chat", "model"),
    ("api.anthropic.com", "/v1/messages", (), "anthropic", "anthropic", "model"),
    ("localhost:4000", "/v1/messages", VERSION, "localhost", "anthropic", "model"),
    ("chat.example.com", "/v1/messages", (), "chat.example.com", "generic", "tool"),
    ("api.z.ai", "/api/anthropic/v1/messages", (), "z_ai", "anthropic", "model"),
    ("localhost:4000", "/v1/messages", (("User-Agent", "Anthropic/Go 1.14.0"),), "localhost", "anthropic", "model"),
    ("api.anthropic.com", "/v1/messages/batches", (), "anthropic", "generic", "other"),
    ("api.mistral.ai", "/v1/conversations", (), "mistral_ai", "mistral_conversations", "model"),
    ("api.mistral.ai", "/v1/conversations/conv_1/restart", (), "mistral_ai", "mistral_conversations", "model"),
    ("api.mistral.ai", "/v1/ocr", (), "mistral_ai", "openai_rest", "model"),
    ("api.mistral.ai", "/v1/files", (), "mistral_ai", "generic", "other"),
    ("api.cohere.com", "/v2/audio/transcriptions", (), "cohere", "openai_rest", "model"),
    ("api.voyageai.com", "/v1/multimodalembeddings", (), "voyage", "openai_embeddings", "model"),
    ("us-south.ml.cloud.ibm.com", "/ml/v1/text/chat_stream", (), "ibm.watsonx.ai", "openai_chat", "model"),
    ("x.cloud.databricks.com", "/serving-endpoints/m/invocations", (), "databricks", "openai_chat", "model"),
    ("router.huggingface.co", "/hf-inference/models/o/m", (), "huggingface", "text_generation", "model"),
    ("api.elevenlabs.io", "/v1/text-to-speech/v", (), "elevenlabs", "services", "model"),
    ("generativelanguage.googleapis.com", "/v1beta/models/imagen-4.0:predict", (), "gcp.gemini", "gemini", "model"),
    ("s.jina.ai", "/", (), "s.jina.ai", "searches", "retrieval"),
    ("api.openai.com", "/v1/threads/t/messages", (), "openai", "openai_assistants", "other"),
    ("langgraph.example.com", "/threads/t/runs", (), "langgraph.example.com", "generic", "tool"),
    ("gateway.example.com", "/v1/threads/runs", BETA, "gateway.example.com", "openai_assistants", "model"),
    ("api.openai.com", "/v1/embeddings", (), "openai", "openai_embeddings", "model"),
    ("models.github.ai", "/inference/embeddings", (), "github", "openai_embeddings", "model"),
    ("api.openai.com", "/v1/completions", (), "openai", "openai_completions", "model"),
    ("api.deepseek.com", "/beta/completions", (), "deepseek", "openai_completions", "model"),
    ("api.mistral.ai", "/v1/fim/completions", (), "mistral_ai", "openai_chat", "model"),
    ("localhost:4000", "/v1/audio/transcriptions", (), "localhost", "openai_rest", "model"),
    ("api.openai.com", "/v1/files", (), "openai", "openai_rest", "other"),
    ("api.openai.com", "/v1/edits", (), "openai", "openai_rest", "model"),
    ("api.openai.com", "/v1/answers", (), "openai", "openai_rest", "model"),
    ("api.openai.com", "/v1/engines/davinci/search", (), "openai", "openai_rest", "model"),
    ("gigachat.devices.sberbank.ru", "/api/v1/chat/completions", (), "gigachat", "openai_chat", "model"),
    ("api.openai.com", "/v1/traces/ingest", (), "openai", "generic", "other"),
    ("api.openai.com", "/v1/vector_stores/vs_1/search", (), "openai", "openai_rest", "retrieval"),
    ("x.openai.azure.com", "/openai/vector_stores/vs_1/search", (), "azure.ai.openai", "openai_rest", "retrieval"),
    (
        "x.services.ai.azure.com",
        "/api/projects/p/threads/t/runs",
        (),
        "azure.ai.inference",
        "openai_assistants",
        "model",
    ),
    (
        "x.services.ai.azure.com",
        "/api/projects/p/openai/conversations",
        (),
        "azure.ai.inference",
        "openai_rest",
        "other",
    ),
    ("api.openai.com", "/v1/agents/sessions", (), "openai", "openai_agents", "model"),
    ("api.openai.com", "/v1/agents/sessions/sess_1/events", (), "openai", "openai_agents", "model"),
    ("api.openai.com", "/v1/agents", (), "openai", "openai_rest", "other"),
    ("api.openai.com", "/v1/decisions", (), "openai", "openai_rest", "model"),
    ("openrouter.ai", "/api/alpha/decisions", (), "openrouter", "openai_rest", "model"),
    ("openrouter.ai", "/api/v1/images", (), "openrouter", "openai_rest", "model"),
    ("albums.example.com", "/api/v1/images", (), "albums.example.com", "generic", "tool"),
    ("openrouter.ai", "/api/v1/beta/responses", (), "openrouter", "openai_responses", "model"),
    ("openrouter.ai", "/api/v1/presets/mine/responses", (), "openrouter", "openai_responses", "model"),
    ("localhost:1234", "/api/v0/completions", (), "localhost", "openai_completions", "model"),
    ("localhost:8000", "/v1/chat/completions/", (), "localhost", "openai_chat", "model"),
    ("localhost:8000", "/v1//embeddings", (), "localhost", "openai_embeddings", "model"),
    ("localhost:8000", "/v1/responses/", (), "localhost", "openai_responses", "model"),
    ("localhost:8000", "/v1/completions/", (), "localhost", "openai_completions", "model"),
    ("localhost:8000", "/v1/images/generations/", (), "localhost", "openai_rest", "model"),
    ("localhost:8080", "/completion", (), "localhost", "text_generation", "model"),
    ("llama", "/infill", (), "llama", "text_generation", "model"),
    ("tasks.example.com", "/completion", (), "tasks.example.com", "generic", "tool"),
    ("gateway.ai.cloudflare.com", "/v1/a/g/openai/completions", (), "cloudflare", "openai_completions", "model"),
    ("ark.cn-beijing.volces.com", "/api/v3/responses", (), "volcengine", "openai_responses", "model"),
    ("forms.example.com", "/v2/responses", (), "forms.example.com", "generic", "tool"),
    ("forms.example.com", "/api/forms/7/responses", (), "forms.example.com", "generic", "tool"),
    ("tickets.example.com", "/v1/files", (), "tickets.example.com", "generic", "tool"),
    ("us-east1-aiplatform.googleapis.com", "/v1/x:generateContent", (), "gcp.vertex_ai", "generic", "model"),
    ("us-east1-aiplatform.googleapis.com", "/v1/models/m:generateContent", (), "gcp.vertex_ai", "gemini", "model"),
    (
        "bedrock-runtime.us-east-1.amazonaws.com",
        "/model/m/converse",
        (),
        "aws.bedrock",
        "bedrock_converse",
        "model",
    ),
    ("gateway.example.com", "/bedrock/model/m/converse", (), "gateway.example.com", "bedrock_converse", "model"),
    ("bedrock-runtime.us-east-1.amazonaws.com", "/model/m/invoke", (), "aws.bedrock", "bedrock_invoke", "model"),
    ("gateway.example.com", "/model/m/invoke", SIGNED, "gateway.example.com", "bedrock_invoke", "model"),
    ("gateway.example.com", "/model/m/invoke", (), "gateway.example.com", "generic", "tool"),
    ("api.cohere.com", "/v1/chat", (), "cohere", "cohere_v1", "model"),
    ("api.cohere.com", "/v2/rerank", (), "cohere", "cohere_v2", "model"),
    ("api.writer.com", "/v1/chat", (), "writer", "openai_chat", "model"),
    ("api.dify.ai", "/v1/chat-messages", (), "dify", "dify", "model"),
    ("dify.example.com", "/v1/completion-messages", (), "dify", "dify", "model"),
    ("ai-gateway.vercel.sh", "/v3/ai/language-model", (), "vercel", "ai_gateway", "model"),
    ("api.anthropic.com", "/v1/sessions/s/events", (), "anthropic", "anthropic_sessions", "model"),
    (
        "bedrock-runtime.us-east-1.amazonaws.com",
        "/guardrail/g/version/1/apply",
        (),
        "aws.bedrock",
        "bedrock_others",
        "model",
    ),
    (
        "discoveryengine.googleapis.com",
        "/v1/projects/p/x/servingConfigs/c:answer",
        (),
        "gcp.gen_ai",
        "discovery",
        "model",
    ),
    (
        "cloudcode-pa.googleapis.com",
        "/v1internal:generateContent",
        (),
        "gcp.gemini",
        "gemini_code",
        "model",
    ),
    ("shop.example.com", "/gradio_api/queue/join", (), "shop.example.com", "gradio", "tool"),
    ("shop.example.com", "/graphql", (), "shop.example.com", "graphql", "tool"),
    ("agents.example.com", "/v1/message:send", (), "agents.example.com", "a2a", "tool"),
    ("localhost:11434", "/api/chat", (), "ollama", "ollama", "model"),
    ("192.168.1.7:11434", "/api/generate", (), "ollama", "ollama", "model"),
    ("shop.example.com", "/api/chat", (), "shop.example.com", "generic", "tool"),
    ("x.svc.pinecone.io", "/query", (), "x.svc.pinecone.io", "vectors", "retrieval"),
    ("api.smith.langchain.com", "/runs", (), "api.smith.langchain.com", "generic", "other"),
    ("tickets.example.com", "/v2/search", (), "tickets.example.com", "generic", "tool"),
    ("[::1]:8000", "/x", (), "[::1]", "generic", "tool"),
]
"""Host, path and headers of a POST; the provider, dialect and kind that they determine."""


@pytest.mark.parametrize(("host", "path", "headers", "provider", "dialect", "kind"), ROUTES)
def test_where_a_request_goes(
    host: str, path: str, headers: Headers, provider: str, dialect: str, kind: CallKind
) -> None:
    found = find_route("POST", host, path, headers)
    assert (found.provider, found.dialect, found.kind) == (provider, dialect, kind)


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/messages", "chat"),
        ("/v1/messages/count_tokens", "count_tokens"),
        ("/v1/complete", "text_completion"),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict", "chat"),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict", "count_tokens"),
    ],
)
def test_anthropic_s_operations(path: str, operation: str) -> None:
    assert find_route("POST", "api.anthropic.com", path).operation == operation


@pytest.mark.parametrize(
    ("method", "path", "operation", "polls"),
    [
        ("POST", "/v1/threads/runs", "invoke_agent", None),
        ("POST", "/v1/threads/t/runs", "invoke_agent", None),
        ("POST", "/v1/threads/t/runs/r/submit_tool_outputs", "invoke_agent", None),
        ("GET", "/v1/threads/t/runs/r", "poll", "r"),
        ("GET", "/v1/threads/t/runs", "get_runs", None),
        ("POST", "/v1/threads/t/runs/r/cancel", "post_cancel", None),
        ("GET", "/v1/threads/t/runs/r/steps/s", "get_steps", None),
        ("POST", "/v1/assistants", "create_agent", None),
        ("GET", "/v1/assistants/asst_1", "get_assistants", None),
        ("GET", "/v1/files/file-1/content", "get_files_content", None),
        ("GET", "/v1/models/curie", "get_models", None),
        ("GET", "/v1/fine_tuning/jobs/ftjob-1/events", "get_fine_tuning_jobs_events", None),
        ("POST", "/v1/videos", "video_generation", None),
        ("GET", "/v1/videos/video_1", "poll", "video_1"),
        ("POST", "/v1/videos/extensions", "video_generation", None),
        ("POST", "/v1/decisions", "decision", None),
        ("POST", "/v1/content_provenance_checks", "post_content_provenance_checks", None),
        ("POST", "/v1/agents/sessions", "invoke_agent", None),
        ("POST", "/v1/agents/sessions/sess_1/events", "invoke_agent", None),
        ("GET", "/v1/agents/sessions/sess_1/events", "listen", None),
        ("GET", "/v1/agents/sessions/sess_1", "get_agents_sessions", None),
        ("GET", "/v1/chatkit/threads/cthr_1", "get_chatkit_threads", None),
    ],
)
def test_openai_s_operations(method: str, path: str, operation: str, polls: str | None) -> None:
    found = find_route(method, "api.openai.com", path)
    assert (found.operation, found.polls) == (operation, polls)


@pytest.mark.parametrize(
    "tail", ["chat/completions", "completions", "embeddings", "audio/speech", "images/generations"]
)
def test_azure_names_the_model_in_the_path(tail: str) -> None:
    found = find_route("POST", "x.openai.azure.com", f"/openai/deployments/my-gpt/{tail}")
    assert (found.provider, found.kind, found.model) == ("azure.ai.openai", "model", "my-gpt")


def test_only_a_post_asks_a_model() -> None:
    assert find_route("GET", "api.openai.com", "/v1/chat/completions").kind == "other"
    assert find_route("GET", "api.openai.com", "/v1/models").kind == "other"


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [
        *(("GET", "localhost:11434", path) for path in ("/api/tags", "/api/ps", "/api/version", "/ollama/api/tags")),
        ("POST", "localhost:11434", "/api/show"),
        *(("GET", "llm.example.com", path) for path in ("/v1/models", "/v1/models/org/name", "/health", "/healthz")),
        *(
            ("GET", "10.0.0.7:8080", path)
            for path in ("/props", "/slots", "/version", "/model/info", "/get_model_info")
        ),
        *(("POST", "vllm:8000", path) for path in ("/tokenize", "/detokenize", "/apply-template", "/v1/tokenize")),
        ("HEAD", "tgi", "/v2/health/ready"),
        ("GET", "tools.example.com", "/.well-known/oauth-authorization-server/mcp"),
    ],
)
def test_what_is_asked_about_a_server_of_models_is_no_call_of_a_tool(method: str, host: str, path: str) -> None:
    route = find_route(method, host, path)
    assert route.kind == "other"
    body = b'{"model":"m","prompt":"hello"}' if method == "POST" else b""
    assert is_read_only(Request(method=method, url=f"http://{host}{path}", body=Body(data=body, size=len(body))), route)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize", "/api/show"])
@pytest.mark.parametrize(
    "body", [b'{"card":{"number":"4242"}}', b'{"model":"m","card":"4242"}', b"[]", b"{}", b"card=4242", b""]
)
def test_a_post_to_such_a_path_changes_nothing_only_if_it_says_nothing_else(path: str, body: bytes) -> None:
    # Payment services tokenize cards.
    request = Request(method="POST", url=f"http://payments:8080{path}", body=Body(data=body, size=len(body)))
    assert not is_read_only(request, find_route("POST", "payments:8080", path))


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [
        ("GET", "clinic.example.com", "/health/records"),
        ("GET", "calendar.example.com", "/slots"),
        ("GET", "shop", "/"),
        ("POST", "pay.example.com", "/tokenize"),
        ("POST", "shop", "/health"),
        ("DELETE", "localhost:11434", "/api/delete"),
        ("POST", "localhost:11434", "/api/pull"),
    ],
)
def test_what_only_looks_like_it_stays_a_tool(method: str, host: str, path: str) -> None:
    assert find_route(method, host, path).kind == "tool"


@pytest.mark.parametrize(
    ("url", "host", "path", "query"),
    [
        ("https://H.example:443/a?b", "h.example", "/a", "b"),
        ("http://h.example:8080", "h.example:8080", "/", ""),
        ("https://h.example/%7Ea%2fb%3a", "h.example", "/~a%2Fb:", ""),
        ("http://[", "", "http://[", ""),
        ("http://h:99999/", "", "http://h:99999/", ""),
    ],
)
def test_where_a_url_points(url: str, host: str, path: str, query: str) -> None:
    assert split_url(url) == (host, path, query)


@given(st.text(st.sampled_from("a/%2Ff3A:~é")))
def test_a_normal_path_is_its_own_normal_path(path: str) -> None:
    assert normalize_path(normalize_path(path)) == normalize_path(path)


@given(st.text(), st.text(), st.text())
def test_no_head_makes_the_router_raise(method: str, host: str, path: str) -> None:
    assert find_route(method, host, path).dialect


@pytest.mark.parametrize(
    ("path", "counts", "model", "streams"),
    [
        (
            "/model/arn:aws:bedrock:us-east-1:012345678901:inference-profile%2Fus.anthropic.claude/converse-stream",
            "/model/arn:aws:bedrock:us-east-1:*:inference-profile%2Fus.anthropic.claude/converse",
            "arn:aws:bedrock:us-east-1:012345678901:inference-profile/us.anthropic.claude",
            True,
        ),
        (
            "/model/us.amazon.nova-lite-v1:0/invoke",
            "/model/us.amazon.nova-lite-v1:0/invoke",
            "us.amazon.nova-lite-v1:0",
            False,
        ),
        (
            "/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict",
            "/v1/projects/*/locations/l/publishers/anthropic/models/claude:rawPredict",
            "claude",
            True,
        ),
    ],
)
def test_a_path_counts_without_whose_it_is_and_how_the_answer_is_sent(
    path: str, counts: str, model: str, streams: bool
) -> None:
    found = find_route("POST", "bedrock-runtime.us-east-1.amazonaws.com", path)
    assert (found.path, found.key_path, found.model, found.streams) == (path, counts, model, streams)


@pytest.mark.parametrize(
    "piece", ["/model", "/models/m:", "/collections/a", "/publishers/anthropic/models/", "arn:a:b:c:1", "%", "/api/v1"]
)
def test_a_hostile_path_is_routed_in_linear_time(piece: str) -> None:
    assert find_route("POST", "bedrock.example.com", "/" + piece * 20_000 + "/converses").path


LESS_COMMON: list[tuple[str, str, str, str, str, str | None]] = [
    ("POST", "api.replicate.com", "/v1/models/meta/llama/predictions", "replicate", "text_completion", None),
    ("GET", "api.replicate.com", "/v1/predictions/p1", "replicate", "poll", "p1"),
    ("GET", "streaming-api.svc.us.c.replicate.net", "/v1/streams/s", "replicate", "stream", None),
    ("POST", "us-south.ml.cloud.ibm.com", "/ml/v1/text/generation_stream", "watsonx", "text_completion", None),
    ("POST", "us-south.ml.cloud.ibm.com", "/ml/v1-beta/generation/text", "watsonx", "text_completion", None),
    ("POST", "us-south.ml.cloud.ibm.com", "/ml/v1/text/embeddings", "watsonx", "embeddings", None),
    (
        *("POST", "dashscope-intl.aliyuncs.com", "/api/v1/services/aigc/text-generation/generation"),
        *("dashscope", "chat", None),
    ),
    ("POST", "gateway.test", "/api/v1/services/rerank/text-rerank/text-rerank", "dashscope", "rerank", None),
    ("POST", "x.us-east-1.aws.endpoints.huggingface.cloud", "/", "text_generation", "text_completion", None),
    ("POST", "tgi:8080", "/generate_stream", "text_generation", "text_completion", None),
    (
        "POST",
        "runtime.sagemaker.us-east-1.amazonaws.com",
        "/endpoints/e/invocations",
        "sagemaker",
        "text_completion",
        None,
    ),
    ("POST", "api.aleph-alpha.com", "/complete", "text_generation", "text_completion", None),
    ("POST", "api.jina.ai", "/v1/rerank", "rerank", "rerank", None),
    ("POST", "api.cohere.com", "/v1/rerank", "cohere_v1", "rerank", None),
    (
        "POST",
        "generativelanguage.googleapis.com",
        "/v1beta/interactions",
        "gemini_interactions",
        "generate_content",
        None,
    ),
    (
        "GET",
        "generativelanguage.googleapis.com",
        "/v1beta/interactions/v1_x",
        "gemini_interactions",
        "poll",
        "v1_x",
    ),
    (
        "POST",
        "bedrock-agent-runtime.us-east-1.amazonaws.com",
        "/agents/A/agentAliases/B/sessions/S/text",
        "bedrock_agent",
        "invoke_agent",
        None,
    ),
]


@pytest.mark.parametrize(("method", "host", "path", "dialect", "operation", "polls"), LESS_COMMON)
def test_less_common_services_are_known_too(
    method: str, host: str, path: str, dialect: str, operation: str, polls: str | None
) -> None:
    found = find_route(method, host, path)
    assert (found.dialect, found.operation, found.kind, found.polls) == (dialect, operation, "model", polls)


@pytest.mark.parametrize(
    ("host", "path", "operation", "model"),
    [
        ("router.huggingface.co", "/hf-inference/models/o/m/pipeline/feature-extraction", "embeddings", "o/m"),
        (
            "router.huggingface.co",
            "/hf-inference/models/o/m/pipeline/sentence-similarity",
            "sentence_similarity",
            "o/m",
        ),
        ("api-inference.huggingface.co", "/pipeline/feature-extraction/o/m", "embeddings", "o/m"),
        ("api-inference.huggingface.co", "/models/o/m", "text_completion", "o/m"),
        (
            "aiplatform.googleapis.com",
            "/v1/publishers/google/models/imagen-4.0:predict",
            "image_generation",
            "imagen-4.0",
        ),
        ("aiplatform.googleapis.com", "/v1/models/text-embedding-005:predict", "embeddings", "text-embedding-005"),
        (AWS, "/model/amazon.nova-2-multimodal-embeddings-v1:0/invoke", "embeddings", NOVA),
        (AWS, "/model/amazon.nova-canvas-v1:0/invoke", "image_generation", "amazon.nova-canvas-v1:0"),
        (AWS, "/model/cohere.rerank-v3-5:0/invoke", "rerank", "cohere.rerank-v3-5:0"),
        ("aiplatform.googleapis.com", "/v1/models/veo-3.0:predictLongRunning", "video_generation", "veo-3.0"),
    ],
)
def test_a_path_that_names_model_and_task_says_both(host: str, path: str, operation: str, model: str) -> None:
    found = find_route("POST", host, path)
    assert (found.operation, found.model) == (operation, model)


def test_dialects_of_one_precedence_never_claim_the_same_request() -> None:
    """The order of dialects matters only where they declare a precedence."""
    recorded = (exchange(one).request for cassette in cassettes() for one in cassette.exchanges)
    heads = {(one.method, *split_url(one.url)[:2], one.headers) for one in recorded}
    for method, host, path, headers in (*heads, *(("POST", *row[:3]) for row in ROUTES)):
        lowered = tuple((name.lower(), value) for name, value in headers)
        claiming = [dialect for dialect, _ in find_claims(method, host.partition(":")[0].lower(), path, lowered)]
        assert len({dialect.precedence for dialect in claiming}) == len(claiming), (host, path, claiming)


WEBSOCKETS = [
    ("api.openai.com", "/v1/realtime", "openai_realtime"),
    ("api.openai.com", "/v1/responses", "openai_responses_socket"),
    ("generativelanguage.googleapis.com", f"/ws/{GEMINI_LIVE}.BidiGenerateContent", "gemini_live"),
]


@pytest.mark.parametrize(("host", "path", "dialect"), WEBSOCKETS)
def test_a_websocket_is_recognised_by_the_head_that_opens_it(host: str, path: str, dialect: str) -> None:
    assert find_route("GET", host, path, (("Upgrade", "websocket"),)).dialect == dialect


def test_each_dialect_claims_a_request_in_one_of_these_tables() -> None:
    by_head = {row[4] for row in ROUTES} | {row[3] for row in LESS_COMMON} | {row[2] for row in WEBSOCKETS}
    # These are recognised by the body of their requests.
    assert {dialect.name for dialect in DIALECTS} - by_head == {"ag_ui", "mcp"}, "add a request to ROUTES"
