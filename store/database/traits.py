"""Number the traits of a call, such as its host and its tools, so that one index finds calls by any of them.

A trait is a pair of a name and a value; its number is the beginning of an MD5 digest of both. Different traits may have the same
number, so a query that uses the index also compares the column itself.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from calls.model import FAILED_FINISHES

type Trait = tuple[str, str]


@lru_cache(maxsize=8192)
def trait_number(name: str, value: str) -> int:
    """Return the number of a trait: 32 bits, signed."""
    digest = hashlib.md5(f"{name}={value}".encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], signed=True)


def trait_numbers(traits: Iterable[Trait]) -> list[int]:
    """Return the numbers of traits, each once."""
    return sorted({trait_number(name, value) for name, value in traits})


HAS_BROKEN_ANSWER = (
    "((calls.answer_state IS NOT NULL AND calls.answer_state = 'error') OR "
    f"(calls.kind = 'model' AND calls.finish_reason IS NOT NULL AND calls.finish_reason IN {FAILED_FINISHES}) OR "
    "NOT calls.complete AND (calls.outcome IN ('server_closed', 'timed_out', 'refused') OR (calls.outcome = 'completed'"
    " AND calls.kind = 'model' AND calls.streamed AND calls.status BETWEEN 200 AND 299"
    " AND calls.answer_state IS DISTINCT FROM 'unkept')))"
)
"""SQL: `calls.model.is_answer_broken`, from the columns of `calls`."""

TRAITS_OF_COLUMNS = f"""(
    SELECT array_agg(DISTINCT ('x' || substr(md5(trait), 1, 8))::bit(32)::integer)
    FROM unnest(ARRAY[
        'kind=' || calls.kind, 'provider=' || calls.provider, 'dialect=' || calls.dialect,
        'operation=' || calls.operation, 'host=' || calls.host, 'model=' || calls.model_requested,
        'model=' || calls.model_returned, 'status=' || calls.status, 'status=' || left(calls.status::text, 1) || 'xx',
        'key=' || encode(calls.key, 'hex'), 'actor=' || calls.actor,
        CASE WHEN NOT calls.complete THEN 'incomplete=true' END,
        CASE WHEN calls.kind = 'tool' THEN 'tool=' || calls.operation END,
        CASE WHEN calls.kind = 'tool' THEN 'tool=' || calls.host END,
        CASE WHEN calls.status IS NULL OR calls.status >= 400
            OR {HAS_BROKEN_ANSWER}
            THEN 'error=true' END
    ] || ARRAY(SELECT 'tool=' || tool FROM unnest(calls.tools) AS tool)) AS trait
    WHERE trait IS NOT NULL
)"""  # noqa: S608 - a constant
"""SQL: the numbers of a call's traits, as `store.ingest.insert_rows.call_trait_numbers` has them, from the columns of `calls`."""
