"""Rerankers (Voyage, Jina, Together, Bedrock and others; Cohere's belongs to its own dialects), and scores of pairs of texts (vLLM)."""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.generic import WholeBody
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import never_streamed
from calls.model import Headers, Json, Usage

_PATH: Final = re.compile(r"(.*/)?(rerank|reranking|v\d+/ranking)|.*/rankingConfigs/[^/:]+:rank|(.*/)?v\d+/score")
_NEARBY: Final = re.compile(r"/score")
_A_MACHINE: Final = re.compile(r"[^.]+|[\d.]+|\[.+\]")
"""Hosts without a domain, where vLLM's short path is claimed: on the web it could be anything."""

_PROJECT: Final = re.compile(r"/projects/[^/]+/")
_LISTS: Final = ("data", "results", "rankings", "records")
_SCORES: Final = ("relevance_score", "relevanceScore", "score", "logit")


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/rerank` at any host, and NVIDIA's and Google's paths for it."""
    nearby = _NEARBY.fullmatch(path) and _A_MACHINE.fullmatch(host)
    if method != "POST" or (_PATH.fullmatch(path) is None and not nearby):
        return None
    # The project is not part of the key.
    return Claim(operation="rerank", kind="model", path=_PROJECT.sub("/projects/*/", path))


def summarize_request(body: Json) -> RequestSummary:
    """Find the model."""
    request = as_object(body)
    bedrock = as_object(as_object(request.get("rerankingConfiguration")).get("bedrockRerankingConfiguration"))
    models = (
        request.get("model"),
        request.get("model_id"),
        as_object(bedrock.get("modelConfiguration")).get("modelArn"),
    )
    return RequestSummary(model=next((model for model in map(as_text_or_none, models) if model), None))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the documents in their order."""
    fields = as_object(answer)
    usage = as_object(fields.get("usage"))
    # Hugging Face's server answers with only the list.
    ranked = next((fields[name] for name in _LISTS if fields.get(name)), answer)
    pieces = [_ranked_document(as_object(one)) for one in as_array(ranked)]
    tokens = usage.get("prompt_tokens") if "prompt_tokens" in usage else usage.get("total_tokens")
    return AnswerSummary(
        model=as_text_or_none(fields.get("model")), results=tuple(pieces), usage=Usage(input_tokens=as_count(tokens))
    )


def _ranked_document(one: Mapping[str, Json]) -> Json:
    """A document by its index in the request, or by its id (Google)."""
    name, content = one.get("index", one.get("id")), one.get("document", one.get("content"))
    return {"id": name, "score": _score(one), "content": content}


def _score(one: Mapping[str, Json]) -> Json:
    return next((one[name] for name in _SCORES if name in one), None)


def assemble(content_type: str) -> Assembly:
    """Make an assembly for one value."""
    return WholeBody(content_type)


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make a ranking in the form of the service that has this host or path, or takes such a request."""
    ranks = parts.ranks
    if ranks is None:
        return None
    usage: Json = {"total_tokens": parts.input_tokens}
    head: dict[str, Json] = {"object": "list", "model": parts.model, "usage": usage}
    match parts:
        case _ if parts.path.endswith(":rank"):  # Google
            documents = [as_object(one) for one in as_array(parts.request.get("records"))]
            known = {place: document.get("id") for place, document in enumerate(documents)}
            return {"records": [{"id": known.get(_place(index), index), "score": score} for index, score in ranks]}
        case _ if parts.path.endswith("/ranking"):  # NVIDIA
            return {"rankings": [{"index": index, "logit": score} for index, score in ranks]}
        case _ if parts.path.endswith("/score"):  # vLLM
            scores = [{"index": index, "object": "score", "score": score} for index, score in ranks]
            return {**head, "id": f"score-{parts.id}", "created": parts.created, "data": scores}
        case _ if "texts" in parts.request:  # Hugging Face
            return [{"index": index, "score": score} for index, score in ranks]
        case _ if "rerankingConfiguration" in parts.request:  # Bedrock
            return {"results": [{"index": index, "relevanceScore": score} for index, score in ranks]}
        case _:
            scored = [{"index": index, "relevance_score": score} for index, score in ranks]
            return {**head, ("data" if "voyageai" in parts.host else "results"): scored}


def _place(index: Json) -> int:
    return index if isinstance(index, int) else -1


DIALECT: Final = Dialect(
    name="rerank",
    claim=claim,
    precedence=3,  # claims a path that several services have, at any host
    services=(Service(provider="mixedbread", host_pattern=r"api\.mixedbread\.(io|ai|cn|com)"),),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=never_streamed,
    compose_results=_compose_results,
)
