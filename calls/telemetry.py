"""Recognise requests to services that receive traces, metrics, errors and usage; programs do not depend on the answers."""

import re
from typing import Final

from calls.model import Headers, header

OPERATION: Final = "report"

_REPORT_URLS: Final = re.compile(
    r"""
      (.+\.)?openai\.com/v1/traces/ingest
    | (.+\.)?api\.smith\.langchain\.com/(api/v1/)?(otel/v1/traces|runs(/batch|/multipart|/[0-9a-f-]{36})?)
    | (.+\.)?langfuse\.com/api/public/(ingestion|otel/v1/traces)
    | (.+\.)?(datadoghq\.(com|eu)|datad0g\.com)/.*
    | (.+\.)?posthog\.com/(batch|capture|e|i/v0/e)/?
    | (.+\.)?sentry\.io/api/\d+/(envelope|store)/
    | api\.honeycomb\.io/1/(batch|events)/.*
    | api\.segment\.io/v1/.*
    | api\.braintrust\.dev/logs3
    | app\.crewai\.com/crewai_plus/api/v1/tracing/.*
    | (.+\.)?comet\.com/opik/api/v1/private/(traces|spans)(/batch)?
    | trace\.wandb\.ai/(calls?/(start|end|batch|upsert_batch|start_batch|complete)|otel/v1/traces)
    | (api|otlp)\.agentops\.ai/(v\d/(create_\w+|update_\w+|reauthorize_jwt|developer_errors|auth/token|logs/upload/?)|v1/(traces|metrics))
    | os-api\.agno\.com/telemetry/.*
    | api\.(agno|phidata)\.com/v\d/telemetry/.*
    | api\.lunary\.ai/v1/runs/ingest
    | api\.mixpanel\.com/.*
    | api\.anthropic\.com/api/(claude_code/metrics|event_logging/(v\d/)?batch)
    | (.+\.)?(statsigapi\.net|statsig\.anthropic\.com|featureassets\.org)/v1/(rgstr|log_event)
    | ab\.chatgpt\.com/otlp/.*
    | play\.googleapis\.com/log
    | (logfire-\w+\.pydantic\.dev|api\.traceloop\.com|(.+\.)?arize\.com|otlp\..+|otel\..+|api\.honeycomb\.io)(/.*)?/v1/(traces|metrics|logs)
    | .+\.rum\.aliyuncs\.com/.*
    | telemetry\..+
    """,
    re.VERBOSE,
)
"""Host and path. For services that also answer queries, only the paths that receive reports."""

_COUNTING_URLS: Final = re.compile(r"(static|api|.+\.gateway)\.scarf\.sh/.*")
"""Services that count installations by GET requests: CrewAI sends one at each import."""

_REPORT_PATHS: Final = re.compile(
    r"""(/.*)?(
      /api/\d+/envelope/                             # Sentry, GlitchTip, and Sentry's Relay
    | /api/public/ingestion                          # Langfuse
    | /api/v1/private/(traces|spans)(/batch)?        # Opik
    | /opentelemetry\.proto\.collector\.\w+\.\w+\.\w+Service/Export  # OpenTelemetry's exporters by gRPC
    )""",
    re.VERBOSE,
)
"""Paths of services that are self-hosted, too, and that no other service has."""

_LANGSMITH: Final = re.compile(r"(/.*)?/runs(/batch|/multipart|/[0-9a-f-]{36})?")
"""Paths of LangSmith's runs, which LangGraph's server has too: there they begin runs. Its SDKs name themselves."""

_OTLP: Final = re.compile(r"(/.*)?/v1/(traces|metrics|logs)")
_ID: Final = re.compile(r"(?<=/)([0-9a-f]{8}-[0-9a-f-]{27}|\d+)(?=/|$)")


def report_path(method: str, host: str, path: str, headers: Headers) -> str | None:
    """Return the path of a report with its ids replaced by `*`; None if the request is no report."""
    if method in ("GET", "HEAD") and _COUNTING_URLS.fullmatch(f"{host}{path}"):
        return path
    if method not in ("POST", "PUT", "PATCH"):
        return None
    if _REPORT_URLS.fullmatch(f"{host}{path}") or _REPORT_PATHS.fullmatch(path):
        return _ID.sub("*", path)
    agent = header(headers, "user-agent") or ""
    # OpenTelemetry's exporters may send to any host, and name themselves (OTLP/HTTP 1.x: the paths; "User Agent": the name).
    is_otlp = agent.startswith("OTel") and _OTLP.fullmatch(path)
    is_langsmith = agent.startswith("langsmith-") and _LANGSMITH.fullmatch(path)
    return _ID.sub("*", path) if is_otlp or is_langsmith else None
