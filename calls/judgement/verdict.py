"""Read the judge's answers, and combine votes. Votes that disagree are no verdict: they are never averaged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.judgement.prompt import Order
from calls.model import Json

type JudgeVerdict = Literal["pass", "fail", "cannot tell"]

LONGEST_REASON: Final = 1_000

_FENCED_JSON: Final = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)
_SPACES: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The judge's answer to one question."""

    verdict: JudgeVerdict
    reason: str
    quote: str = ""
    word: str | None = None
    """The judge's own word, where a vote is not what it said: `first`, or a verdict without evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What all votes say about a run by one criterion."""

    run: str
    criterion: str
    votes: tuple[Vote, ...]

    @property
    def verdict(self) -> JudgeVerdict:
        """The verdict of all votes; `cannot tell` if they disagree."""
        found = {vote.verdict for vote in self.votes}
        return found.pop() if len(found) == 1 else "cannot tell"

    @property
    def reason(self) -> str:
        """The reason of the first vote, or how the votes disagree."""
        found = [vote.verdict for vote in self.votes]
        if len(set(found)) > 1:
            counts = ", ".join(f"{found.count(one)} {one}" for one in dict.fromkeys(found))
            return f"the votes disagree: {counts}"
        return self.votes[0].reason if self.votes else "nobody was asked"

    @property
    def quote(self) -> str:
        """The quote of the first vote with the verdict."""
        return next((vote.quote for vote in self.votes if vote.verdict == self.verdict and vote.quote), "")


def read_vote(answer: str | None, transcript: Sequence[str], order: Order | None = None) -> Vote:
    """Read the text of an answer. `order` is that of a comparison, in which `pass` means that the new run is not worse."""
    document = _verdict_object(answer)
    if document is None:
        answer_text = "nothing" if not answer else repr(answer[:100])
        return Vote(verdict="cannot tell", reason=f"the judge did not answer with a JSON object: it said {answer_text}")
    word = str(document.get("verdict", "")).strip().lower().replace("_", " ")
    verdict = _absolute_verdict(word) if order is None else _compared_verdict(word, order)
    reason, quote = (str(document.get(name) or "")[:LONGEST_REASON] for name in ("reason", "quote"))
    if verdict is None:
        return Vote(verdict="cannot tell", reason=f"the judge's verdict {word[:40]!r} is none of those it was offered")
    if verdict != "cannot tell" and word != "same" and not is_quoted(quote, transcript):
        why = "without a quote" if not quote.strip() else "with a quote that is not in the transcript"
        return Vote(verdict="cannot tell", reason=f"the judge said {word} {why}: {reason}", quote=quote, word=word)
    return Vote(verdict=verdict, reason=reason, quote=quote, word=word)


def is_quoted(quote: str, transcript: Sequence[str]) -> bool:
    """Whether the words are in the transcript. White space, and the escapes of JSON in it, do not matter."""
    words = _plain_words(quote)
    return bool(words) and any(words in _plain_words(line) for line in transcript)


def _plain_words(text: str) -> str:
    unescaped = text.replace("\\n", " ").replace("\\t", " ").replace('\\"', '"').replace("\\\\", "\\")
    return _SPACES.sub(" ", unescaped).strip().strip('"').lower()


def _verdict_object(answer: str | None) -> Mapping[str, Json] | None:
    """Return the JSON object of an answer, also in a block of Markdown."""
    if answer is None:
        return None
    found = _FENCED_JSON.fullmatch(answer)
    try:
        value = parse_json_leniently((found[1] if found else answer).strip().encode("utf-8", "surrogatepass"))
    except InvalidJson:
        return None
    return value if isinstance(value, Mapping) else None


def _absolute_verdict(word: str) -> JudgeVerdict | None:
    return next((verdict for verdict in ("pass", "fail", "cannot tell") if verdict == word), None)


def _compared_verdict(word: str, order: Order) -> JudgeVerdict | None:
    if word in ("same", "cannot tell"):
        return "pass" if word == "same" else "cannot tell"
    if word not in ("first", "second"):
        return None
    return "fail" if (word == "first") == (order == "old first") else "pass"
