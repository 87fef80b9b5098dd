"""What other projects' recordings ask, of services that are not OpenAI's in shape: where it goes, and what counts of it.

Paths and fields are as these projects recorded them: pydantic/pydantic-ai and crewAIInc/crewAI (MIT), Arize-ai/openinference,
lmnr-ai/lmnr-python and braintrustdata/braintrust-sdk-python (Apache-2.0); those that no recording shows are in the services' own SDKs (anthropic 2.12, google-genai 2.8, botocore 1.44).
"""

from typing import Any

import pytest

from calls.codec.json import parse_json
from calls.derive import derive_call
from calls.dialects.table import BY_NAME
from calls.keys.key import make_key
from calls.model import CallKind
from calls.redaction.redactor import Redactor
from calls.retry_grouping import Attempt, group_retries
from calls.route import find_route
from tests.calls.sample_requests import ANTHROPIC, PROFILES, chat, explained_key, key, request, user
from tests.calls.test_derive import answered_exchange

AGENTS = "bedrock-agent-runtime.us-east-1.amazonaws.com"
RUNTIME = "bedrock-runtime.us-east-1.amazonaws.com"
GEMINI = "generativelanguage.googleapis.com"
VERTEX = "us-central1-aiplatform.googleapis.com"
ENGINE = "eu-discoveryengine.googleapis.com"
DOCUMENTS = "/v1/projects/p/locations/eu/collections/c"
PUBLISHERS = "/v1/projects/p/locations/l/publishers/"


