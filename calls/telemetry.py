"""Recognise requests to services that receive traces, metrics, errors and usage: no answer depends on them."""

import re
from typing import Final

from calls.model import Headers, header

OPERATION: Final = "report"

_PLACES: Final = re.compile(
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
    | telemetry\..+
    """,
    re.VERBOSE,
)
"""Host and path. Of a service that is asked as well, only where it is told."""

_PIXELS: Final = re.compile(r"(static|api|.+\.gateway)\.scarf\.sh/.*")
"""Who counts an installation by a GET: CrewAI at each import."""

_OTLP: Final = re.compile(r"(/.*)?/v1/(traces|metrics|logs)")
_ID: Final = re.compile(r"(?<=/)([0-9a-f]{8}-[0-9a-f-]{27}|\d+)(?=/|$)")


def place(method: str, host: str, path: str, headers: Headers) -> str | None:
    """The path as it counts, ids left out, where this is a report; else None."""
    if method in ("GET", "HEAD") and _PIXELS.fullmatch(f"{host}{path}"):
        return path
    if method not in ("POST", "PUT", "PATCH"):
        return None
    # OpenTelemetry's exporters say who they are, and may be sent anywhere (OTLP/HTTP 1.x: the paths; "User Agent": the name).
    exported = _OTLP.fullmatch(path) and (header(headers, "user-agent") or "").startswith("OTel")
    return _ID.sub("*", path) if exported or _PLACES.fullmatch(f"{host}{path}") else None
