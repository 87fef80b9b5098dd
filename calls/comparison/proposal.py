"""Turn findings into profiles, and write them into `playhead.toml` without changing what stands there.

A profile that is proposed extends the one that ruled, and is known by its name (`…-calibrated/N`): found again, it is added
to, and its number goes up, because its keys are others.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from calls.comparison.calibrate import Finding

MARK: Final = "-calibrated"

_BY_HOST: Final = frozenset(("rest/1", "graphql/1", "searches/1", "vectors/1", "mcp/1", "mcp_batch/1", "a2a/1"))
"""Profiles for whatever API: what is left out at one host says nothing about another."""


@dataclass(frozen=True, slots=True)
class ProposedRule:
    """One entry of one list of a profile."""

    key: str
    """The list, as a dotted key: `transient`, `query.identity`, `fold.id`."""
    entry: str
    """In TOML."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A profile to be added, or to be added to."""

    stem: str
    """Its name without the version."""
    extends: str
    host: str | None
    rules: tuple[ProposedRule, ...]


def proposals(findings: Iterable[Finding]) -> list[Proposal]:
    """What to write down for the findings that have a rule."""
    groups: defaultdict[tuple[str, str | None], list[ProposedRule]] = defaultdict(list)
    for found in findings:
        if found.rules:
            host = found.host if found.profile in _BY_HOST else None
            rule = _rule(found)
            if rule.entry not in (known.entry for known in groups[found.profile, host] if known.key == rule.key):
                groups[found.profile, host].append(rule)
    return [
        Proposal(stem=_stem(profile, host), extends=profile, host=host, rules=tuple(rules))
        for (profile, host), rules in groups.items()
    ]


def _stem(profile: str, host: str | None) -> str:
    name = profile.rpartition("/")[0]
    if name.endswith(MARK):
        return name
    if host is None:
        return name + MARK
    place = re.sub(r"[^\w.-]", "_", host)
    return place + MARK if profile == "rest/1" else f"{place}-{name}{MARK}"


def _rule(found: Finding) -> ProposedRule:
    kind = found.guess.field_class
    entry = _text(found.path)
    if kind == "nonces":
        entry = f"{{ path = {entry}, starts = {_text(found.guess.starts)} }}"
    folded = kind in ("id", "nonces")
    lists = {"body": f"fold.{kind}" if folded else kind, "query": f"query.{kind}", "answer": "answer.ignore"}
    key = lists.get(found.part, "headers.transient")
    return ProposedRule(key, entry, f"{found.guess.reason}; differed in {found.times} of {found.of} calls")


def _text(value: str) -> str:
    """A basic string of TOML, which takes JSON's escapes, but none for half a surrogate pair."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def added(text: str, proposal: Proposal, about: str) -> str:
    """The text of a `playhead.toml` with a proposal in it."""
    lines = text.splitlines(keepends=True)
    blocks = _blocks(lines)
    here = next((block for block in blocks if _named(lines, block, proposal.stem)), None)
    if here is not None:
        return "".join(_extended(lines, here, proposal))
    fresh = _fresh(proposal, about)
    base = next((block for block in blocks if _named(lines, block, *proposal.extends.split("/"))), None)
    if base is not None:
        # The first profile that matches rules: so it must stand before the one that it extends.
        at = _above(lines, base.start)
        return "".join([*lines[:at], fresh, "\n", *lines[at:]])
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{gap}{fresh}"


def _blocks(lines: Sequence[str]) -> list[range]:
    """The lines of each `[[profile]]`, up to the next table that is no part of it."""
    heads = [n for n, line in enumerate(lines) if re.match(r"\s*\[\[\s*profile\s*\]\]", line)]
    others = [n for n, line in enumerate(lines) if re.match(r"\s*\[(?!\[?\s*\")[^\]]*\]\]?\s*(#.*)?$", line)]
    ends = [next((n for n in others if n > head), len(lines)) for head in heads]
    return [range(head, end) for head, end in zip(heads, ends, strict=True)]


def _named(lines: Sequence[str], block: range, stem: str, version: str = r"\d+") -> int | None:
    """The line that gives a block this name."""
    name = re.compile(rf"""\s*name\s*=\s*["']{re.escape(stem)}/{version}["']""")
    return next((n for n in block if name.match(lines[n])), None)


def _above(lines: Sequence[str], head: int) -> int:
    """Where the comment of a table begins."""
    while head and lines[head - 1].lstrip().startswith("#"):
        head -= 1
    return head


def _extended(lines: Sequence[str], block: range, proposal: Proposal) -> list[str]:
    made = list(lines)
    name = _named(lines, block, proposal.stem)
    assert name is not None, "the block was found by it"
    made[name] = re.sub(r"/(\d+)(?=[\"'])", lambda found: f"/{int(found[1]) + 1}", made[name], count=1)
    for key, rules in _by_key(proposal).items():
        pattern = re.compile(r"\s*" + r"\s*\.\s*".join(map(re.escape, key.split("."))) + r"\s*=\s*\[")
        at = next((n for n in block if pattern.match(made[n])), None)
        if at is None:
            made[name] += _list(key, rules)
        else:
            made[at] = _into(made[at], rules)
    return made


def _into(line: str, rules: Sequence[ProposedRule]) -> str:
    """A line that opens a list, with entries put first."""
    head, _, rest = line.partition("[")
    if not rest.strip() or rest.lstrip().startswith("#"):
        return f"{head}[{rest}" + "".join(map(_entry, rules))
    return f"{head}[" + "".join(f"{rule.entry}, " for rule in rules) + rest


def _fresh(proposal: Proposal, about: str) -> str:
    head = [
        f"# {about}",
        "[[profile]]",
        f"name = {_text(proposal.stem + '/1')}",
        f"extends = {_text(proposal.extends)}",
    ]
    if proposal.host is not None:
        head.append(f"match = {{ host = {_text(proposal.host)} }}")
    return "\n".join([*head, *(_list(key, rules).rstrip("\n") for key, rules in _by_key(proposal).items())]) + "\n"


def _list(key: str, rules: Iterable[ProposedRule]) -> str:
    return f"{key} = [\n" + "".join(map(_entry, rules)) + "]\n"


def _entry(rule: ProposedRule) -> str:
    return f"  {rule.entry},  # {rule.reason}\n"


def _by_key(proposal: Proposal) -> dict[str, list[ProposedRule]]:
    found: defaultdict[str, list[ProposedRule]] = defaultdict(list)
    for rule in proposal.rules:
        found[rule.key].append(rule)
    return found