@pytest.mark.parametrize(
    ("method", "host", "path", "dialect", "operation", "kind"),
    [
        ("POST", AGENTS, "/agents/session_1", "bedrock_agent", "invoke_agent", "model"),
        ("POST", "bedrock-agent.us-east-1.amazonaws.com", "/agents/x", "generic", "request", "tool"),
        ("POST", AGENTS, "/retrieveAndGenerate", "bedrock_others", "retrieve_and_generate", "model"),
        ("POST", AGENTS, "/retrieveAndGenerateStream", "bedrock_others", "retrieve_and_generate", "model"),
        ("POST", AGENTS, "/rerank", "rerank", "rerank", "model"),
        ("POST", RUNTIME, "/guardrail/g/version/1/apply", "bedrock_others", "moderation", "model"),
        ("POST", RUNTIME, "/async-invoke", "bedrock_invoke", "invoke", "model"),
        ("POST", "bedrock-agentcore.us-east-1.amazonaws.com", "/memories/m/retrieve", "vectors", "search", "retrieval"),
        ("POST", "localhost:8787", "/bedrock/model/us.anthropic.claude-x/invoke", "bedrock_invoke", "chat", "model"),
        ("POST", "openrouter.ai", "/api/v1/messages", "anthropic", "chat", "model"),
        ("POST", "aiplatform.us.rep.googleapis.com", f"{PUBLISHERS}anthropic/models/c:rawPredict", "anthropic", "chat", "model"),
        ("POST", VERTEX, f"{PUBLISHERS}mistralai/models/m:streamRawPredict", "openai_chat", "chat", "model"),
        ("POST", VERTEX, f"{PUBLISHERS}google/models/veo:fetchPredictOperation", "gemini", "poll", "model"),
        ("GET", GEMINI, "/v1beta/models/veo-3/operations/o", "gemini", "poll", "model"),
        ("GET", "cloudbuild.googleapis.com", "/v1/operations/o", "generic", "request", "tool"),
        ("POST", GEMINI, "/v1beta/models/text-bison-001:generateText", "gemini", "text_completion", "model"),
        ("POST", GEMINI, "/v1beta/models/m:batchGenerateContent", "generic", "request", "other"),
        ("POST", GEMINI, "/v1beta/fileSearchStores", "generic", "request", "other"),
        ("GET", "api.search.brave.com", "/res/v1/web/search", "searches", "search", "retrieval"),
        ("POST", "google.serper.dev", "/search", "searches", "search", "retrieval"),
        ("POST", "api.tavily.com", "/extract", "searches", "fetch", "retrieval"),
        ("POST", "api.firecrawl.dev", "/v2/crawl", "searches", "fetch", "retrieval"),
        ("GET", "api.firecrawl.dev", "/v2/crawl/9352ed1c", "searches", "poll", "retrieval"),
        ("GET", "r.jina.ai", "/https://e.example", "searches", "fetch", "retrieval"),
        ("POST", "api.exa.ai", "/answer", "searches", "answer", "retrieval"),
        ("POST", "x-vector.upstash.io", "/query", "vectors", "search", "retrieval"),
        ("POST", "gcp-us-central1.turbopuffer.com", "/v2/namespaces/n/query", "vectors", "search", "retrieval"),
        ("POST", "s3vectors.us-east-1.api.aws", "/QueryVectors", "vectors", "search", "retrieval"),
        ("GET", "localhost:8108", "/collections/c/documents/search", "vectors", "search", "retrieval"),
        ("GET", "x.search.windows.net", "/indexes('hotels')/docs('1')", "vectors", "search", "retrieval"),
        ("POST", "x.search.windows.net", "/indexes('hotels')/docs/search.post.suggest", "vectors", "search", "retrieval"),
        ("POST", "x.search.windows.net", "/indexes('hotels')/docs/search.index", "vectors", "write", "tool"),
        ("POST", "localhost:6333", "/collections/c/points/delete", "vectors", "write", "tool"),
        ("POST", VERTEX, "/v1/projects/p/locations/l:retrieveContexts", "vectors", "search", "retrieval"),
        ("POST", "cloudcode-pa.googleapis.com", "/v1internal:streamGenerateContent", "gemini_code", "generate_content", "model"),
        ("POST", "cloudcode-pa.googleapis.com", "/v1internal:loadCodeAssist", "generic", "request", "other"),
        ("POST", "api.cloudflare.com", "/client/v4/accounts/a/ai/run/@cf/meta/llama", "services", "text_completion", "model"),
        ("POST", "queue.fal.run", "/fal-ai/flux/dev", "services", "image_generation", "model"),
        ("GET", "queue.fal.run", "/fal-ai/flux/requests/r/status", "services", "poll", "model"),
        ("POST", "api.elevenlabs.io", "/v1/speech-to-text", "services", "transcription", "model"),
        ("POST", "api.deepgram.com", "/v1/listen", "services", "transcription", "model"),
        ("POST", "dashscope.aliyuncs.com", "/api/v1/apps/a/completion", "dashscope", "invoke_agent", "model"),
        ("POST", "bedrock-agentcore.us-east-1.amazonaws.com", "/runtimes/arn%3Aa%2Fx/invocations", "services", "invoke_agent", "model"),
        ("POST", ENGINE, f"{DOCUMENTS}/engines/e/servingConfigs/s:streamAnswer", "discovery", "retrieve_and_generate", "model"),
        ("POST", ENGINE, f"{DOCUMENTS}/engines/e/assistants/a:streamAssist", "discovery", "invoke_agent", "model"),
        ("POST", ENGINE, f"{DOCUMENTS}/engines/e/servingConfigs/s:search", "vectors", "search", "retrieval"),
        ("POST", ENGINE, "/v1/projects/p/locations/global/rankingConfigs/r:rank", "rerank", "rerank", "model"),
        ("POST", ENGINE, "/v1/projects/p/locations/global:generateGroundedContent", "gemini", "generate_content", "model"),
        ("POST", ENGINE, f"{DOCUMENTS}/dataStores/d/branches/0/documents:import", "generic", "request", "tool"),
        ("POST", "x.snowflakecomputing.com", "/api/v2/statements", "generic", "request", "tool"),
        ("POST", "adb-1.2.azuredatabricks.net", "/api/2.0/sql/statements/", "generic", "request", "tool"),
        ("POST", "s.services.ai.azure.com", "/models/images/embeddings", "openai_embeddings", "embeddings", "model"),
        ("POST", "s.eastus2.models.ai.azure.com", "/images/embeddings", "openai_embeddings", "embeddings", "model"),
        ("POST", "api.anthropic.com", "/v1/sessions/s/events", "anthropic_sessions", "invoke_agent", "model"),
        ("GET", "api.anthropic.com", "/v1/sessions/s/events/stream", "anthropic_sessions", "listen", "model"),
        ("GET", "api.anthropic.com", "/v1/sessions/s/threads/t/stream", "anthropic_sessions", "listen", "model"),
        ("GET", "api.anthropic.com", "/v1/sessions/s/events", "generic", "request", "other"),
        ("POST", "api.anthropic.com", "/v1/sessions", "generic", "request", "other"),
        ("POST", "api.anthropic.com", "/api/claude_code/metrics", "generic", "report", "other"),
        ("POST", "api.anthropic.com", "/api/eval/sdk-zAZe", "generic", "request", "other"),
        ("POST", "x-default-sea.rum.aliyuncs.com", "/", "generic", "report", "other"),
    ],
)  # fmt: skip
def test_where_it_goes(method: str, host: str, path: str, dialect: str, operation: str, kind: CallKind) -> None:
    found = find_route(method, host, path)
    assert (found.dialect, found.operation, found.kind) == (dialect, operation, kind)


