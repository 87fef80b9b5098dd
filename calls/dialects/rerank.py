"""Documents put in the order of their relevance (Voyage, Jina, Together and others; Cohere's is with Cohere)."""

from typing import Final

from calls.dialects import Asked, Assembly, Claim, Told
from calls.dialects.generic import Whole
from calls.model import Headers, Json, Usage
from calls.shape import count, elements, members, some

NAME: Final = "rerank"


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/rerank`."""
    if method != "POST" or not path.endswith("/rerank"):
        return None
    return Claim(dialect=NAME, operation="rerank", kind="model")


def asked(body: Json) -> Asked:
    """The model."""
    return Asked(model=some(members(body).get("model")))


def told(answer: Json) -> Told:
    """Which documents, best first."""
    said = members(answer)
    usage = members(said.get("usage"))
    found = [members(one) for one in elements(said.get("data") or said.get("results"))]
    pieces = [
        {"id": one.get("index"), "score": one.get("relevance_score"), "content": one.get("document")} for one in found
    ]
    counted = usage.get("prompt_tokens") if "prompt_tokens" in usage else usage.get("total_tokens")
    return Told(model=some(said.get("model")), results=tuple(pieces), usage=Usage(input_tokens=count(counted)))


def assemble(content_type: str) -> Assembly:
    """An assembly for one value."""
    return Whole(content_type)
