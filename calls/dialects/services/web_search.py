"""Web search and page fetching: the query, and what it found.

Tavily, Exa, Serper, SerpAPI, Brave, Bing, Google, Firecrawl, Jina and others. Each has its own name for the list of results.
Some let a model answer from them, streamed on request.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, Service
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.unclaimed_kinds import always_retrieval
from calls.model import Headers, Json

_HOSTS: Final = re.compile(
    r"api\.(tavily\.com|exa\.ai|firecrawl\.dev|search\.brave\.com|linkup\.so|you\.com|parallel\.ai|ydc-index\.io|valyu\.(ai|network))"
    r"|(google|scrape)\.serper\.dev|serpapi\.com|[rs]\.jina\.ai|ydc-index\.io|(.+\.)?api\.bing\.microsoft\.com|api\.bing\.microsoft\.com"
)
_SEARCH_HOSTS: Final = (
    r"api\.(tavily\.com|exa\.ai|firecrawl\.dev|search\.brave\.com|linkup\.so|you\.com|parallel\.ai|ydc-index\.io)"
    r"|google\.serper\.dev|serpapi\.com|[rs]\.jina\.ai"
)
"""Hosts where requests that are not claimed are retrievals too."""

_ELSEWHERE: Final = (
    ("www.googleapis.com", re.compile(r"/customsearch/v1(/siterestrict)?")),
    ("customsearch.googleapis.com", re.compile(r"/customsearch/v1(/siterestrict)?")),
    ("api.perplexity.ai", re.compile(r"/search")),
    ("ollama.com", re.compile(r"/api/web_(search|fetch)")),
)
"""Hosts that have other services too."""

_ANSWERS: Final = re.compile(r"(/v\d+)?/answer")
"""Paths where Exa lets a model answer from its results."""

_OTHERS: Final = re.compile(r".*/(research|chat/completions|feedback|tasks/.*|monitors.*|websets.*)(/.*)?")
"""Other services of these hosts, which are not claimed."""

_FETCHES: Final = re.compile(r".*/(extract|scrape|crawl|contents|map|fetch|web_fetch|batch/scrape)(/.*)?")
_LOOKS: Final = re.compile(r"/v\d+/(?:crawl|batch/scrape|extract)/([\w-]+)")
"""Paths of polls for Firecrawl's pending work."""

_GOING_ON: Final = frozenset(("scraping", "processing", "pending"))


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim the services by their hosts."""
    is_search_host = _HOSTS.fullmatch(host) or any(host == one and shape.fullmatch(path) for one, shape in _ELSEWHERE)
    if not is_search_host or method not in ("GET", "POST") or _OTHERS.fullmatch(path):
        return None
    if method == "GET" and (poll := _LOOKS.fullmatch(path)):
        return Claim(operation="poll", kind="retrieval", polls=poll[1])
    fetches = host in ("r.jina.ai", "scrape.serper.dev") or _FETCHES.fullmatch(path)
    operation = "fetch" if fetches else "answer" if _ANSWERS.fullmatch(path) else "search"
    return Claim(operation=operation, kind="retrieval")


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the results, one by one, and the text of an answer or a page."""
    if isinstance(answer, str):
        return AnswerSummary(text=answer)  # a page fetched by Jina
    fields = as_object(answer)
    status = as_text_or_none(fields.get("status"))
    return AnswerSummary(
        text=as_text_or_none(fields.get("answer")) or as_text_or_none(fields.get("context")),
        finish_reason=status,
        results=tuple(map(_search_result, _result_list(fields))),
        pending=_pending_id(fields, status),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for results, for a page as text, or for a streamed answer."""
    return _SearchAssembly(content_type)


class _SearchAssembly(AccumulatorAssembly):
    """A body of a search: JSON, a stream, or a page of text."""

    def __init__(self, content_type: str) -> None:
        super().__init__(content_type, WebSearchStream())

    def finish(self) -> None:
        """Note that the body has ended."""
        super().finish()
        if self._answer is None and not self.is_streamed and "text/" in self._media:
            self._answer = b"".join(self._pieces).decode("utf-8", "replace") or None


class WebSearchStream:
    """The events of one answer: pieces of its text in OpenAI's shape, then its citations, then its cost."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._state: dict[str, Json] = {}

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Add one event."""
        fields = parse_payload(data)
        for choice in map(as_object, as_array(fields.get("choices"))):
            self._texts.append(as_text(as_object(choice.get("delta")).get("content")))
        self._state |= {name: value for name, value in fields.items() if name != "choices"}

    @property
    def answer(self) -> Json:
        """The answer so far, as it would be without streaming."""
        text: dict[str, Json] = {"answer": "".join(self._texts)} if self._texts else {}
        return {**text, **self._state} or None

    @property
    def is_complete(self) -> bool | None:
        """Whether the cost arrived, which comes last; False after an error."""
        if "error" in self._state:
            return False
        return "costDollars" in self._state or None


_LISTS: Final = (
    *(
        ("results",),
        ("citations",),
        ("organic",),
        ("organic_results",),
        ("web", "results"),
        ("webPages", "value"),
        ("items",),
    ),
    *(("data", "web"), ("data",), ("hits",), ("results", "web"), ("contents",)),
)
"""The paths at which a list of results can be."""


def _result_list(fields: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    for names in _LISTS:
        value: Json = fields
        for name in names:
            value = as_object(value).get(name)
        if found := as_array(value):
            return map(as_object, found)
    # a single page
    return iter([as_object(fields["data"])] if as_object(fields.get("data")) else [])


def _search_result(one: Mapping[str, Json]) -> Json:
    name = next(
        (one[name] for name in ("id", "url", "link") if name in one), as_object(one.get("metadata")).get("sourceURL")
    )
    content = {other: value for other, value in one.items() if other not in ("score", "id")}
    return {"id": name, "score": one.get("score"), "content": content}


def _pending_id(fields: Mapping[str, Json], status: str | None) -> str | None:
    """The id of pending work: the first answer has it, later ones only the URL of the next page."""
    if status is None:
        return as_text_or_none(fields.get("id")) if fields.get("success") is True and "data" not in fields else None
    match = re.search(r"/(?:crawl|scrape|extract)/([\w-]+)", as_text(fields.get("next")))
    return match[1] if match and status in _GOING_ON else None


DIALECT: Final = Dialect(
    name="searches",
    claim=claim,
    precedence=7,  # claims every path of its hosts
    services=(Service(provider=None, host_pattern=_SEARCH_HOSTS, only_models=False, unclaimed_kind=always_retrieval),),
    assemble=assemble,
    summarize_answer=summarize_answer,
    why_no_answer="each service has a form of its own for what it found",
)
