"""Documents put in the order of their relevance (Voyage, Jina, Together, Bedrock and others; Cohere's is with Cohere), and texts scored
by how well they go together (vLLM)."""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.generic import WholeBody
from calls.model import Headers, Json, Usage

NAME: Final = "rerank"

_PATH: Final = re.compile(r"(.*/)?(rerank|reranking|v\d+/ranking)|.*/rankingConfigs/[^/:]+:rank|(.*/)?v\d+/score")
_NEARBY: Final = re.compile(r"/score")
_A_MACHINE: Final = re.compile(r"[^.]+|[\d.]+|\[.+\]")
"""vLLM's shorter path could be anything on the web; at a host without a domain it is a server of one's own."""

_PROJECT: Final = re.compile(r"/projects/[^/]+/")
_LISTS: Final = ("data", "results", "rankings", "records")
_SCORES: Final = ("relevance_score", "relevanceScore", "score", "logit")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/rerank`, and NVIDIA's and Google's names for it."""
    nearby = _NEARBY.fullmatch(path) and _A_MACHINE.fullmatch(host)
    if method != "POST" or (_PATH.fullmatch(path) is None and not nearby):
        return None
    # Whose project pays is not what is asked.
    return Claim(dialect=NAME, operation="rerank", kind="model", path=_PROJECT.sub("/projects/*/", path))


def asked(body: Json) -> RequestSummary:
    """The model."""
    request = members(body)
    bedrock = members(members(request.get("rerankingConfiguration")).get("bedrockRerankingConfiguration"))
    named = (request.get("model"), request.get("model_id"), members(bedrock.get("modelConfiguration")).get("modelArn"))
    return RequestSummary(model=next((model for model in map(some, named) if model), None))


def told(answer: Json) -> AnswerSummary:
    """Which documents, best first."""
    said = members(answer)
    usage = members(said.get("usage"))
    # Hugging Face's server answers with the bare list.
    ranked = next((said[name] for name in _LISTS if said.get(name)), answer)
    pieces = [_piece(members(one)) for one in elements(ranked)]
    counted = usage.get("prompt_tokens") if "prompt_tokens" in usage else usage.get("total_tokens")
    return AnswerSummary(model=some(said.get("model")), results=tuple(pieces), usage=Usage(input_tokens=count(counted)))


def _piece(one: Mapping[str, Json]) -> Json:
    """A document by its place among those that were sent, or by its name (Google)."""
    name, content = one.get("index", one.get("id")), one.get("document", one.get("content"))
    return {"id": name, "score": _score(one), "content": content}


def _score(one: Mapping[str, Json]) -> Json:
    return next((one[name] for name in _SCORES if name in one), None)


def assemble(content_type: str) -> Assembly:
    """An assembly for one value."""
    return WholeBody(content_type)
