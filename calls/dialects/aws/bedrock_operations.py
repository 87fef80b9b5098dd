"""AWS Bedrock's other operations: retrieval, guardrails, generated queries, optimized prompts.

`RetrieveAndGenerate` answers with a text and the sources of each part of it; its stream has pieces of the text and then the
citations. The others have their text in members of their own.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.aws.bedrock_converse import FRAMINGS, error_headers
from calls.dialects.aws.converse_writer import event_frame
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import message_error
from calls.dialects.parts.pieces import parse_payload
from calls.model import Headers, Json

_PATHS: Final = (
    (re.compile(r"(.*/retrieveAndGenerate)(Stream)?"), "retrieve_and_generate"),
    (re.compile(r"(.*/agenticRetrieve)(Stream)"), "retrieve_and_generate"),
    (re.compile(r"(.*/guardrail/[^/]+/version/[^/]+/apply|.*/guardrail-checks/invoke)()"), "moderation"),
    (re.compile(r"(.*/generateQuery)()"), "generate_query"),
    (re.compile(r"(.*/optimize-prompt)()"), "optimize_prompt"),
)


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim these operations at Bedrock's hosts."""
    if method != "POST" or "bedrock" not in host:
        return None
    for shape, operation in _PATHS:
        if match := shape.fullmatch(path):
            return Claim(operation=operation, kind="model", path=match[1], streams=bool(match[2]) or None)
    return None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, which is in one of two places."""
    request = as_object(body)
    configuration = as_object(request.get("retrieveAndGenerateConfiguration"))
    models = (
        as_object(configuration.get(name)).get("modelArn")
        for name in ("knowledgeBaseConfiguration", "externalSourcesConfiguration")
    )
    return RequestSummary(
        model=next(filter(None, map(as_text_or_none, models)), None) or as_text_or_none(request.get("targetModelId"))
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, and the documents that it cites."""
    fields = as_object(answer)
    return AnswerSummary(
        text="".join(_answer_texts(fields)) or None,
        finish_reason=as_text_or_none(fields.get("guardrailAction")) or as_text_or_none(fields.get("action")),
        results=tuple(map(_document, _references(fields))),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, BedrockOperationsStream(), FRAMINGS)


class BedrockOperationsStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self._answer_texts: list[str] = []
        self._citations: list[Json] = []
        self._state: dict[str, Json] = {}
        self._error: Json = None

    def add_message(self, event: str, data: str) -> None:
        """Add one event."""
        fields = {name: value for name, value in parse_payload(data).items() if name != "p"}
        match event:
            case "output" | "responseEvent":
                self._answer_texts.append(as_text(fields.get("text")))
            case "citation":
                self._citations.append(fields.get("citation") or fields)
            case "guardrail":
                self._state["guardrailAction"] = fields.get("action")
            case "analyzePromptEvent" | "traceEvent":
                pass  # how the answer was made
            case _ if event.startswith(("exception:", "error:")):
                self._error = {"type": event.partition(":")[2], **fields}
            case _:
                self._state |= fields

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        answer = dict(self._state)
        if self._citations:
            answer["citations"] = list(self._citations)
        if self._answer_texts:
            answer["output"] = {"text": "".join(self._answer_texts)}
        if self._error is not None:
            return {**answer, "error": self._error} if answer else self._error
        return answer or None

    @property
    def is_complete(self) -> bool | None:
        """False after an error; else None, because there is no end marker and only HTTP can tell."""
        return False if self._error is not None else None


def _answer_texts(fields: Mapping[str, Json]) -> Iterator[str]:
    yield as_text(as_object(fields.get("output")).get("text"))
    yield from (as_text(as_object(one).get("text")) for one in as_array(fields.get("outputs")))
    yield from (as_text(as_object(one).get("sql")) for one in as_array(fields.get("queries")))
    yield as_text(as_object(as_object(fields.get("optimizedPrompt")).get("textPrompt")).get("text"))


def _references(fields: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    for citation in as_array(fields.get("citations")):
        yield from map(as_object, as_array(as_object(citation).get("retrievedReferences")))
    yield from map(as_object, as_array(fields.get("results")))


def _document(reference: Mapping[str, Json]) -> Json:
    location = reference.get("location") or as_object(reference.get("sourceRetriever")).get("identifier")
    return {"id": location, "score": None, "content": reference.get("content")}


def _requested_form(criteria: FormCriteria) -> AnswerForm:
    """An optimized prompt always comes as a stream."""
    return "eventstream" if criteria.streams or criteria.operation == "optimize_prompt" else "whole"


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a text: an answer from documents, a query, an optimized prompt, or what a guardrail says instead."""
    if parts.tool_calls or parts.text is None:
        return None
    match parts.operation:
        case "retrieve_and_generate":
            return {"sessionId": parts.id, "output": {"text": parts.text}, "citations": []}
        case "generate_query":
            return {"queries": [{"type": "REDSHIFT_SQL", "sql": parts.text}]}
        case "optimize_prompt":
            return {"optimizedPrompt": {"textPrompt": {"text": parts.text}}}
        case "moderation":
            word = parts.finish_word("GUARDRAIL_INTERVENED", "")
            return {"action": word, "outputs": [{"text": parts.text}], "assessments": [], "usage": {}}
        case _:
            return None


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make what a guardrail found in the text: the filters of a content policy."""
    found = parts.words if parts.operation == "moderation" else None
    if found is None or len(found) != 1:
        return None
    filters: list[Json] = [
        {"type": name, "confidence": "HIGH", "action": "BLOCKED", "detected": True} for name in found[0]
    ]
    assessments: list[Json] = [{"contentPolicy": {"filters": filters}}] if filters else []
    action = "GUARDRAIL_INTERVENED" if filters else "NONE"
    return {"action": action, "outputs": [], "assessments": assessments, "usage": {}}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the text in one piece, and the citations."""
    if "optimizedPrompt" in answer:
        yield event_frame("optimizedPromptEvent", {"optimizedPrompt": answer["optimizedPrompt"]})
    if "output" in answer:
        yield event_frame("output", {"text": as_text(as_object(answer["output"]).get("text"))})
    for citation in as_array(answer.get("citations")):
        yield event_frame("citation", {"citation": citation})
    if "guardrailAction" in answer:
        yield event_frame("guardrail", {"action": answer["guardrailAction"]})


DIALECT: Final = Dialect(
    name="bedrock_others",
    claim=claim,
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=_requested_form,
    error_body=message_error,
    error_headers=error_headers,
    stream_writers={"eventstream": _write_stream},
    compose_answer=_compose_answer,
    compose_results=_compose_results,
)
