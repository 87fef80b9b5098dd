"""List the answers of each route: a route without an entry here fails a test."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from store.api.openapi import calls, compare, costs, exchanges, proof, replays, runs, server, storage, timelines
from store.api.openapi.problems import COMMON, DATABASE

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"

BYTES: Final = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a route answers when it succeeds, and the problems that it alone has."""

    schema: Any = None
    """A TypedDict, or the schema itself; None without a body."""

    media_types: tuple[str, ...] = (JSON,)
    statuses: tuple[int, ...] = (200,)
    description: str = "as the schema says"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the response with their descriptions."""

    problems: tuple[str, ...] = ()
    is_public: bool = False
    """Whether no token is needed."""

    line_schema: Any = None
    """What each line is, of JSON Lines or of the lines that a list has beside JSON."""


LOCATION: Final = {"location": "the path of the replay's report"}
STORED_BODY: Final = {
    "accept-ranges": "`bytes`",
    "content-range": "which part of the body it is (206)",
    "content-disposition": "a name to save it under",
    "etag": "the digest of the stored bytes",
    "playhead-truncated": "`true` where bytes were not recorded",
    "playhead-reencoded": "`true` where the stored bytes are another encoding of those that passed",
    "playhead-content-type": "the content type with which it arrived",
    "playhead-content-encoding": "the content encoding with which it arrived",
}

ROUTES: Final[Mapping[str, Answers]] = {
    "GET /healthz": Answers(schema=server.HealthSchema, is_public=True),
    "GET /readyz": Answers(
        schema=server.ReadinessSchema, statuses=(200, 503), is_public=True, description="503: something prevents it"
    ),
    "GET /metrics": Answers(schema={"type": "string"}, media_types=("text/plain",), description="for Prometheus"),
    "GET /ca.pem": Answers(
        schema=BYTES,
        media_types=("application/pem-certificate-chain",),
        problems=("no_certificate",),
        is_public=True,
        description="PEM",
    ),
    "GET /ca-bundle.pem": Answers(
        schema=BYTES,
        media_types=("application/pem-certificate-chain",),
        problems=("no_certificate",),
        is_public=True,
        description="PEM",
    ),
    "GET /v1/session": Answers(schema=server.SessionSchema),
    "POST /v1/session": Answers(
        statuses=(204,),
        problems=("code_invalid", "token_required", "token_expired", "token_revoked", "tokens_unreadable"),
        is_public=True,
        description="logged in: the response sets the session cookie",
    ),
    "DELETE /v1/session": Answers(statuses=(204,), description="logged out"),
    "POST /v1/session/codes": Answers(schema=server.LoginCodeSchema, statuses=(201,), problems=("no_token",)),
    "GET /v1/audit": Answers(schema=server.AuditPageSchema, problems=(*DATABASE, "bad_cursor")),
    "GET /v1/runs": Answers(
        schema=runs.RunPageSchema,
        line_schema=runs.RunItemSchema,
        problems=(*DATABASE, "invalid_query", "bad_cursor", "unknown_field"),
    ),
    "GET /v1/runs/{run}": Answers(schema=runs.RunSchema, problems=(*DATABASE, "unknown_run")),
    "PUT /v1/runs/{run}": Answers(schema=runs.RunSchema, problems=(*DATABASE, "not_switchable")),
    "PATCH /v1/runs/{run}": Answers(schema=runs.RunSchema, problems=(*DATABASE, "unknown_run")),
    "DELETE /v1/runs/{run}": Answers(schema=storage.ErasureReportSchema, problems=(*DATABASE, "unknown_run")),
    "DELETE /v1/calls/{call}": Answers(schema=storage.ErasureReportSchema, problems=(*DATABASE, "unknown_call")),
    "POST /v1/erasures": Answers(
        schema=storage.ErasureReportSchema,
        problems=(*DATABASE, "unknown_run", "unknown_call", "bad_match", "bad_cursor"),
    ),
    "GET /v1/runs/{run}/calls": Answers(
        schema=calls.CallPageSchema,
        line_schema=calls.CallSummarySchema,
        problems=(*DATABASE, "unknown_run", "unknown_field", "bad_cursor"),
    ),
    "GET /v1/runs/{run}/cost": Answers(schema=costs.RunCostSchema, problems=(*DATABASE, "unknown_run")),
    "GET /v1/runs/{run}/timeline": Answers(schema=timelines.TimelineSchema, problems=(*DATABASE, "unknown_run")),
    "GET /v1/runs/{run}/effects": Answers(
        schema=timelines.EffectPageSchema, problems=(*DATABASE, "unknown_run", "bad_cursor")
    ),
    "GET /v1/runs/{run}/effects/sums": Answers(schema=timelines.EffectSumsSchema, problems=(*DATABASE, "unknown_run")),
    "GET /v1/runs/{run}/conversation": Answers(
        schema=timelines.ConversationSchema, problems=(*DATABASE, "unknown_run")
    ),
    "GET /v1/runs/{run}/gaps": Answers(schema=runs.GapPageSchema, problems=(*DATABASE, "unknown_run")),
    "POST /v1/runs/{run}/gaps": Answers(
        schema=runs.AddedGapsSchema, statuses=(201,), problems=(*DATABASE, "unknown_run")
    ),
    "GET /v1/runs/{run}/bundle": Answers(
        schema=BYTES,
        media_types=("application/jsonl",),
        description="JSON Lines (docs/trace-format.md); without its last line it is incomplete",
        headers={"content-disposition": "a name to save it under"},
        problems=(*DATABASE, "unknown_run"),
    ),
    "GET /v1/runs/{run}/verify": Answers(schema=proof.VerificationSchema, problems=(*DATABASE, "unknown_run")),
    "GET /v1/verify": Answers(schema=proof.VerificationSchema, problems=(*DATABASE, "no_checkpoint")),
    "GET /v1/verifications": Answers(schema=proof.VerificationsSchema, problems=DATABASE),
    "GET /v1/runs/{run}/envelope": Answers(schema=proof.EnvelopeSchema, problems=(*DATABASE, "unknown_run")),
    "GET /v1/checkpoint": Answers(
        schema=proof.CheckpointSchema, problems=(*DATABASE, "no_checkpoint", "invalid_query")
    ),
    "GET /v1/runs/{run}/spans": Answers(
        schema=BYTES,
        media_types=("application/x-protobuf",),
        description="an ExportTraceServiceRequest of OTLP",
        problems=(*DATABASE, "unknown_run"),
    ),
    "GET /v1/runs/{a}/diff/{b}": Answers(schema=compare.DiffSchema, problems=(*DATABASE, "unknown_run")),
    "POST /v1/runs/{run}/effects": Answers(
        schema=runs.AddedEffectsSchema, statuses=(201,), problems=(*DATABASE, "invalid_effects")
    ),
    "POST /v1/runs/{run}/questions": Answers(
        schema=runs.QuestionSchema, statuses=(201,), problems=(*DATABASE, "too_many_questions")
    ),
    "POST /v1/runs/{run}/answers": Answers(
        schema=runs.QuestionSchema,
        statuses=(201,),
        problems=(*DATABASE, "unknown_run", "unknown_question", "several_questions", "already_answered"),
    ),
    "GET /v1/waiting": Answers(schema=runs.QuestionPageSchema, problems=DATABASE),
    "GET /v1/drift": Answers(schema=compare.DriftSchema, problems=DATABASE),
    "GET /v1/canaries": Answers(schema=compare.CanaryPageSchema, problems=DATABASE),
    "POST /v1/canaries/{canary}/shots": Answers(
        schema=compare.CanaryShotSchema, statuses=(201,), problems=(*DATABASE, "too_many_canaries")
    ),
    "DELETE /v1/canaries/{canary}": Answers(statuses=(204,), problems=(*DATABASE, "unknown_canary")),
    "GET /v1/stats": Answers(schema=calls.StatsSchema, problems=(*DATABASE, "unknown_group", "invalid_query")),
    "GET /v1/facets": Answers(schema=runs.FacetsSchema, problems=(*DATABASE, "invalid_query")),
    "GET /v1/marks": Answers(schema=runs.MarksSchema, problems=DATABASE),
    "GET /v1/search": Answers(schema=calls.SearchSchema, problems=(*DATABASE, "invalid_query", "bad_cursor")),
    "POST /v1/search/rebuild": Answers(
        schema=calls.RebuildSchema, statuses=(202,), description="it has begun", problems=DATABASE
    ),
    "GET /v1/events": Answers(
        schema={"type": "string"},
        media_types=("text/event-stream",),
        description="server-sent events; the data of each is a JSON object with its `run` and its time `at`",
        problems=(*DATABASE, "bad_event_id", "too_many_streams"),
    ),
    "GET /v1/calls": Answers(
        schema=calls.CallPageSchema,
        line_schema=calls.CallSummarySchema,
        problems=(*DATABASE, "unknown_field", "invalid_query", "bad_cursor"),
    ),
    "GET /v1/calls/{call}": Answers(schema=calls.CallSchema, problems=(*DATABASE, "unknown_call")),
    "GET /v1/calls/{call}/explain": Answers(schema=calls.ExplanationSchema, problems=(*DATABASE, "unknown_call")),
    "GET /v1/calls/{call}/snippet": Answers(
        schema=calls.SnippetSchema, problems=(*DATABASE, "unknown_call", "not_copyable")
    ),
    "GET /v1/exchanges/{exchange}": Answers(schema=exchanges.ExchangeSchema, problems=(*DATABASE, "unknown_exchange")),
    "GET /v1/exchanges/{exchange}/chunks": Answers(
        schema=exchanges.ChunkPageSchema, problems=(*DATABASE, "unknown_exchange")
    ),
    "GET /v1/exchanges/{exchange}/request": Answers(
        schema=BYTES,
        media_types=("application/octet-stream",),
        statuses=(200, 206),
        description="the stored bytes; 206: a part of them",
        headers=STORED_BODY,
        problems=(*DATABASE, "unknown_exchange", "range_not_satisfiable"),
    ),
    "GET /v1/exchanges/{exchange}/response": Answers(
        schema=BYTES,
        media_types=("application/octet-stream",),
        statuses=(200, 206),
        description="the stored bytes; 206: a part of them",
        headers=STORED_BODY,
        problems=(*DATABASE, "unknown_exchange", "no_response", "range_not_satisfiable"),
    ),
    "POST /v1/replays": Answers(
        schema=replays.ReplayReportSchema,
        statuses=(201,),
        headers=LOCATION,
        problems=(*DATABASE, "unknown_run", "not_replaying", "not_live", "replay_exists", "bad_override"),
    ),
    "GET /v1/replays/{replay}": Answers(schema=replays.ReplayReportSchema, problems=(*DATABASE, "unknown_replay")),
    "POST /v1/replays/{replay}/end": Answers(schema=replays.ReplayReportSchema, problems=(*DATABASE, "unknown_replay")),
    "POST /v1/runs/{run}/forks": Answers(
        schema=replays.ReplayReportSchema,
        statuses=(201,),
        headers=LOCATION,
        problems=(
            *DATABASE,
            *(
                "unknown_run",
                "not_forking",
                "run_exists",
                "no_such_step",
                "bad_effects",
                "bad_override",
                "no_fork_agent",
            ),
        ),
    ),
    "POST /v1/import": Answers(
        schema=runs.ImportSchema,
        statuses=(200, 201),
        description="200: everything was stored already",
        problems=(*DATABASE, "bad_bundle", "unknown_format", "run_exists", "exchanges_exist"),
    ),
    "GET /v1/retention": Answers(schema=storage.RetentionPlanSchema, problems=DATABASE),
    "POST /v1/retention/run": Answers(schema=storage.RetentionResultSchema, problems=(*DATABASE, "retention_runs")),
    "POST /v1/rekey": Answers(
        schema=BYTES,
        media_types=("application/jsonl",),
        line_schema=runs.RekeyLineSchema,
        description="JSON Lines; without its last line it is incomplete",
        problems=(*DATABASE, "unknown_run", "other_rules"),
    ),
}


def route_problems(answers: Answers) -> tuple[str, ...]:
    """Return the names of all problems that a route may answer with."""
    common = [name for name in COMMON if not (answers.is_public and name == "token_required")]
    return (*common, *answers.problems)