RAG = f"https://{AGENTS}/retrieveAndGenerate"
INLINE = f"https://{AGENTS}/agents/"
CRAWL = "https://api.firecrawl.dev/v2/crawl"
GENERATE = f"https://{GEMINI}/v1beta/models/gemini-2.0-flash:generateContent"
ASYNC = f"https://{RUNTIME}/async-invoke"
EXTERNAL = {"modelArn": "anthropic.claude-3-haiku-20240307-v1:0", "sources": []}


@pytest.mark.parametrize(
    ("url", "one", "other"),
    [
        pytest.param(
            ANTHROPIC,
            chat(user("hi")),
            chat(user("hi"), fallbacks=None, diagnostics={"previous_message_id": "m"}, fallback_credit_token="t"),
            id="anthropic: what is told or paid beside the answer",
        ),
        pytest.param(
            "https://openrouter.ai/api/v1/messages",
            chat(user("hi"), session_id="a", user="u", trace={"trace_id": "t"}),
            chat(user("hi"), session_id="b"),
            id="openrouter: who asks Anthropic",
        ),
        pytest.param(
            "https://generativelanguage.googleapis.com/v1beta/interactions",
            {"model": "m", "input": "a", "labels": {"team": "x"}},
            {"model": "m", "input": "a"},
            id="gemini: whose interaction it is",
        ),
        pytest.param(ASYNC, {"clientRequestToken": "a"}, {"clientRequestToken": "b"}, id="bedrock: a retry's token"),
        pytest.param(
            "https://cloudcode-pa.googleapis.com/v1internal:generateContent",
            {"model": "m", "user_prompt_id": "a", "request": {"contents": [], "session_id": "a"}},
            {"model": "m", "user_prompt_id": "b", "request": {"contents": [], "session_id": "b"}},
            id="gemini cli: which prompt of which session",
        ),
        pytest.param(CRAWL, {"url": "u", "origin": "python-sdk@4.5.0"}, {"url": "u"}, id="firecrawl: which SDK asks"),
        pytest.param(GENERATE, {"contents": [], "generationConfig": {}}, {"contents": []}, id="gemini: nothing is set"),
        pytest.param(
            f"https://{RUNTIME}/model/amazon.nova-lite-v1%3A0/converse",
            {"messages": [], "system": [], "inferenceConfig": {}},
            {"messages": []},
            id="converse: nothing is set",
        ),
    ],
)
def test_what_does_not_change_the_answer_is_in_no_key(url: str, one: Any, other: Any) -> None:
    assert key(url, one) == key(url, other)
    assert explained_key(url, one).warnings == explained_key(url, other).warnings == ()


@pytest.mark.parametrize(
    ("url", "one", "other"),
    [
        pytest.param(ANTHROPIC, chat(fallbacks=[{"model": "a"}]), chat(), id="anthropic: who answers instead"),
        pytest.param(ANTHROPIC, chat(thread={"type": "create"}), chat(), id="anthropic: a thread"),
        pytest.param(GENERATE, {"continuationToken": "YQ=="}, {"continuationToken": "Yg=="}, id="gemini: what goes on"),
        pytest.param(RAG, {"input": {"text": "a"}}, {"input": {"text": "b"}}, id="bedrock: what is looked for"),
        pytest.param(INLINE + "s", {"instruction": "a"}, {"instruction": "b"}, id="bedrock: what an agent is"),
    ],
)
def test_what_changes_the_answer_is_in_the_key_without_a_warning(url: str, one: Any, other: Any) -> None:
    assert key(url, one) != key(url, other)
    assert explained_key(url, one).warnings == ()


