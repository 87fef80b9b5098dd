"""Compute the cost of a call: its usage at the prices of its day, from the tables of genai-prices.

The tables are not updated at run time; a stored cost names the version of the tables. A call has no cost where the model or
service has no price, or the answer has no usage. Prices are list prices, without discounts or contracts; prices of the user's own
(`store.pricing.own_prices`) come first.
"""

import datetime as dt
import importlib.metadata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_object, as_text_or_none
from calls.model import Call, Exchange, Json, Usage, header
from store.pricing.own_prices import NO_PRICES, OwnPrice, OwnPrices, PricedCall, price_usage

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelPrice, Provider
    from genai_prices.types import Usage as Counted

LARGEST: Final = Decimal(10) ** 9
"""Dollars. A call that would cost more has an invalid usage."""

_FIRST_ERROR: Final = 400

FREE: Final = frozenset(("count_tokens", "moderation"))
"""Operations of a model that cost nothing."""

_MINUTE: Final = 60_000_000_000
"""Nanoseconds."""

RECORDED: Final = "record"
"""Stands for a version where the answer came from a recording, and was paid for when it was recorded."""

STATED: Final = "provider"
"""Stands for a version where the provider stated the cost itself (OpenRouter, in `usage.cost`)."""

_PROVIDERS: Final = {
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "gcp.gemini": "google",
    "gcp.vertex_ai": "google",
    "aws.bedrock": "aws",
    "mistral_ai": "mistral",
    "x_ai": "x-ai",
    "voyage": "voyageai",
    **{name: name for name in ("openai", "anthropic", "groq", "cohere", "deepseek", "perplexity", "openrouter")},
    **{name: name for name in ("together", "fireworks", "cerebras")},
}
"""By our name of a provider, the name in the tables. Other services are looked up by their address."""

_LIVE: Final = "live"

_FLAVORS: Final = {
    "openai_chat": ("chat",),
    "openai_completions": ("chat",),
    "openai_assistants": ("chat",),
    "openai_responses": ("responses",),
    "openai_embeddings": ("embeddings",),
    "openai_rest": ("images", "realtime", "live"),
    "openai_realtime": ("realtime",),
    "gemini_live": (_LIVE,),
    "anthropic": ("anthropic",),
    "bedrock_invoke": ("anthropic",),
}
"""By dialect, the `api_flavor` that the tables give to its form of usage; other dialects use `default`."""

_MODALITIES: Final = ("text", "audio", "image", "video")

_AUDIO_COSTS_MORE: Final = frozenset(("openai", "azure"))
"""Providers that charge many times as much for audio as for text. Where a model has only prices of text, the tables would apply these."""

_AUDIO_UNITS: Final = {
    "input_audio_tokens": "input_audio_mtok",
    "output_audio_tokens": "output_audio_mtok",
    "audio_seconds": "audio_hours",
}
"""By what the tables count of audio, the name of its price."""

_SESSIONS: Final = ("openai_realtime", "gemini_live")
"""Dialects whose answers report usage several times."""

_USAGE_MEMBERS: Final = ("usage", "usageMetadata", "meta")
"""Members of an answer that hold its usage."""

_SEARCHES: Final = {"web_search_call": "web_searches", "file_search_call": "storage_searches"}
"""By the type of an item in an answer of OpenAI's Responses, what the tables call its use. No usage counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call cost, and the source of that figure."""

    usd: Decimal
    prices: str
    """The version of the tables, such as `genai-prices/0.2.3`; or `provider` or `record`."""


_own_prices = NO_PRICES
"""The prices of the user's own, in this process."""


def use_own_prices(prices: OwnPrices) -> None:
    """Calculate costs by these prices first, from now on. A process that calculates any calls it once, when it starts."""
    global _own_prices  # what a process is configured with, like the tables
    _own_prices = prices


