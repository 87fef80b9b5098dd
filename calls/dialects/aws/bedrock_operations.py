"""AWS Bedrock's other operations: retrieval, guardrails, generated queries, optimized prompts.

`RetrieveAndGenerate` answers with a text, and with what each part of it rests on; its stream brings pieces of the text and then the
citations. The others say what they have to say in a text of their own.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.aws.bedrock_converse import FRAMINGS
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json

NAME: Final = "bedrock_others"

_PATHS: Final = (
    (re.compile(r"(.*/retrieveAndGenerate)(Stream)?"), "retrieve_and_generate"),
    (re.compile(r"(.*/agenticRetrieve)(Stream)"), "retrieve_and_generate"),
    (re.compile(r"(.*/guardrail/[^/]+/version/[^/]+/apply|.*/guardrail-checks/invoke)()"), "moderation"),
    (re.compile(r"(.*/generateQuery)()"), "generate_query"),
    (re.compile(r"(.*/optimize-prompt)()"), "optimize_prompt"),
)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Bedrock's own hosts."""
    if method != "POST" or "bedrock" not in host:
        return None
    for shape, operation in _PATHS:
        if match := shape.fullmatch(path):
            return Claim(dialect=NAME, operation=operation, kind="model", path=match[1], streams=bool(match[2]) or None)
    return None


def asked(body: Json) -> RequestSummary:
    """The model that is to answer, in whichever of its two places it is named."""
    request = members(body)
    how = members(request.get("retrieveAndGenerateConfiguration"))
    named = (
        members(how.get(name)).get("modelArn")
        for name in ("knowledgeBaseConfiguration", "externalSourcesConfiguration")
    )
    return RequestSummary(model=next(filter(None, map(some, named)), None) or some(request.get("targetModelId")))


def told(answer: Json) -> AnswerSummary:
    """What was said, and what it rests on."""
    said = members(answer)
    return AnswerSummary(
        text="".join(_texts(said)) or None,
        finish_reason=some(said.get("guardrailAction")) or some(said.get("action")),
        results=tuple(map(_found, _references(said))),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, BedrockOperationsStream(), FRAMINGS)


class BedrockOperationsStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._citations: list[Json] = []
        self._state: dict[str, Json] = {}
        self._error: Json = None

    def take(self, event: str, data: str) -> None:
        """Take one event."""
        said = {name: value for name, value in payload(data).items() if name != "p"}
        match event:
            case "output" | "responseEvent":
                self._texts.append(text(said.get("text")))
            case "citation":
                self._citations.append(said.get("citation") or said)
            case "guardrail":
                self._state["guardrailAction"] = said.get("action")
            case "analyzePromptEvent" | "traceEvent":
                pass  # how it comes about
            case _ if event.startswith(("exception:", "error:")):
                self._error = {"type": event.partition(":")[2], **said}
            case _:
                self._state |= said

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        answer = dict(self._state)
        if self._citations:
            answer["citations"] = list(self._citations)
        if self._texts:
            answer["output"] = {"text": "".join(self._texts)}
        if self._error is not None:
            return {**answer, "error": self._error} if answer else self._error
        return answer or None

    @property
    def complete(self) -> bool | None:
        """An error is no whole answer; else there is no end mark, and only HTTP can tell."""
        return False if self._error is not None else None


def _texts(said: Mapping[str, Json]) -> Iterator[str]:
    yield text(members(said.get("output")).get("text"))
    yield from (text(members(one).get("text")) for one in elements(said.get("outputs")))
    yield from (text(members(one).get("sql")) for one in elements(said.get("queries")))
    yield text(members(members(said.get("optimizedPrompt")).get("textPrompt")).get("text"))


def _references(said: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    for citation in elements(said.get("citations")):
        yield from map(members, elements(members(citation).get("retrievedReferences")))
    yield from map(members, elements(said.get("results")))


def _found(reference: Mapping[str, Json]) -> Json:
    place = reference.get("location") or members(reference.get("sourceRetriever")).get("identifier")
    return {"id": place, "score": None, "content": reference.get("content")}
