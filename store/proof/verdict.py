"""What checking a run has shown, in the database or in a bundle: the verdict, what does not fit, and who has signed it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from store.anchors.anchor_check import AnchorState
from store.proof.run_check import Erasure, Finding, RunCheck
from store.query.rest_shapes import rfc3339

type Verdict = Literal["verified", "failed", "unproven"]
"""Everything fits; something does not; or something has no record or seal that it could be compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealState:
    """A checkpoint that covers a chain of the run."""

    chain: str
    origin: str
    size: int
    signed_at: int | None
    """Nanoseconds since the Unix epoch, as the store server noted it; None in a bundle."""

    note: str
    unsealed: int
    """Records of the chain that were appended after its last leaf of the tree."""

    anchors: Sequence[AnchorState] = ()
    """Who else vouches for it: in the database, for the newest checkpoint that each has signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What checking a run has shown."""

    verdict: Verdict
    findings: Sequence[Finding]
    """What does not fit; the first in the order of the run comes first."""

    erasures: Sequence[Erasure]
    proven: int
    unproven: int
    seals: Sequence[SealState]
    is_signed: bool | None = None
    """Whether a store server has signed the bundle as it exported it; None in the database."""


def conclude(check: RunCheck, seals: Sequence[SealState]) -> Verification:
    """Return the result of a check."""
    is_sealed = bool(seals) and not check.unsealed_chains and not any(seal.unsealed for seal in seals)
    complete = is_sealed and not check.unproven
    is_wrong = any(finding.change != "unreachable" for finding in check.findings)
    is_proven = complete and not check.findings
    verdict: Verdict = "failed" if is_wrong else "verified" if is_proven else "unproven"
    return Verification(
        verdict=verdict,
        findings=check.findings,
        erasures=check.erasures,
        proven=check.proven,
        unproven=check.unproven,
        seals=seals,
    )


def verification_shape(run: str | None, verification: Verification) -> dict[str, Any]:
    """Return the result of a verification as JSON."""
    return {
        "run": run,
        "verdict": verification.verdict,
        "proven": verification.proven,
        "unproven": verification.unproven,
        "findings": [
            {"change": one.change, "element": one.element, "detail": one.detail} for one in verification.findings
        ],
        "erased": [
            {
                "id": one.id or None,
                "part": one.part,
                "at": None if one.at is None else rfc3339(one.at),
                "rule": one.rule,
            }
            for one in verification.erasures
        ],
        "signed": verification.is_signed,
        "seals": [
            {
                "chain": seal.chain,
                "origin": seal.origin,
                "size": seal.size,
                "signed_at": None if seal.signed_at is None else rfc3339(seal.signed_at),
                "unsealed": seal.unsealed,
                "checkpoint": seal.note,
                "anchors": [
                    {
                        "kind": one.kind,
                        "by": one.by,
                        "at": None if one.at is None else rfc3339(one.at),
                        "checked": one.is_checked,
                        "problem": one.problem,
                    }
                    for one in seal.anchors
                ],
            }
            for seal in verification.seals
        ],
    }
