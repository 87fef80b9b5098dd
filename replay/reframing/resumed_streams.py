"""Give the answers on resumed streams of MCP the ids of the requests that a client sends now.

A stream that broke off continues on a GET, which does not repeat the request. A session's requests have different ids, so
the recorded id of an answer says which request it answers.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.codec.lenient_json import as_object
from calls.dialects.protocols.jsonrpc import split_messages
from calls.model import Exchange, Json, Request, header
from replay.reframing.readdress import readdress_response


class ResumedStreams:
    """The requests of MCP's sessions that came under other ids than the recorded ones."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], tuple[list[Json], list[Json]]] = {}
        """Of each URL and recorded session: the recorded requests and the present ones, each reduced to its names."""

    def note_request(self, recorded: Request, now: Request) -> None:
        """Note that a recorded request was sent again."""
        session = header(recorded.headers, "mcp-session-id")
        if session is None or now.method != "POST":
            return
        then_names, now_names = _request_names(recorded), _request_names(now)
        if then_names != now_names and len(then_names) == len(now_names):
            then, current = self._requests.setdefault((now.url, session), ([], []))
            then += then_names
            current += now_names

    def readdress(self, exchange: Exchange) -> Exchange:
        """Return a resumed stream with the present ids; any other exchange as it is."""
        if not self._requests or exchange.response is None or header(exchange.request.headers, "last-event-id") is None:
            return exchange
        session = header(exchange.request.headers, "mcp-session-id") or ""
        if (names := self._requests.get((exchange.request.url, session))) is None:
            return exchange
        return replace(exchange, response=readdress_response(exchange.response, *names))


def _request_names(request: Request) -> list[Json]:
    try:
        body = parse_json_leniently(request.body.data)
    except InvalidJson:
        return []
    return [_names(message) for message in split_messages(body) if "method" in message]


def _names(message: Mapping[str, Json]) -> Json:
    token = as_object(as_object(message.get("params")).get("_meta")).get("progressToken")
    return {"id": message.get("id"), "params": {"_meta": {"progressToken": token}}}
