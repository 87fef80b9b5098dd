"""GraphQL over HTTP at any host, Weaviate's searches among it: operation, variables, data or errors."""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import elements, members
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json

NAME: Final = "graphql"

_PATH: Final = re.compile(r"(.*/)?graphql/?")
_WEAVIATE: Final = "/v1/graphql"


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any `…/graphql`. Who answers says whether it is a search; Weaviate is known by its path."""
    if method != "POST" or _PATH.fullmatch(path) is None:
        return None
    return Claim(dialect=NAME, operation=NAME, kind="retrieval" if path == _WEAVIATE else None)


def asked(body: Json) -> RequestSummary:  # noqa: ARG001 # as the protocol has it
    """Nothing beyond the operation itself."""
    return RequestSummary()


def told(answer: Json) -> AnswerSummary:
    """What a search of Weaviate found, by class."""
    classes = members(members(members(answer).get("data")).get("Get"))
    found = [members(one) for name in classes for one in elements(classes[name])]
    return AnswerSummary(results=tuple(map(_chunk, found)))


def assemble(content_type: str) -> Assembly:
    """An assembly for a result, or for the results of a subscription or of what is deferred."""
    return AccumulatorAssembly(content_type, GraphqlStream())


class GraphqlStream:
    """The results of one subscription, by the GraphQL over SSE protocol."""

    def __init__(self) -> None:
        self._results: list[Json] = []
        self._done = False

    def take(self, event: str, data: str) -> None:
        """Take one event: `next` has a result, `complete` has none."""
        result = payload(data)
        if result:
            self._results.append(dict(result))
        self._done = self._done or event == "complete"

    @property
    def answer(self) -> Json:
        """The results so far."""
        return list(self._results)

    @property
    def complete(self) -> bool | None:
        """Whether `complete` came; a server that does not send it just ends."""
        return self._done or None


def _chunk(one: Mapping[str, Json]) -> Json:
    extra = members(one.get("_additional"))
    score = next((extra[name] for name in ("score", "certainty", "distance") if extra.get(name) is not None), None)
    return {"id": extra.get("id"), "score": score, "content": {k: v for k, v in one.items() if k != "_additional"}}
