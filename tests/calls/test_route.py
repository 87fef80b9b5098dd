"""Who is asked, in which dialect, for what: known from the head alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Headers, Kind
from calls.route import normal_path, route, target

VERSION: Headers = (("Anthropic-Version", "2023-06-01"),)


@pytest.mark.parametrize(
    ("host", "path", "headers", "provider", "dialect", "kind"),
    [
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
        ("api.openai.com", "/v1/threads/t/messages", (), "openai", "generic", "model"),
        ("api.openai.com", "/v1/embeddings", (), "openai", "generic", "model"),
        ("us-east1-aiplatform.googleapis.com", "/v1/x:generateContent", (), "gcp.vertex_ai", "generic", "model"),
        ("bedrock-runtime.us-east-1.amazonaws.com", "/model/m/converse", (), "aws.bedrock", "generic", "model"),
        ("x.svc.pinecone.io", "/query", (), "x.svc.pinecone.io", "generic", "retrieval"),
        ("api.smith.langchain.com", "/runs", (), "api.smith.langchain.com", "generic", "other"),
        ("tickets.example.com", "/v2/search", (), "tickets.example.com", "generic", "tool"),
        ("[::1]:8000", "/x", (), "[::1]", "generic", "tool"),
    ],
)
def test_where_a_request_goes(host: str, path: str, headers: Headers, provider: str, dialect: str, kind: Kind) -> None:
    found = route("POST", host, path, headers)
    assert (found.provider, found.dialect, found.kind) == (provider, dialect, kind)


@pytest.mark.parametrize(
    ("path", "operation"),
    [("/v1/messages", "chat"), ("/v1/messages/count_tokens", "count_tokens"), ("/v1/complete", "text_completion")],
)
def test_anthropic_s_operations(path: str, operation: str) -> None:
    assert route("POST", "api.anthropic.com", path).operation == operation


def test_only_a_post_asks_a_model() -> None:
    assert route("GET", "api.openai.com", "/v1/chat/completions").dialect == "generic"
    assert route("GET", "api.openai.com", "/v1/models").kind == "other"


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
    assert target(url) == (host, path, query)


@given(st.text(st.sampled_from("a/%2Ff3A:~é")))
def test_a_normal_path_is_its_own_normal_path(path: str) -> None:
    assert normal_path(normal_path(path)) == normal_path(path)


@given(st.text(), st.text(), st.text())
def test_no_head_surprises_the_router(method: str, host: str, path: str) -> None:
    assert route(method, host, path).dialect
