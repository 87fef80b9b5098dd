"""Turn findings into profiles, and add them to `playhead.toml` without changing its other content.

A proposed profile extends the one that applied and is recognised by its name (`…-calibrated/N`). If the file already has it,
rules are added to it and its number is incremented, because its keys change.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from calls.comparison.calibrate import Finding

NAME_SUFFIX: Final = "-calibrated"

_PROFILES_BY_HOST: Final = frozenset(
    ("rest/1", "graphql/1", "searches/1", "vectors/1", "mcp/1", "mcp_batch/1", "a2a/1")
)
"""Profiles that apply to many APIs: fields that one host ignores may matter at another, so proposals are per host."""


@dataclass(frozen=True, slots=True)
class ProposedRule:
    """One entry of one list of a profile."""

    key: str
    """The list as a dotted key: `transient`, `query.identity`, `fold.id`."""
    entry: str
    """The entry in TOML syntax."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A profile to add to the file, or to extend if the file has it."""

    stem: str
    """The name without the version."""
    extends: str
    host: str | None
    rules: tuple[ProposedRule, ...]


def propose_profiles(findings: Iterable[Finding]) -> list[Proposal]:
    """Propose profiles for the findings that have a rule."""
    groups: defaultdict[tuple[str, str | None], list[ProposedRule]] = defaultdict(list)
    for found in findings:
        if found.has_rule:
            host = found.host if found.profile in _PROFILES_BY_HOST else None
            rule = _proposed_rule(found)
            if rule.entry not in (known.entry for known in groups[found.profile, host] if known.key == rule.key):
                groups[found.profile, host].append(rule)
    return [
        Proposal(stem=_stem(profile, host), extends=profile, host=host, rules=tuple(rules))
        for (profile, host), rules in groups.items()
    ]


def _stem(profile: str, host: str | None) -> str:
    name = profile.rpartition("/")[0]
    if name.endswith(NAME_SUFFIX):
        return name
    if host is None:
        return name + NAME_SUFFIX
    place = re.sub(r"[^\w.-]", "_", host)
    return place + NAME_SUFFIX if profile == "rest/1" else f"{place}-{name}{NAME_SUFFIX}"


def _proposed_rule(finding: Finding) -> ProposedRule:
    kind = finding.guess.field_class
    entry = _toml_string(finding.path)
    if kind == "nonces":
        entry = f"{{ path = {entry}, starts = {_toml_string(finding.guess.nonce_start)} }}"
    folded = kind in ("id", "nonces")
    lists = {"body": f"fold.{kind}" if folded else kind, "query": f"query.{kind}", "answer": "answer.ignore"}
    key = lists.get(finding.part, "headers.transient")
    counts = f"; differed in {finding.times} of {finding.of} calls" if finding.of else ""
    return ProposedRule(key, entry, finding.guess.reason + counts)


def _toml_string(value: str) -> str:
    """Write a TOML basic string, which allows JSON's escapes, but none for a lone surrogate."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def add_proposal(text: str, proposal: Proposal, comment: str) -> str:
    """Add a proposal to the text of a `playhead.toml`."""
    lines = text.splitlines(keepends=True)
    blocks = _profile_blocks(lines)
    here = next((block for block in blocks if _name_line(lines, block, proposal.stem)), None)
    if here is not None:
        return "".join(_extend_block(lines, here, proposal))
    fresh = _new_block(proposal, comment)
    base = next((block for block in blocks if _name_line(lines, block, *proposal.extends.split("/"))), None)
    if base is not None:
        # The first matching profile applies, so the new one must precede the one that it extends.
        at = _comment_start(lines, base.start)
        return "".join([*lines[:at], fresh, "\n", *lines[at:]])
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{gap}{fresh}"


def _profile_blocks(lines: Sequence[str]) -> list[range]:
    """Return the lines of each `[[profile]]`, up to the next table that is not part of it."""
    heads = [n for n, line in enumerate(lines) if re.match(r"\s*\[\[\s*profile\s*\]\]", line)]
    others = [n for n, line in enumerate(lines) if re.match(r"\s*\[(?!\[?\s*\")[^\]]*\]\]?\s*(#.*)?$", line)]
    ends = [next((n for n in others if n > head), len(lines)) for head in heads]
    return [range(head, end) for head, end in zip(heads, ends, strict=True)]


def _name_line(lines: Sequence[str], block: range, stem: str, version: str = r"\d+") -> int | None:
    """Return the line of a block that contains this name, if there is one."""
    name = re.compile(rf"""\s*name\s*=\s*["']{re.escape(stem)}/{version}["']""")
    return next((n for n in block if name.match(lines[n])), None)


def _comment_start(lines: Sequence[str], head: int) -> int:
    """Return the first line of the comment above a table."""
    while head and lines[head - 1].lstrip().startswith("#"):
        head -= 1
    return head


def _extend_block(lines: Sequence[str], block: range, proposal: Proposal) -> list[str]:
    new_lines = list(lines)
    name = _name_line(lines, block, proposal.stem)
    assert name is not None, "the block was found by it"
    new_lines[name] = re.sub(r"/(\d+)(?=[\"'])", lambda match: f"/{int(match[1]) + 1}", new_lines[name], count=1)
    for key, rules in _rules_by_key(proposal).items():
        pattern = re.compile(r"\s*" + r"\s*\.\s*".join(map(re.escape, key.split("."))) + r"\s*=\s*\[")
        at = next((n for n in block if pattern.match(new_lines[n])), None)
        if at is None:
            new_lines[name] += _write_list(key, rules)
        else:
            new_lines[at] = _insert_entries(new_lines[at], rules)
    return new_lines


def _insert_entries(line: str, rules: Sequence[ProposedRule]) -> str:
    """Insert entries at the start of the list that a line opens."""
    head, _, rest = line.partition("[")
    if not rest.strip() or rest.lstrip().startswith("#"):
        return f"{head}[{rest}" + "".join(map(_write_entry, rules))
    return f"{head}[" + "".join(f"{rule.entry}, " for rule in rules) + rest


def _new_block(proposal: Proposal, comment: str) -> str:
    head = [
        f"# {comment}",
        "[[profile]]",
        f"name = {_toml_string(proposal.stem + '/1')}",
        f"extends = {_toml_string(proposal.extends)}",
    ]
    if proposal.host is not None:
        head.append(f"match = {{ host = {_toml_string(proposal.host)} }}")
    return (
        "\n".join([*head, *(_write_list(key, rules).rstrip("\n") for key, rules in _rules_by_key(proposal).items())])
        + "\n"
    )


def _write_list(key: str, rules: Iterable[ProposedRule]) -> str:
    return f"{key} = [\n" + "".join(map(_write_entry, rules)) + "]\n"


def _write_entry(rule: ProposedRule) -> str:
    return f"  {rule.entry},  # {rule.reason}\n"


def _rules_by_key(proposal: Proposal) -> dict[str, list[ProposedRule]]:
    found: defaultdict[str, list[ProposedRule]] = defaultdict(list)
    for rule in proposal.rules:
        found[rule.key].append(rule)
    return found
