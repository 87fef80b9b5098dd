"""Choose the recorded exchange that fits a request best, of those with its key, and adapt its answer to the request."""

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from msgspec.structs import replace

from calls.keys.profile import Profiles
from calls.model import Exchange
from replay.incoming_request import IncomingRequest
from replay.reframing.adapt_answer import AdaptedAnswer, adapt_answer, find_closest, find_same_ids, is_decided_by_ids
from replay.reframing.id_pairs import KnownPairs
from replay.script import RecordedExchange, Script, ScriptMatch, session_place

ALTERNATIVES_CONSIDERED: Final = 8
"""Maximum number of other exchanges with the same key that are considered if the next one is not a strict match."""


@dataclass(frozen=True, slots=True)
class ClosestMatch:
    """Chooses the exchanges of one replay."""

    script: Script
    profiles: Profiles
    known_pairs: KnownPairs

    async def adapt(
        self, incoming: IncomingRequest, match: ScriptMatch, exchange: Exchange
    ) -> tuple[ScriptMatch, AdaptedAnswer]:
        """Return the match, or a closer one that is taken in its place, and its answer in the form that is requested.

        `exchange` is that of the match, as it is sent.
        """
        fit = await self._adapt(incoming, exchange)
        if not match.is_repeat and (closer := await self._swap_for_closer(incoming, match, fit)):
            return replace(match, recorded=closer), await self._adapt(incoming, closer.exchange)
        return match, fit

    async def with_certainty(self, incoming: IncomingRequest, match: ScriptMatch) -> ScriptMatch:
        """Call a match certain whose ids exclude the exchanges that overlapped it."""
        if not match.is_ambiguous:
            return match
        rivals = self.script.rivals(match.recorded, ALTERNATIVES_CONSIDERED)
        if any(rival.is_heavy for rival in rivals):
            return match
        is_decided = partial(
            is_decided_by_ids, match.recorded, rivals, incoming.request, self.profiles, self.known_pairs
        )
        return replace(match, is_ambiguous=not await incoming.run_off_loop(is_decided))

    async def _adapt(self, incoming: IncomingRequest, exchange: Exchange) -> AdaptedAnswer:
        return await incoming.run_off_loop(partial(adapt_answer, exchange, incoming.request, self.profiles))

    async def _swap_for_closer(
        self, incoming: IncomingRequest, match: ScriptMatch, fit: AdaptedAnswer
    ) -> RecordedExchange | None:
        """Take an exchange of the same key that matches better in place of the one that was chosen.

        A strict match is always better. One that matches only in form (whole or streamed) is better if the chosen one does not.
        What differs between requests of one session is mostly their number, which says nothing.
        """
        recorded = match.recorded
        if recorded.session and recorded.session == session_place(incoming.request.headers):
            return None
        if fit.is_strict_match and not self.known_pairs.distance(fit.id_pairs):
            return None
        free = self.script.free_exchanges(recorded.key, incoming.actor)
        others = islice((one for one in free if match.name is None or match.name in one.names), ALTERNATIVES_CONSIDERED)
        light = [other for other in others if not other.is_heavy]
        request, profiles, known = incoming.request, self.profiles, self.known_pairs
        closer = None
        if not fit.is_strict_match:
            closer = await incoming.run_off_loop(partial(find_closest, light, request, profiles, known))
        if closer is not None and not fit.is_reframed and fit.misfit is None:
            closer = closer if (await self._adapt(incoming, closer.exchange)).is_strict_match else None
        if closer is None:
            closer = await incoming.run_off_loop(partial(find_same_ids, fit.id_pairs, light, request, profiles, known))
        return closer and self.script.swap(recorded, lambda other: other is closer)
