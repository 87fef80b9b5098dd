"""Requests that only report (telemetry) are distinguished from those whose answers matter, and their content is not in their keys."""

import pytest

from calls.keys.key import make_key
from calls.model import Body, Request
from calls.route import find_route
from store.active_profiles import load_profiles

RULES = load_profiles()
OTEL = (("User-Agent", "OTel-OTLP-Exporter-Python/1.39.0"), ("Content-Type", "application/x-protobuf"))


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [
        ("POST", "api.openai.com", "/v1/traces/ingest"),
        ("POST", "api.smith.langchain.com", "/runs/batch"),
        ("POST", "eu.api.smith.langchain.com", "/runs/multipart"),
        ("PATCH", "api.smith.langchain.com", "/runs/0197f9c2-1111-7000-8000-000000000000"),
        ("POST", "cloud.langfuse.com", "/api/public/ingestion"),
        ("POST", "us.i.posthog.com", "/batch/"),
        ("POST", "o1.ingest.sentry.io", "/api/42/envelope/"),
        ("POST", "telemetry.crewai.com", "/v1/traces"),
        ("POST", "app.crewai.com", "/crewai_plus/api/v1/tracing/ephemeral/batches"),
        ("POST", "trace.wandb.ai", "/call/upsert_batch"),
        ("POST", "logfire-us.pydantic.dev", "/v1/traces"),
        ("POST", "errors.corp.example", "/api/42/envelope/"),
        ("POST", "127.0.0.1", "/relay/api/1/envelope/"),
        ("POST", "langfuse.corp.example", "/api/public/ingestion"),
        ("POST", "localhost", "/api/v1/private/spans/batch"),
        ("POST", "collector.corp.example", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
        ("POST", "localhost", "/opentelemetry.proto.collector.logs.v1.LogsService/Export"),
        ("POST", "localhost", "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"),
    ],
)
def test_services_that_take_reports_are_known(method: str, host: str, path: str) -> None:
    found = find_route(method, host, path)
    assert (found.operation, found.kind) == ("report", "other")


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [
        ("POST", "api.openai.com", "/v1/chat/completions"),
        ("POST", "api.smith.langchain.com", "/runs/query"),
        ("GET", "api.smith.langchain.com", "/runs/0197f9c2-1111-7000-8000-000000000000"),
        ("POST", "us.i.posthog.com", "/decide/"),
        ("GET", "telemetry.example.com", "/v1/traces"),
        ("POST", "tools.example.com", "/v1/logs"),
        ("POST", "trace.wandb.ai", "/calls/stream_query"),
        ("POST", "langgraph.corp.example", "/runs/batch"),
        ("POST", "shop.example.com", "/api/42/envelope"),
        ("GET", "langfuse.corp.example", "/api/public/ingestion"),
        ("POST", "localhost", "/api/v1/private/traces/search"),
        ("POST", "localhost", "/opentelemetry.proto.collector.trace.v1.TraceService/Query"),
    ],
)
def test_what_is_asked_is_no_report(method: str, host: str, path: str) -> None:
    assert find_route(method, host, path).operation != "report"


def test_opentelemetry_s_exporters_are_known_wherever_they_send() -> None:
    assert find_route("POST", "collector.corp.example", "/otlp/v1/traces", OTEL).operation == "report"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/runs/multipart"), ("PATCH", "/runs/0197f9c2-1111-7000-8000-000000000000")]
)
def test_langsmith_s_sdks_are_known_wherever_they_send(method: str, path: str) -> None:
    for agent in ("langsmith-py/0.4.1", "langsmith-js/0.3.3"):
        assert find_route(method, "langsmith.corp.example", path, (("user-agent", agent),)).operation == "report"


def report(body: bytes, path: str = "/api/41/envelope/", host: str = "o1.ingest.sentry.io") -> str:
    headers = (("Content-Type", "application/json"),)
    made = make_key(Request(method="POST", url=f"https://{host}{path}", headers=headers, body=Body(data=body)), RULES)
    assert made.profile == "reports/1"
    assert [left.rule for left in made.left_out_fields] == ["telemetry"]
    assert made.warnings == ()
    return made.key


def test_the_key_holds_the_receiver_of_telemetry_and_not_its_content() -> None:
    assert report(b'{"a": 1}') == report(b"\x00\x01 not JSON") == report(b"", path="/api/42/envelope/")
    assert report(b"{}") != report(b"{}", path="/api/41/store/")
    assert report(b"{}") != report(b"{}", host="o2.ingest.sentry.io")


def test_the_key_of_a_report_is_the_one_that_recordings_have() -> None:
    assert report(b'{"a": 1}') == "sha256:9881eca2511ea5e1de8ea0edfed2d232f344979fc311bd7469008cfef395e41f"
