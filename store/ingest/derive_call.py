"""Derive the call of an exchange as the store server stores and shows it."""

from collections.abc import Callable

from calls.derive import derive
from calls.keys.profile import Profiles
from calls.model import Call, Exchange
from calls.redaction.call import Clean, clean_call


def deriver(profiles: Profiles, clean: Clean) -> Callable[[Exchange], Call]:
    """Derives under these profiles; `clean` takes secrets out of a text."""
    return lambda exchange: clean_call(derive(exchange, profiles), clean)
