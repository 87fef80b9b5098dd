"""Propose the rule of a profile that leaves one field out of keys. Nothing is written: a person decides."""

from dataclasses import dataclass
from typing import Final

from calls.comparison.calibrate import Finding, is_inside_json_text, rule_place
from calls.comparison.field_heuristics import Guess, guess_class
from calls.comparison.proposal import add_proposal, propose_profiles
from calls.keys.divergence import Difference
from calls.keys.key import KeyResult
from calls.model import Json

_COMMENT = "proposed for a request that was not found in its recording"

_LONGEST_PATH: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreRule:
    """The rule that ignores a field, or why there is none."""

    toml: str | None
    """What to add to `playhead.toml`."""

    note: str | None
    """What the rule risks; without a rule, why there is none."""

    def as_json(self) -> dict[str, Json]:
        """Return the rule as JSON."""
        return {"rule": self.toml, "note": self.note}


def propose_ignore_rule(difference: Difference, key: KeyResult) -> IgnoreRule:
    """Return the rule that ignores the field at which a request with this key differs from a recorded one."""
    part, path = rule_place(difference.path, key)
    if path.startswith("messages"):
        return IgnoreRule(
            toml=None, note="the messages of a body in protobuf count by their bytes, whose fields no rule can name"
        )
    if part not in ("body", "query", "headers"):
        return IgnoreRule(toml=None, note="the method, the service and the path of a request always count")
    if part == "headers":
        note = "a header counts only where a profile says so: remove it from `headers` of that profile"
        return IgnoreRule(toml=None, note=note)
    if part == "body" and path == "$":
        return IgnoreRule(toml=None, note="the body has no fields that a rule could name")
    if len(path) > _LONGEST_PATH:
        return IgnoreRule(toml=None, note="its name is too long to write down in a rule")
    if part == "body" and is_inside_json_text(key, difference.path):
        return IgnoreRule(toml=None, note="it is inside a string of JSON, which counts as one value")
    guess = guess_class(_last_name(difference), difference.recorded, difference.now)
    finding = Finding(
        profile=key.profile,
        host=key.route.host,
        part=part,
        path=path,
        guess=_ignoring(guess),
        times=0,
        of=0,
        one=None,
        other=None,
    )
    (proposal,) = propose_profiles([finding])
    return IgnoreRule(toml=add_proposal("", proposal, _COMMENT), note=_risk(guess))


def _ignoring(guess: Guess) -> Guess:
    """Return a guess whose rule ignores the field."""
    return guess if guess.field_class != "key" else Guess("transient", "ignored on request")


def _risk(guess: Guess) -> str | None:
    if guess.field_class != "key":
        return None
    return (
        f"it seems to matter ({guess.reason}): with this rule, requests that differ there get the same recorded answers"
    )


def _last_name(difference: Difference) -> str:
    return next((step for step in reversed(difference.path) if isinstance(step, str)), "")