def call_cost(exchange: Exchange, call: Call) -> Cost | None:
    """Return what the call cost; None where it cannot be known."""
    if call.kind != "model" or call.pending is not None:
        return None
    if is_recorded(exchange):
        return Cost(usd=Decimal(0), prices=RECORDED)
    if call.operation in FREE:
        return Cost(usd=Decimal(0), prices=tables_version())
    if _own_prices.prices and (own := _own_price(exchange, call)) is not None:
        return _own_cost(own, exchange, call)
    return _list_cost(exchange, call)


def _own_price(exchange: Exchange, call: Call) -> OwnPrice | None:
    models = tuple(name for name in (call.model_returned, call.model_requested) if name)
    host = urlsplit(exchange.request.url).hostname or ""
    return _own_prices.find(
        PricedCall(models=models, provider=call.provider, host=host, started_at=exchange.started_at)
    )


def _own_cost(price: OwnPrice, exchange: Exchange, call: Call) -> Cost | None:
    if price.discount is not None:
        listed = _list_cost(exchange, call)
        usd = None if listed is None else listed.usd * (1 - price.discount)
    elif (exchange.response is None or exchange.response.status >= _FIRST_ERROR) and call.usage == Usage():
        return None  # what failed is not charged by the call
    else:
        usd = price_usage(price, call.usage, as_object(as_object(call.answer).get("usage")))
    usd = None if usd is None else _plausible_amount(usd)
    return None if usd is None else Cost(usd=usd, prices=_own_prices.version)


def _list_cost(exchange: Exchange, call: Call) -> Cost | None:
    """Return the cost that the provider states, or by the tables."""
    answer = as_object(call.answer)
    if (stated := _stated_cost(call, answer)) is not None:
        return Cost(usd=stated, prices=STATED)
    models = [name for name in (call.model_returned, call.model_requested) if name]
    reports = _usage_reports(call.dialect, answer)
    service = _PROVIDERS.get(call.provider) or _service_address(exchange.request.url)
    if not models or (not reports and call.usage == Usage()):
        return None
    # Prices may depend on the hour of the day. Rounding to the minute lets the cache answer equal calls.
    minute = exchange.started_at // _MINUTE
    flavors = (*_FLAVORS.get(call.dialect, ()), "default")
    find_prices = partial(_table_prices, service, flavors, tuple(models), _searches(call.dialect, answer))
    # Our own counts are of the whole session, and do not tell audio from text.
    counts = Usage() if reports and call.dialect in _SESSIONS else call.usage
    found = _sum_prices(find_prices(dumps(one), counts, _context(answer), minute) for one in reports or [{}])
    usd = None if found is None else _plausible_amount(found[2])
    return None if usd is None else Cost(usd=usd, prices=tables_version())


def _usage_reports(dialect: str, answer: Mapping[str, Json]) -> list[Json]:
    """Return the parts of an answer that report usage, as the tables read them.

    A session over a WebSocket reports it with each of its answers, of which audio costs more than text.
    """
    if dialect == "openai_realtime":
        usages = [as_object(one).get("usage") for one in as_array(answer.get("responses"))]
        if any(usages):
            return [{"response": {"usage": usage}} for usage in usages if usage]
    if dialect == "gemini_live":
        usages = [as_object(one).get("usageMetadata") for one in as_array(answer.get("turns"))]
        return [{"usageMetadata": _respell_live_usage(as_object(usage))} for usage in usages if usage]
    if dialect == "openai_rest" and "input_token_details" in (usage := as_object(answer.get("usage"))):
        return [{"response": {"usage": usage}}]  # a transcription counts tokens of audio and text as a session does
    members = {name: answer[name] for name in _USAGE_MEMBERS if name in answer}
    return [members] if members else []


def _searches(dialect: str, answer: Mapping[str, Json]) -> tuple[tuple[str, int], ...]:
    """Return how often each tool searched that OpenAI charges by use. To open a page that was found costs nothing."""
    if dialect != "openai_responses":
        return ()
    items = [as_object(item) for item in as_array(answer.get("output"))]
    uses = Counter(
        as_text_or_none(item.get("type"))
        for item in items
        if as_object(item.get("action")).get("type", "search") == "search"
    )
    return tuple((unit, uses[kind]) for kind, unit in _SEARCHES.items() if uses[kind])


