"""A fake help desk: a small REST API with a search and a way to add notes."""

import secrets
from datetime import UTC, datetime
from typing import Any

TICKETS: tuple[dict[str, Any], ...] = (
    {"id": "T-1042", "customer": "Amara Okafor", "subject": "Refund for a double charge in October", "days": 9},
    {"id": "T-1057", "customer": "Jonas Lindqvist", "subject": "Refund was promised, not received", "days": 6},
    {"id": "T-1063", "customer": "Mei Tanaka", "subject": "Login code never arrives", "days": 4},
    {"id": "T-1071", "customer": "Rosa Delgado", "subject": "Partial refund after a late delivery", "days": 2},
    {"id": "T-1078", "customer": "Piotr Zielinski", "subject": "Invoice shows the old address", "days": 1},
)


def search_tickets(query: str, limit: int) -> dict[str, Any]:
    found = [ticket for ticket in TICKETS if query.lower() in ticket["subject"].lower()]
    return {"tickets": found[:limit], "total": len(found), "served_at": current_time()}


def add_note(ticket: str, text: str) -> dict[str, Any]:
    """Return a new note, with a new id each time."""
    return {
        "id": f"N-{secrets.randbelow(9000) + 1000}",
        "ticket": ticket,
        "author": "agent",
        "text": text,
        "at": current_time(),
    }


def current_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
