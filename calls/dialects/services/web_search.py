"""Web search and page fetching: the query, and what it found.

Tavily, Exa, Serper, SerpAPI, Brave, Bing, Google, Firecrawl, Jina and others. Each has a name of its own for the list of what it found.
Some let a model answer out of it, in pieces if they are asked so.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json

NAME: Final = "searches"

_HOSTS: Final = re.compile(
    r"api\.(tavily\.com|exa\.ai|firecrawl\.dev|search\.brave\.com|linkup\.so|you\.com|parallel\.ai|ydc-index\.io|valyu\.(ai|network))"
    r"|(google|scrape)\.serper\.dev|serpapi\.com|[rs]\.jina\.ai|ydc-index\.io|(.+\.)?api\.bing\.microsoft\.com|api\.bing\.microsoft\.com"
)
_ELSEWHERE: Final = (
    ("www.googleapis.com", re.compile(r"/customsearch/v1(/siterestrict)?")),
    ("customsearch.googleapis.com", re.compile(r"/customsearch/v1(/siterestrict)?")),
    ("api.perplexity.ai", re.compile(r"/search")),
    ("ollama.com", re.compile(r"/api/web_(search|fetch)")),
)
"""Hosts that do other things too."""

_ANSWERS: Final = re.compile(r"(/v\d+)?/answer")
"""Exa lets a model answer out of what it finds."""

_OTHERS: Final = re.compile(r".*/(research|chat/completions|feedback|tasks/.*|monitors.*|websets.*)(/.*)?")
"""What such a service does beside."""

_FETCHES: Final = re.compile(r".*/(extract|scrape|crawl|contents|map|fetch|web_fetch|batch/scrape)(/.*)?")
_LOOKS: Final = re.compile(r"/v\d+/(?:crawl|batch/scrape|extract)/([\w-]+)")
"""Firecrawl goes on after its answer, and is asked whether it is done."""

_GOING_ON: Final = frozenset(("scraping", "processing", "pending"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """The services, by their hosts."""
    ours = _HOSTS.fullmatch(host) or any(host == one and shape.fullmatch(path) for one, shape in _ELSEWHERE)
    if not ours or method not in ("GET", "POST") or _OTHERS.fullmatch(path):
        return None
    if method == "GET" and (looked := _LOOKS.fullmatch(path)):
        return Claim(dialect=NAME, operation="poll", kind="retrieval", polls=looked[1])
    fetches = host in ("r.jina.ai", "scrape.serper.dev") or _FETCHES.fullmatch(path)
    operation = "fetch" if fetches else "answer" if _ANSWERS.fullmatch(path) else "search"
    return Claim(dialect=NAME, operation=operation, kind="retrieval")


def asked(body: Json) -> RequestSummary:  # noqa: ARG001 # as the protocol has it
    """The whole request is the question."""
    return RequestSummary()


def told(answer: Json) -> AnswerSummary:
    """What was found, one by one, and the text where the service made one of it."""
    if isinstance(answer, str):
        return AnswerSummary(text=answer)  # a page, as Jina reads it
    said = members(answer)
    status = some(said.get("status"))
    return AnswerSummary(
        text=some(said.get("answer")) or some(said.get("context")),
        finish_reason=status,
        results=tuple(map(_found, _list_of(said))),
        pending=_going_on(said, status),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for what was found, for a page as text, or for an answer in pieces."""
    return _Found(content_type)


class _Found(AccumulatorAssembly):
    """A body of a search: JSON, a stream, or a page that is no more than its text."""

    def __init__(self, content_type: str) -> None:
        super().__init__(content_type, WebSearchStream())

    def finish(self) -> None:
        """No more bytes will come."""
        super().finish()
        if self._answer is None and not self.streamed and "text/" in self._media:
            self._answer = b"".join(self._held).decode("utf-8", "replace") or None


class WebSearchStream:
    """The events of one answer: pieces of its text as OpenAI would send them, then what it rests on, then what it cost."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._state: dict[str, Json] = {}

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Take one event."""
        said = payload(data)
        for choice in map(members, elements(said.get("choices"))):
            self._texts.append(text(members(choice.get("delta")).get("content")))
        self._state |= {name: value for name, value in said.items() if name != "choices"}

    @property
    def answer(self) -> Json:
        """The answer so far, as it would have come whole."""
        said: dict[str, Json] = {"answer": "".join(self._texts)} if self._texts else {}
        return {**said, **self._state} or None

    @property
    def complete(self) -> bool | None:
        """Whether it was told what it cost, which comes last; an error is no answer."""
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
"""Where the list of what was found may stand."""


def _list_of(said: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    for way in _LISTS:
        place: Json = said
        for name in way:
            place = members(place).get(name)
        if found := elements(place):
            return map(members, found)
    # One page alone
    return iter([members(said["data"])] if members(said.get("data")) else [])


def _found(one: Mapping[str, Json]) -> Json:
    name = next(
        (one[name] for name in ("id", "url", "link") if name in one), members(one.get("metadata")).get("sourceURL")
    )
    content = {other: value for other, value in one.items() if other not in ("score", "id")}
    return {"id": name, "score": one.get("score"), "content": content}


def _going_on(said: Mapping[str, Json], status: str | None) -> str | None:
    """Which work is not done: the first answer names it, later ones only the address of what is next."""
    if status is None:
        return some(said.get("id")) if said.get("success") is True and "data" not in said else None
    match = re.search(r"/(?:crawl|scrape|extract)/([\w-]+)", text(said.get("next")))
    return match[1] if match and status in _GOING_ON else None