def _respell_live_usage(usage: Mapping[str, Json]) -> Json:
    """Return the usage of Gemini Live in the names of `generateContent`."""
    return {name.replace("response", "candidates"): value for name, value in usage.items()}


def _sum_prices(found: Iterable[tuple[Decimal, Decimal, Decimal] | None]) -> tuple[Decimal, Decimal, Decimal] | None:
    """Return the sum of prices; None if one is unknown."""
    prices = list(found)
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    input_prices, output_prices, totals = zip(*known, strict=True)
    return sum(input_prices, Decimal(0)), sum(output_prices, Decimal(0)), sum(totals, Decimal(0))


def _context(answer: Mapping[str, Json]) -> tuple[str, str]:
    """Return what else prices depend on: the service tier and the speed."""
    return (
        as_text_or_none(answer.get("service_tier")) or "",
        as_text_or_none(as_object(answer.get("usage")).get("speed")) or "",
    )


def split_cost(
    *,
    provider: str,
    host: str,
    dialect: str,
    models: Sequence[str | None],
    answer: Json,
    prices: str | None,
    started_at: int,
) -> tuple[Decimal, Decimal] | None:
    """Return what the input and the output of a call cost; None unless the cost is from these tables and splits in two."""
    body = as_object(answer)
    reports = _usage_reports(dialect, body)
    model_names = tuple(name for name in models if name)
    if prices != tables_version() or not model_names or not reports:
        return None
    service = _PROVIDERS.get(provider) or f"https://{host}/"
    flavors = (*_FLAVORS.get(dialect, ()), "default")
    find_prices = partial(_table_prices, service, flavors, model_names, _searches(dialect, body))
    found = _sum_prices(find_prices(dumps(one), Usage(), _context(body), started_at // _MINUTE) for one in reports)
    return None if found is None or found[0] + found[1] != found[2] else found[:2]


def is_recorded(exchange: Exchange) -> bool:
    """Whether the answer came from a recording, as in the prefix of a fork: then it has our own header."""
    mark = header(exchange.response.headers, "playhead") if exchange.response else None
    return mark is not None and mark.partition(";")[0] in ("replayed", "edited")


@cache
def tables_version() -> str:
    """Return the version of the tables."""
    return f"genai-prices/{importlib.metadata.version('genai-prices')}"


def _stated_cost(call: Call, answer: Mapping[str, Json]) -> Decimal | None:
    """Return the cost that OpenRouter or Vercel's gateway states; with a key of one's own (BYOK), plus the provider's cost."""
    if call.dialect == "ai_gateway":
        return _gateway_cost(as_object(as_object(answer.get("providerMetadata")).get("gateway")))
    usage = as_object(answer.get("usage"))
    if call.provider != "openrouter" or (stated := _decimal(usage.get("cost"))) is None:
        return None
    behind = as_object(usage.get("cost_details")).get("upstream_inference_cost")
    return (
        _plausible_amount(stated + (_decimal(behind) or 0))
        if usage.get("is_byok") is True
        else _plausible_amount(stated)
    )


def _gateway_cost(gateway: Mapping[str, Json]) -> Decimal | None:
    try:
        return _plausible_amount(Decimal(as_text_or_none(gateway.get("cost")) or ""))
    except InvalidOperation:
        return None


def _decimal(value: Json) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return Decimal(str(value))


def _service_address(url: str) -> str:
    """Return the part of a URL by which the tables find a service: the origin, and for routers the first path segment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}/{parts.path.lstrip('/').partition('/')[0]}"


@lru_cache(maxsize=4096)
def _table_prices(
    service: str,
    flavors: tuple[str, ...],
    models: tuple[str, ...],
    searches: tuple[tuple[str, int], ...],
    usage_json: bytes,
    usage: Usage,
    context: tuple[str, str],
    minute: int,
) -> tuple[Decimal, Decimal, Decimal] | None:
    """Return the prices of the input, of the output, and in total."""
    provider = _provider(service)
    counted = _counted_usage(provider, flavors, usage_json, usage) if provider else None
    if provider is None or counted is None:
        return None
    counted = _with_searches(counted, searches)
    at = dt.datetime.fromtimestamp(minute * 60, dt.UTC)
    gateway = {name: value for name, value in zip(("service_tier", "speed"), context, strict=True) if value}
    prices = (_result_or_none(_tables().calc, counted, model, provider.id, None, at, gateway) for model in models)
    price = next((price for price in prices if price is not None), None)
    audio_costs_more = provider.id in _AUDIO_COSTS_MORE or _LIVE in flavors
    if price is None or (audio_costs_more and _lacks_audio_price(counted, price.model_price)):
        return None
    return price.input_price, price.output_price, price.total_price


def _lacks_audio_price(counted: "Counted", price: "ModelPrice") -> bool:
    return any(
        counted.reported_value(unit) and getattr(price, name, None) is None for unit, name in _AUDIO_UNITS.items()
    )


def _provider(service: str) -> "Provider | None":
    """Find a service by its name or its address."""
    provider_name, address = (None, service) if "://" in service else (service, None)
    return _result_or_none(_tables().find_provider, None, provider_name, address)


def _counted_usage(provider: "Provider", flavors: tuple[str, ...], usage_json: bytes, usage: Usage) -> "Counted | None":
    """Return the usage as the tables count it: from the answer itself, else from our own counts where they mean the same."""
    from genai_prices.types import Usage as Counted

    known = {extractor.api_flavor for extractor in provider.extractors or ()}
    answer = _result_or_none(msgspec.json.decode, usage_json)
    for flavor in filter(known.__contains__, flavors):
        if (found := _result_or_none(provider.extract_usage, answer, api_flavor=flavor)) is not None:
            return _with_absent_modalities(found[1])
    if usage == Usage() or (usage.cached_tokens and flavors[0] == "anthropic"):
        return None  # Anthropic counts cached tokens apart from the input, the others within it
    counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return _result_or_none(Counted, **counts, cache_read_tokens=usage.cached_tokens)


def _with_searches(counted: "Counted", searches: tuple[tuple[str, int], ...]) -> "Counted":
    from genai_prices.types import Usage as Counted

    return counted + Counted(**dict(searches)) if searches else counted


def _with_absent_modalities(counted: "Counted") -> "Counted":
    """State that no token of a modality was cached where those of the others are all that were.

    Gemini lists only the modalities that it has tokens of; without the number of cached ones, audio has no price.
    """
    from genai_prices.types import Usage as Counted

    cached = [f"cache_{modality}_read_tokens" for modality in _MODALITIES]
    if sum(map(counted.reported_value, cached)) != counted.reported_value("cache_read_tokens"):
        return counted
    return counted + Counted(**dict.fromkeys(cached, 0))


def _result_or_none[**P, T](look: Callable[P, T], *what: P.args, **more: P.kwargs) -> T | None:
    """Return the result of a look-up in the tables; None where they have nothing, or cannot read the answer's usage."""
    try:
        return look(*what, **more)
    except (LookupError, ValueError, ArithmeticError, TypeError, AttributeError):
        return None  # the last two where a usage has unexpected types: the library does not check them


def _plausible_amount(usd: Decimal) -> Decimal | None:
    return usd if usd.is_finite() and 0 <= usd <= LARGEST else None


@cache
def _tables() -> "DataSnapshot":
    # Imported only when it is needed: that takes a third of a second, and a store server starts in one.
    from genai_prices.data import providers
    from genai_prices.data_snapshot import DataSnapshot

    return DataSnapshot(providers=providers, from_auto_update=False)
