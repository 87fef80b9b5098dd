"""The profiles that a command reads requests by. Apart from `common`: most commands need none."""

from calls.keys.profile import BadProfile, Profiles
from proxy.errors import Failure
from proxy.settings import Settings
from store.active_profiles import shipped


def user_profiles(found: Settings) -> Profiles:
    """The profiles in force. Raises Failure with the line of a mistake."""
    text = found.config.read_text("utf-8") if found.config and found.profile else None
    try:
        return shipped(text)
    except BadProfile as error:
        raise Failure(f"{found.config}: {error}") from error
