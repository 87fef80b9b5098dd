"""Derive the call of an exchange as the store server stores and shows it."""

from collections.abc import Callable

from calls.derive import derive_call, derive_unkeyed_call
from calls.keys.element_memory import ElementMemory
from calls.keys.profile import Profiles
from calls.model import Call, Exchange
from calls.redaction.call import Clean, clean_call


def deriver(profiles: Profiles, clean: Clean, memory: ElementMemory | None = None) -> Callable[[Exchange], Call]:
    """Return a function that derives a call under these profiles and redacts it with `clean`."""
    return lambda exchange: clean_call(derive_call(exchange, profiles, memory), clean)


def unkeyed_deriver(clean: Clean, memory: ElementMemory | None = None) -> Callable[[Exchange], Call]:
    """Return a function that derives a call without its key, warnings and parameters, which takes half the time."""
    return lambda exchange: clean_call(derive_unkeyed_call(exchange, memory), clean)
