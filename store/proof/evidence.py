"""Make the records of what is stored, and check what is stored against its record."""

import uuid
from collections.abc import Mapping
from typing import Any

from calls.events import EffectBatch, Gap
from calls.model import EMPTY_BODY, Exchange
from calls.proof.records import ChainRecord, commit
from store.bundle.statement import effects_statement, exchange_statement, gap_statement, has_body, run_statement
from store.database.rows import body_digest
from store.proof.commitments import make_salts, salt_of


def exchange_salts(exchange: Exchange) -> bytes:
    """Return new salts for an exchange."""
    return make_salts(True, *has_bodies(exchange))


def has_bodies(exchange: Exchange) -> tuple[bool, bool]:
    """Return whether its request and its response have a body."""
    response = exchange.response.body if exchange.response else EMPTY_BODY
    return has_body(exchange.request.body), has_body(response)


def exchange_record(
    exchange: Exchange, salts: bytes, request_digest: bytes | None = None, response_digest: bytes | None = None
) -> ChainRecord:
    """Return the record of an exchange; the SHA-256 of its bodies may be given, where they are known.

    Raises ValueError for text that no JSON can hold.
    """
    request, response = exchange.request.body, exchange.response.body if exchange.response else EMPTY_BODY
    return ChainRecord(
        kind="exchange",
        id=exchange.id,
        head=_commit(salts, 0, exchange_statement(exchange)),
        request=_commit(salts, 1, request_digest or body_digest(request.data)) if has_body(request) else None,
        response=_commit(salts, 2, response_digest or body_digest(response.data)) if has_body(response) else None,
    )


def gap_record(gap_id: uuid.UUID, gap: Gap, evidence: bytes | None, salts: bytes) -> ChainRecord:
    """Return the record of a gap; `evidence` is the stored form of an exchange that no row could be made of."""
    return ChainRecord(
        kind="gap",
        id=str(gap_id),
        head=_commit(salts, 0, gap_statement(gap)),
        request=None if evidence is None else _commit(salts, 1, body_digest(evidence)),
    )


def effects_record(batch: EffectBatch, salts: bytes) -> ChainRecord:
    """Return the record of a batch of effects."""
    return ChainRecord(
        kind="effects",
        id=batch.id,
        head=_commit(salts, 0, effects_statement(batch)),
        request=_commit(salts, 1, body_digest(batch.items)),
    )


def run_record(facts: Mapping[str, Any], began: int, salts: bytes) -> ChainRecord:
    """Return the record of what is said about a run; `facts` has at least `statement.RUN_FACTS`."""
    return ChainRecord(kind="run", head=_commit(salts, 0, run_statement(facts)), began=began)


def _commit(salts: bytes, part: int, content: bytes) -> bytes | None:
    salt = salt_of(salts, part)
    return None if salt is None else commit(salt, content)