@pytest.mark.parametrize(
    ("url", "name", "one", "other"),
    [
        ("https://comprehend.eu-west-1.amazonaws.com/", "X-Amz-Target", "Comprehend_20171127.DetectSentiment", "Comprehend_20171127.DetectEntities"),
        ("https://content.dropboxapi.com/2/files/download", "Dropbox-API-Arg", '{"path": "/a"}', '{"path": "/b"}'),
        ("https://e.example/data.parquet", "Range", "bytes=0-99", "bytes=100-199"),
        ("https://places.googleapis.com/v1/places:searchText", "X-Goog-FieldMask", "places.name", "places.id"),
        ("https://api.notion.com/v1/search", "Notion-Version", "2022-06-28", "2025-09-03"),
        ("https://generativelanguage.googleapis.com/v1beta/interactions", "Api-Revision", "2026-05-20", "2025-12-11"),
        ("https://x.supabase.co/rest/v1/t", "Accept-Profile", "one", "other"),
        ("https://r.jina.ai/https://e.example", "X-Return-Format", "markdown", "html"),
        ("https://gateway.helicone.ai/v1/chat/completions", "Helicone-Target-Url", "https://a.example", "https://b.example"),
    ],
)  # fmt: skip
def test_what_an_api_says_in_a_header_is_in_the_key(url: str, name: str, one: str, other: str) -> None:
    def key_with_header(value: str) -> str:
        headers, _ = Redactor(profiles=PROFILES, key=b"k" * 32).redact_request_headers(((name, value),))
        return key(url, {"Text": "It rained."}, *headers)

    assert key_with_header(one) != key_with_header(other)


def test_a_session_that_an_agent_is_asked_in_is_in_no_key() -> None:
    assert key(INLINE + "session_1", {"inputText": "a"}) == key(INLINE + "session_2", {"inputText": "a"})


def test_what_a_thing_is_and_the_thing_count_without_the_boundary_between_them() -> None:
    """As Google's storage is uploaded to (logfire's `test_pydantic_ai_gcs_upload.yaml`): `multipart/related`."""

    def key_of_upload(boundary: str, content: str) -> str:
        body = f'--{boundary}\r\ncontent-type: application/json\r\n\r\n{{"name": "a"}}\r\n--{boundary}\r\n\r\n{content}\r\n--{boundary}--'
        media = ("content-type", f'multipart/related; boundary="{boundary}"')
        url = "https://storage.googleapis.com/upload/storage/v1/b/bucket/o?uploadType=multipart"
        return make_key(request(url, body.encode(), media), PROFILES).key

    assert key_of_upload("==1==", "x") == key_of_upload("==2==", "x") != key_of_upload("==1==", "y")


def test_the_model_that_answers_out_of_documents_is_known() -> None:
    config = {"externalSourcesConfiguration": EXTERNAL, "type": "EXTERNAL_SOURCES"}
    call = derive_call(
        answered_exchange(RAG, {"retrieveAndGenerateConfiguration": config}, b'{"output": {"text": "a"}}'), PROFILES
    )
    assert (call.model_requested, call.text) == (EXTERNAL["modelArn"], "a")


def test_a_crawl_is_one_call_however_often_it_is_looked_at() -> None:
    """As `test_firecrawl_crawl_tool_integration.yaml` of crewAI has it: its later looks go to the older version's path."""
    name = "9352ed1c-88bf-4258-a466-d29911ebcbe4"
    going = (
        b'{"success": true, "status": "scraping", "next": "https://api.firecrawl.dev/v1/crawl/%b?skip=0", "data": []}'
    )
    begun = derive_call(
        answered_exchange(CRAWL, {"url": "u"}, b'{"success": true, "id": "%b"}' % name.encode()), PROFILES
    )
    assert (begun.pending, begun.complete) == (name, False)
    assert BY_NAME["searches"].summarize_answer(parse_json(going % name.encode())).pending == name
    assert find_route("GET", "api.firecrawl.dev", f"/v1/crawl/{name}").polls == name
    parts = [_part("1", 0, pending=name), _part("2", 1, polls=name, pending=name), _part("3", 2, polls=name)]
    assert [call.ids for call in group_retries(parts)] == [("1", "2", "3")]


def _part(id_: str, at: int, *, polls: str | None = None, pending: str | None = None) -> Attempt:
    return Attempt(
        id=id_, key=id_, started_at=at, ended_at=at, status=200, outcome="completed", complete=True, polls=polls, pending=pending
    )  # fmt: skip
