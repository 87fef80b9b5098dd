"""Determine the kind of a request to a known service that no dialect claims."""

import re
from typing import Final

from calls.model import CallKind

_STORED: Final = re.compile(
    r"/(files|uploads?|batches|batch|batchPredictionJobs|skills|models|cachedContents|fine[-_]tuning|datasets|embed-jobs"
    r"|agents|libraries|organizations|spaces|collections|fileSearchStores|corpora|environments|vaults|memory_stores"
    r"|deployments|user_profiles|tunnels|voices)(/[^/:]+)*/?$"
    r"|/v1/sessions(/[^/]+(/(archive|resources(/[^/]+)?))?)?$|:(batchGenerateContent|asyncBatchEmbedContent|importFile)$|/v1internal:\w+$|/check-api-key$"
)
"""Paths of what a service stores for later: a request that creates it asks no model yet."""


_NEAR: Final = re.compile(
    r"[^.]+|\[.*\]|(127|10|192\.168|172\.(1[6-9]|2\d|3[01]))\..+|.*ollama.*|host\.docker\.internal|.+\.(local|internal|lan)"
)

_ABOUT_SERVERS: Final = re.compile(
    r"(/.*)?(/v1/models(/.+)?|/health(z|check)?|/(live|ready)z"
    r"|/(v2/)?health/(live|liveness|liveliness|ready|readiness|startup)|/\.well-known/.+)/?"
)
"""What is read about a server: which models it has, whether it is ready, where its parts are (RFC 8615)."""

_ABOUT_NEAR_SERVERS: Final = re.compile(
    r"/(ping|version|props|slots|server_info|model_info|get_model_info|get_server_info)/?"
    r"|(/.*)?/(api/(tags|ps|version)|(v1/)?model/info|api/v\d/models(/.+)?)/?"
)
"""The same of Ollama, llama.cpp, vLLM, SGLang, LiteLLM and LM Studio; elsewhere, slots may be those of a calendar."""

_ABOUT_TEXTS: Final = re.compile(r"(/.*)?/((de)?tokenize|apply-template|api/show)/?")
"""Tokenizers and templates of vLLM, TGI, llama.cpp and SGLang, and Ollama's description of a model. They are POSTs."""


def is_near(host: str) -> bool:
    """Return whether a server is on this machine or network, where people run models of their own."""
    return bool(_NEAR.fullmatch(host))


def asks_about_server(method: str, host: str, path: str) -> bool:
    """Return whether a request asks about a server of models, or how a model reads a text. That is no call of a tool."""
    if method in ("GET", "HEAD"):
        return bool(_ABOUT_SERVERS.fullmatch(path) or (is_near(host) and _ABOUT_NEAR_SERVERS.fullmatch(path)))
    return method == "POST" and is_near(host) and bool(_ABOUT_TEXTS.fullmatch(path))


def model_or_other(method: str, path: str) -> CallKind:
    """Return "model" for a POST, except to what the service stores for later."""
    return "model" if method == "POST" and not _STORED.search(path) else "other"


def model_below_v1_or_other(method: str, path: str) -> CallKind:
    """Like `model_or_other` below `/v1`; elsewhere the host serves the provider's own programs, such as Claude Code."""
    return model_or_other(method, path) if path.startswith("/v1/") else "other"


def tool_or_other(method: str, _path: str) -> CallKind:
    """Return "tool" for a POST."""
    return "tool" if method == "POST" else "other"


def always_tool(_method: str, _path: str) -> CallKind:
    """Return "tool": the service is a warehouse or a cloud that serves models too."""
    return "tool"


def always_retrieval(_method: str, _path: str) -> CallKind:
    """Return "retrieval"."""
    return "retrieval"
