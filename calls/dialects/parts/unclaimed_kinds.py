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
